"""Counts the command's accelerators without querying any driver."""

import os
import re

from ftrun.accelerators.table import VENDORS, present
from ftrun.core.text.sentences import several

VARIABLES = tuple(vendor.visible for vendor in VENDORS)


def count() -> int:
    """Return how many devices the environment lists, else how many device files /dev contains."""
    for variable in VARIABLES:
        if variable in os.environ:
            return _count_listed(os.environ[variable])
    names = os.listdir("/dev")
    return max(sum(bool(re.fullmatch(vendor.device_files, name)) for name in names) for vendor in VENDORS)


def has_driver() -> bool:
    """Return whether there is a driver to query here, as far as files in /dev show."""
    return bool(present())


def hiding_variable() -> str | None:
    """Return the environment variable that hides all accelerators from the command, if there is one."""
    set_variables = [variable for variable in VARIABLES if variable in os.environ]
    return (
        set_variables[0]
        if set_variables and not any(_count_listed(os.environ[variable]) for variable in set_variables)
        else None
    )


def why_none(probed: bool) -> str | None:
    """Return why the command certainly has no accelerator; None if it may have one.  `probed`: the user chose the
    probe, which may need no file in /dev."""
    if (variable := hiding_variable()) is not None:
        return f"{variable} names no device"
    if probed or count() or has_driver():
        return None
    return f"there is no accelerator here ({', '.join(f'no {vendor.example}' for vendor in VENDORS)})"


def why_not_probed() -> str | None:
    """Return why devices that the environment names are not probed unless the user chooses the probe; None if it names
    none, or if there is a driver to query."""
    if has_driver():
        return None
    for vendor in VENDORS:
        if number := _count_listed(os.environ.get(vendor.visible, "")):
            return (
                f"{vendor.visible} names {several(number, 'device')}, but there is no {vendor.example} here, so neither"
                f" faults nor the use of devices will be noticed; --probe {vendor.name} asks the driver all the same"
            )
    return None


def _count_listed(text: str) -> int:
    return len([device for device in text.split(",") if device.strip() not in ("", "-1")])
