"""What ftrun has to know of a vendor of accelerators: one record each, in which no field has a default.

To add a vendor: a file beside this one with its record, and an entry in `table.VENDORS`.
"""

import os
from typing import Final, NamedTuple

FAULTS: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults")


class Accelerator(NamedTuple):
    """`name`: the word for `--probe`, and the vendor in records.  `visible`: the environment variable that leaves a
    command some of the devices.  `device_files`: a regular expression that matches the name of each device's file in
    /dev, and no other.  `example`: such files, for a person.  `driver_files`: without one of these there is no driver
    to ask.  `opened`: how the paths begin that a process has open which uses a device.  `probe`: the module whose
    function `open` gives a `helpers.probe.device.Vendor`, which looks at the devices, their health and their faults.
    `faults`: the file of the meanings of its fault codes (`core/rules/fault_codes.py`)."""

    name: str
    visible: str
    device_files: str
    example: str
    driver_files: tuple[str, ...]
    opened: tuple[str, ...]
    probe: str
    faults: str
