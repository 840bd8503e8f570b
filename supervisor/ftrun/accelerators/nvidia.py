"""NVIDIA."""

from typing import Final

from ftrun.accelerators.base import FAULTS, Accelerator

NVIDIA: Final = Accelerator(
    name="nvidia",
    visible="CUDA_VISIBLE_DEVICES",
    device_files=r"nvidia\d+",
    example="/dev/nvidia*",
    driver_files=("/dev/nvidiactl", "/dev/dxg"),  # the second in the Windows subsystem for Linux
    opened=("/dev/nvidia", "/dev/dxg"),
    probe="ftrun.helpers.probe.nvidia",
    faults=f"{FAULTS}/nvidia.txt",
)
