"""The tables of `core.faults`, from their files."""

import os
from pathlib import Path
from typing import Final

from ftrun.accelerators.table import BY_NAME
from ftrun.core.rules.fault_codes import FaultEntry, parse
from ftrun.host import bounded_read

LONGEST: Final = 1 << 20  # bytes of a site's file


def ours(vendor: str) -> dict[str, FaultEntry]:
    """The one that comes with ftrun; KeyError for a vendor that is not in `accelerators.table`."""
    return parse(Path(BY_NAME[vendor].faults).read_text(encoding="utf-8"))


def site(path: str) -> dict[str, FaultEntry]:
    """The one of a site, which wins over ours.  OSError or ValueError where it cannot be read or is none."""
    table = parse(bounded_read.read(os.open(path, bounded_read.FLAGS), LONGEST).decode("utf-8"))
    return {
        code: entry if entry.why else FaultEntry(entry.severity, f"as {path} says") for code, entry in table.items()
    }
