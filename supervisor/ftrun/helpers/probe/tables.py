"""The fault tables of core/rules/fault_codes.py, read from their files."""

from pathlib import Path
from typing import Final

from ftrun.accelerators.table import BY_NAME
from ftrun.core.rules.fault_codes import FaultEntry, parse
from ftrun.host import safe_files

LONGEST: Final = 1 << 20  # bytes of a site's file


def built_in(vendor: str) -> dict[str, FaultEntry]:
    """The table that comes with ftrun; KeyError for a vendor that is not in `accelerators.table`."""
    return parse(Path(BY_NAME[vendor].faults).read_text(encoding="utf-8"))


def site(path: str) -> dict[str, FaultEntry]:
    """The table of a site, whose entries replace the built-in ones.  OSError or ValueError if it is unreadable or
    malformed."""
    table = parse(safe_files.read_bounded(path, LONGEST).decode("utf-8"))
    return {
        code: entry if entry.why else FaultEntry(entry.severity, f"as {path} says") for code, entry in table.items()
    }
