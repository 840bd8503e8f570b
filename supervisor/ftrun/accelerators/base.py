"""What ftrun has to know about a vendor of accelerators: one record for each, in which no field has a default.

To add a vendor, add a file with its record beside this one, and an entry in `table.VENDORS`.
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
