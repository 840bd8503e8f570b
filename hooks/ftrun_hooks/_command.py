"""Whether this process is the one that ftrun has executed: the Python that runs these words, and nothing before it.

A command that is something else first, such as a shell or a launcher, could not be executed in advance without its
effects.  A standby loads this file without making a module of it.
"""

from __future__ import annotations

import os
import sys


def obstacle(command: bytes) -> str:
    """Why the command, each word ended by a NUL, cannot be executed in advance; empty if it can."""
    with open("/proc/self/cmdline", "rb") as file:
        if file.read() != command:
            return "the command is not executed as the Python process that gives heartbeats"
    if os.path.realpath(_found(os.fsdecode(command.partition(b"\0")[0]))) != os.readlink("/proc/self/exe"):
        return "the first word of the command is not the Python interpreter itself"
    if sys.flags.verbose or "importtime" in sys._xoptions or os.environ.get("PYTHONPROFILEIMPORTTIME"):
        return "Python prints its imports"
    return ""


def _found(program: str) -> str:
    """The path that is executed for the first word of a command."""
    if "/" in program:
        return program
    paths = (os.path.join(folder, program) for folder in os.environ.get("PATH", os.defpath).split(":"))
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def mark(value: str | None) -> str:
    """A number by which the value of a variable can be compared, but not read; empty without a value."""
    return "" if value is None else str(int.from_bytes(os.fsencode(value), "big") % 4294967291)
