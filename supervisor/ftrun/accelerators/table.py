"""The vendors, in the order in which they are tried."""

import os
from typing import Final

from ftrun.accelerators.ascend import ASCEND
from ftrun.accelerators.base import Accelerator
from ftrun.accelerators.nvidia import NVIDIA

VENDORS: Final[tuple[Accelerator, ...]] = (NVIDIA, ASCEND)
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
