"""What the report of a job that failed shows of the records of an ftrun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HIDDEN = ("schema", "time", "mono", "event", "command")


def last(records: Sequence[dict[str, Any]], most: int) -> list[str]:
    """A line for each of the last records: when, which event, and its own fields."""
    lines = []
    for record in records[-most:]:
        fields = {name: value for name, value in record.items() if name not in HIDDEN}
        lines.append(f"    {record.get('mono')} {record.get('event')} {str(fields)[:300]}")
    return lines
