"""The vendors, in the order in which they are tried."""

from typing import Final

from ftrun.accelerators.ascend import ASCEND
from ftrun.accelerators.base import Accelerator
from ftrun.accelerators.nvidia import NVIDIA

VENDORS: Final[tuple[Accelerator, ...]] = (NVIDIA, ASCEND)
BY_NAME: Final = {vendor.name: vendor for vendor in VENDORS}
