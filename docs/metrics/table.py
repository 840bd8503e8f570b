"""Puts the list of metrics into metrics.md: `python docs/metrics/table.py`.  A test compares the two."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "supervisor"), str(ROOT / "hooks")]

from ftrun.helpers.metrics.catalogue import METRICS  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- made by `python docs/metrics/table.py` -->\n", "<!-- end -->\n"


def page(text: str) -> str:
    """The same page, with the list as it is now."""
    for metric in METRICS:
        kind = {"total": "counter", "info": "info"}.get(metric.name.rpartition("_")[2], "gauge")
        assert kind == metric.kind, f"{metric.name}: the page says that the end of the name shows the type"
    items = [f"- `{one.name}{_labels(one.labels)}`: {one.help}" for one in METRICS]
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(items) + "\n\n" + END + rest.split(END)[1]


def _labels(names: tuple[str, ...]) -> str:
    return f"{{{', '.join(names)}}}" if names else ""


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
