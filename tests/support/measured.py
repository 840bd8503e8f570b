"""The result of a benchmark or stress test, as a file: `docs/measured/<page>/<name>.json`."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HOUSE = Path(__file__).resolve().parents[2]
RESULTS = HOUSE / "docs" / "measured"


class Measured(NamedTuple):
    """One result.

    `name` orders the results (`10-first-instruction`), `made_by` is the command that makes it anew, `before` and
    `after` are paragraphs in Markdown around the table; the cells are Markdown, too."""

    name: str
    title: str
    made_by: str
    before: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    after: tuple[str, ...] = ()


def save(page: str, found: Measured, folder: Path = RESULTS) -> Path:
    """Write it for `page` (benchmarks, reliability or scale), with the day, the commit and the machine."""
    path = folder / page / f"{found.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = found._asdict() | {
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "machine": machine(),
    }
    path.write_text(as_text(content))
    return path


def as_text(content: dict[str, Any]) -> str:
    """As JSON, with a line for each row of the table."""
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in content["rows"])
    whole = json.dumps(content | {"rows": []}, indent=1, ensure_ascii=False)
    return whole.replace('"rows": []', f'"rows": [\n{rows}\n ]', 1) + "\n"


def spread(samples: Sequence[float], digits: int = 3, unit: str = "") -> str:
    """`median (10th to 90th percentile)`, with that many significant digits."""
    low, high = (percentile(samples, share) for share in (0.1, 0.9))
    middle = statistics.median(samples)
    return f"{short(middle, digits)}{unit} ({short(low, digits)} to {short(high, digits)})"


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample that `share` of them are not above."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def short(number: float, digits: int = 3) -> str:
    """Without an exponent, and with significant digits only."""
    if number == 0:
        return "0"
    text = f"{number:.{digits}g}"
    return f"{float(text):,.0f}" if abs(number) >= 10 ** (digits - 1) else f"{float(text):g}"


def commit() -> str:
    """The commit of the checkout, with `+` if it is changed; empty outside of git."""
    git = ["git", "-C", str(HOUSE)]
    done = subprocess.run([*git, "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine() -> str:
    """Cores, kernel and Python, in one line."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, Linux {platform.release().split('-')[0]}, CPython {platform.python_version()}"
