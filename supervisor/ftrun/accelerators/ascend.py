"""Huawei Ascend."""

from typing import Final

from ftrun.accelerators.base import FAULTS, Accelerator

ASCEND: Final = Accelerator(
    name="ascend",
    visible="ASCEND_RT_VISIBLE_DEVICES",
    device_files=r"davinci\d+",
    example="/dev/davinci*",
    driver_files=("/dev/davinci_manager",),
    opened=("/dev/davinci",),
    probe="ftrun.helpers.probe.ascend",
    faults=f"{FAULTS}/ascend.txt",
)
