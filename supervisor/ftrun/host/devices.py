"""How many accelerators the command has, told without asking any driver."""

import os
import re

VARIABLES = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
FILES = (re.compile(r"nvidia\d+"), re.compile(r"davinci\d+"))
DRIVERS = ("/dev/nvidiactl", "/dev/davinci_manager", "/dev/dxg")  # without one there is no driver to ask


def count() -> int:
    """Those that the environment names, else those that have a file in /dev."""
    for variable in VARIABLES:
        if variable in os.environ:
            return _named(os.environ[variable])
    names = os.listdir("/dev")
    return max(sum(bool(form.fullmatch(name)) for name in names) for form in FILES)


def hidden() -> str | None:
    """The variable by which the environment takes all accelerators away from the command, if it does."""
    given = [variable for variable in VARIABLES if variable in os.environ]
    return given[0] if given and not any(_named(os.environ[variable]) for variable in given) else None


def absent(probed: bool) -> str | None:
    """Why the command has no accelerator, where that is certain.  `probed`: somebody named the probe that will find
    them, which may need no file in /dev."""
    if (variable := hidden()) is not None:
        return f"{variable} names no device"
    if probed or count() or any(map(os.path.exists, DRIVERS)):
        return None
    return "there is no accelerator here (no /dev/nvidia*, no /dev/davinci*)"


def _named(text: str) -> int:
    return len([word for word in text.split(",") if word.strip() not in ("", "-1")])
