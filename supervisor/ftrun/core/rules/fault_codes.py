"""Device faults: what a vendor's code means for the job.

The tables are data, `accelerators/faults/<vendor>.txt`, and a site's own file wins over them.  A line is `CODE SEVERITY
words`; a `#` begins a comment.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

# ModelArts ("In-Place Recovery", definition of self-healable faults): faults of minor or major severity usually heal
# in place, a warning needs no handling, a critical fault does not heal.
SEVERITIES: Final = (
    "warning",  # nothing is to be done
    "user",  # the program caused it; a program that still makes progress goes on
    "minor",  # heals when the work is started again
    "minor+user",  # the same, and the program caused it: no number of them isolates the node
    "major",  # heals when the device is reset
    "critical",  # does not heal in this container
    "unknown",  # kills nothing
)
SYNONYMS: Final = {"ignore": "warning"}  # the name that tables written for earlier versions use


class FaultEntry(NamedTuple):
    """`why` is for a person, and may be empty."""

    severity: str
    why: str


Table = Mapping[str, FaultEntry]
UNKNOWN: Final = FaultEntry("unknown", "not in the table")


def parse(text: str) -> dict[str, FaultEntry]:
    """By code, as `normal` writes it.  ValueError names the line that is wrong."""
    found: dict[str, FaultEntry] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split(None, 2)
        if not words:
            continue
        code, severity = normal(words[0]), words[1] if len(words) > 1 else ""
        severity = SYNONYMS.get(severity, severity)
        if severity not in SEVERITIES:
            raise ValueError(f"line {number}: {severity!r} is none of {', '.join(SEVERITIES)}")
        if code in found and found[code].severity != severity:
            raise ValueError(f"line {number}: {code} is {found[code].severity} already")
        found[code] = FaultEntry(severity, " ".join(words[2].split()) if len(words) > 2 else "")
    return found


def normal(code: str) -> str:
    """One form of a code: an Xid as a number, an Ascend code in hexadecimal as its tools write it; other words stay."""
    bare = re.sub(r"^[\s\[]+|[\s\]]+$", "", code)
    digits = re.fullmatch(r"(?:0[xX])?([0-9A-Fa-f]+)", bare, re.ASCII)
    if digits is None:
        return bare
    return str(int(digits[1])) if re.fullmatch(r"[0-9]{1,3}", digits[1], re.ASCII) else digits[1].upper()


def look_up(table: Table, code: str) -> FaultEntry:
    """`unknown` for what is not in it."""
    return table.get(normal(code), UNKNOWN)
