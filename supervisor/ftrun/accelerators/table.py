"""What ftrun has to know about a vendor of accelerators: one record for each, in which no field has a default.

To add a vendor, add its record here, and put it into `VENDORS`.
"""

import os
from typing import Final

from ftrun.core.named_tuple import NamedTuple

FAULTS: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults")


class Accelerator(NamedTuple):
    """`name`: the value for `--probe`, and the vendor in records.  `visible`: the environment variable that restricts a
    command to some of the devices.  `device_files`: a regular expression that matches the name of each device's file in
    /dev, and no other.  `example`: such files, for people.  `driver_files`: there is a driver to query where one of
    these exists.  `opened`: path prefixes of the files that a process which uses a device has open.  `probe`: the
    module whose function `open` returns a `helpers.probe.device.Vendor`, which reads the devices, their health and
    their faults.  `faults`: the file with the meanings of its fault codes (`core/rules/fault_codes.py`)."""

    name: str
    visible: str
    device_files: str
    example: str
    driver_files: tuple[str, ...]
    opened: tuple[str, ...]
    probe: str
    faults: str


NVIDIA: Final = Accelerator(
    name="nvidia",
    visible="CUDA_VISIBLE_DEVICES",
    device_files=r"nvidia\d+",
    example="/dev/nvidia*",
    driver_files=("/dev/nvidiactl", "/dev/dxg"),  # /dev/dxg: in the Windows subsystem for Linux
    opened=("/dev/nvidia", "/dev/dxg"),
    probe="ftrun.helpers.probe.nvidia",
    faults=f"{FAULTS}/nvidia.txt",
)
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
VENDORS: Final = (NVIDIA, ASCEND)  # in the order in which they are tried
BY_NAME: Final = {vendor.name: vendor for vendor in VENDORS}


def present() -> tuple[str, ...]:
    """Return the names of the vendors of which there is a driver here, or at least a file of a device.  Where a
    platform has renamed the driver's file, such as to `davinci_manager_docker`, the driver may answer all the same."""
    try:
        files = [f"/dev/{name}" for name in os.listdir("/dev")]
    except OSError:  # as without a free descriptor
        files = []
    return tuple(
        vendor.name
        for vendor in VENDORS
        if any(map(os.path.exists, vendor.driver_files)) or any(file.startswith(vendor.opened) for file in files)
    )
