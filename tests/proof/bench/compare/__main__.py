"""ftrun beside what people would use instead:  bin/prove bench [NAME]... [--short] [--save]"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from typing import cast

from proof.bench.compare.kit import Figure
from support.measured import Measured, save

FIGURES = {
    "10-first-instruction": "first_instruction",
    "20-footprint": "footprint",
    "30-heartbeat": "heartbeat",
    "40-hang": "hang",
    "50-again": "again",
    "60-survivors": "survivors",
    "70-teardown": "teardown",
    "80-coordinator": "coordinator",
    "90-known-failures": "known_failures",
}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bin/prove bench", description="ftrun beside its peers, in turn in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which figures: {', '.join(FIGURES)}; default all")
    parser.add_argument("--short", action="store_true", help="few samples, to see that it works; saves nothing")
    parser.add_argument("--save", action="store_true", help="also with --short: to docs/measured/benchmarks")
    given = parser.parse_args(words)
    unknown = [name for name in given.names if name not in FIGURES]
    if unknown:
        print(f"no figure {unknown[0]!r}; there are: {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # leaves nothing behind, as at Ctrl-C
    for name in given.names or FIGURES:
        figure = cast(Figure, importlib.import_module(f"proof.bench.compare.{FIGURES[name]}"))
        began = time.monotonic()
        found = figure.measure(given.short)
        print(table(found), f"{name}: {time.monotonic() - began:.0f} s", sep="\n", end="\n\n", flush=True)
        if given.save or not given.short:
            save("benchmarks", found)
    return 0


def table(found: Measured) -> str:
    """As text."""
    rows = [found.head, *found.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(found.head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([found.title, "", *lines, "", *found.after])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
