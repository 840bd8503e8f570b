"""Puts the table of metrics into metrics.md: `python docs/metrics/table.py`.  A test compares the two."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "supervisor"), str(ROOT / "hooks")]

from ftrun.helpers.metrics.catalogue import table  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- made by `python docs/metrics/table.py` -->\n", "<!-- end -->\n"


def page(text: str) -> str:
    """The same page, with the table as it is now."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(table()) + "\n\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
