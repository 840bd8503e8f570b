"""Device faults: what a vendor's code means for the job.

The tables are data, `accelerators/faults/<vendor>.txt`, and a site's own file overrides them.  A line is `CODE SEVERITY
[retry:CLASS] description`; a `#` begins a comment.
"""

import re
from collections.abc import Mapping
from typing import Final

from ftrun.core.named_tuple import NamedTuple

# ModelArts ("In-Place Recovery", definition of self-healable faults): faults of minor or major severity usually heal
# in place, a warning needs no handling, a critical fault does not heal.
SEVERITIES: Final = (
    "warning",  # needs no action
    "user",  # the program caused it; a program that still makes progress continues
    "minor",  # heals when the command is restarted
    "minor+user",  # the same, and the program caused it: such faults never isolate the node
    "major",  # heals when the device is reset
    "critical",  # does not heal in this container
    "unknown",  # kills nothing
)
# MindCluster ("Process-Level Online Recovery") retries the step after faults of on-chip memory, whose faulty page the
# driver isolates, and of the network, once the communication library has given up.  All other faults need more.
RETRIES: Final = ("memory", "network")
RETRY: Final = "retry:"
SYNONYMS: Final = {"ignore": "warning"}  # the name in tables that were written for earlier versions


class FaultEntry(NamedTuple):
    """What the table has for a code.  `why` is for people and may be empty.  `retry`: the class of a fault that a retry
    of the step may cure, one of `RETRIES`, or empty."""

    severity: str
    why: str
    retry: str = ""


FaultTable = Mapping[str, FaultEntry]
UNKNOWN: Final = FaultEntry("unknown", "not in the table")


def parse(text: str) -> dict[str, FaultEntry]:
    """The entries of a table by code, as `normal` writes it.  ValueError names the line that is wrong."""
    found: dict[str, FaultEntry] = {}
    for number, line in enumerate(text.split("\n"), 1):
        parts = line.partition("#")[0].split(None, 2)
        if not parts:
            continue
        code, severity = normal(parts[0]), parts[1] if len(parts) > 1 else ""
        severity = SYNONYMS.get(severity, severity)
        if severity not in SEVERITIES:
            raise ValueError(f"line {number}: {severity!r} is not one of {', '.join(SEVERITIES)}")
        if code in found and found[code].severity != severity:
            raise ValueError(f"line {number}: {code} is already listed as {found[code].severity}")
        first, *others = parts[2].split() if len(parts) > 2 else [""]
        retry = first.removeprefix(RETRY) if first.startswith(RETRY) else ""
        if first.startswith(RETRY) and retry not in RETRIES:
            raise ValueError(f"line {number}: {first!r} is not one of {', '.join(RETRY + one for one in RETRIES)}")
        found[code] = FaultEntry(severity, " ".join(others if retry else [first, *others]), retry)
    return found


def normal(code: str) -> str:
    """The normal form of a code: an Xid as a number, an Ascend code in hexadecimal as its tools write it; other codes
    stay as they are."""
    bare = re.sub(r"^[\s\[]+|[\s\]]+$", "", code)
    digits = re.fullmatch(r"(?:0[xX])?([0-9A-Fa-f]+)", bare, re.ASCII)
    if digits is None:
        return bare
    return str(int(digits[1])) if re.fullmatch(r"[0-9]{1,3}", digits[1], re.ASCII) else digits[1].upper()


def look_up(table: FaultTable, code: str) -> FaultEntry:
    """The entry of a code, or `UNKNOWN`."""
    return table.get(normal(code), UNKNOWN)
