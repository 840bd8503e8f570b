"""How many accelerators the command has, told without asking any driver."""

import os
import re

from ftrun.accelerators.table import VENDORS

VARIABLES = tuple(vendor.visible for vendor in VENDORS)
DRIVERS = tuple(file for vendor in VENDORS for file in vendor.driver_files)  # without one there is no driver to ask


def count() -> int:
    """Those that the environment names, else those that have a file in /dev."""
    for variable in VARIABLES:
        if variable in os.environ:
            return _named(os.environ[variable])
    names = os.listdir("/dev")
    return max(sum(bool(re.fullmatch(vendor.device_files, name)) for name in names) for vendor in VENDORS)


def hiding_variable() -> str | None:
    """The variable by which the environment takes all accelerators away from the command, if it does."""
    given = [variable for variable in VARIABLES if variable in os.environ]
    return given[0] if given and not any(_named(os.environ[variable]) for variable in given) else None


def why_none(probed: bool) -> str | None:
    """Why the command has no accelerator, where that is certain.  `probed`: somebody named the probe that will find
    them, which may need no file in /dev."""
    if (variable := hiding_variable()) is not None:
        return f"{variable} names no device"
    if probed or count() or any(map(os.path.exists, DRIVERS)):
        return None
    return f"there is no accelerator here ({', '.join(f'no {vendor.example}' for vendor in VENDORS)})"


def _named(text: str) -> int:
    return len([word for word in text.split(",") if word.strip() not in ("", "-1")])
