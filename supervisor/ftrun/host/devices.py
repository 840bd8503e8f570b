"""How many accelerators the command has, told without asking any driver."""

import os
import re

VARIABLES = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
FILES = (re.compile(r"nvidia\d+"), re.compile(r"davinci\d+"))


def count() -> int:
    """Those that the environment names, else those that have a file in /dev."""
    for variable in VARIABLES:
        if variable in os.environ:
            return len([word for word in os.environ[variable].split(",") if word.strip() not in ("", "-1")])
    names = os.listdir("/dev")
    return max(sum(bool(form.fullmatch(name)) for name in names) for form in FILES)
