"""The fault tables of core/rules/fault_codes.py, read from their files."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ftrun.accelerators.table import BY_NAME
from ftrun.core.rules.fault_codes import Table, parse
from ftrun.host import safe_files

LONGEST: Final = 1 << 20  # bytes of a site's file


def built_in(vendor: str) -> Table:
    return parse(Path(BY_NAME[vendor].faults).read_text(encoding="utf-8"))


def load(vendor: str, site: str, problem: Callable[[str], None]) -> Table:
    """The table of a vendor, in which the entries of a site's file, if there is one, replace the built-in ones.  A file
    that is unreadable or malformed is a problem and is not used."""
    table = dict(built_in(vendor))
    try:
        content = safe_files.read_bounded(site, LONGEST) if site else b""
        for code, entry in parse(content.decode("utf-8")).items():
            table[code] = entry if entry.why else entry._replace(why=f"listed in {site}")
    except (OSError, ValueError) as error:
        problem(f"the fault table {site} is not used: {error}")
    return table
