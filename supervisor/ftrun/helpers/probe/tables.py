"""The tables of `core.faults`, from their files."""

import os
from pathlib import Path
from typing import Final

from ftrun.accelerators.table import BY_NAME
from ftrun.core.faults import Entry, parse
from ftrun.host import whole

LONGEST: Final = 1 << 20  # bytes of a site's file


def ours(vendor: str) -> dict[str, Entry]:
    """The one that comes with ftrun; KeyError for a vendor that is not in `accelerators.table`."""
    return parse(Path(BY_NAME[vendor].faults).read_text(encoding="utf-8"))


def site(path: str) -> dict[str, Entry]:
    """The one of a site, which wins over ours.  OSError or ValueError where it cannot be read or is none."""
    table = parse(whole.read(os.open(path, whole.FLAGS), LONGEST).decode("utf-8"))
    return {code: entry if entry.why else Entry(entry.severity, f"as {path} says") for code, entry in table.items()}
