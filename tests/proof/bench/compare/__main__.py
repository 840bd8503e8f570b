"""Compare ftrun with the programs that people would use in its place: bin/prove bench [NAME]... [--short] [--save]"""

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
    "15-started-ranks": "started_ranks",
    "30-heartbeat": "heartbeat",
    "40-hang": "hang",
    "55-warm-starts": "warm_starts",
    "57-recovered-ranks": "recovered_ranks",
    "60-survivors": "survivors",
    "70-teardown": "teardown",
    "95-lost-nodes": "lost_nodes",
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bin/prove bench", description="Measure ftrun and similar programs in turn, in one run."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"figures to measure: {', '.join(FIGURES)} [all]")
    parser.add_argument(
        "--short", action="store_true", help="take few samples, as a test of the benchmark; save nothing"
    )
    parser.add_argument("--save", action="store_true", help="save to docs/measured/benchmarks also with --short")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in FIGURES]
    if unknown:
        print(f"there is no figure {unknown[0]!r}; the figures are: {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # cleans up as after Ctrl-C
    for name in given.names or FIGURES:
        figure = cast(Figure, importlib.import_module(f"proof.bench.compare.{FIGURES[name]}"))
        began = time.monotonic()
        found = figure.measure(given.short)
        print(table(found), f"{name}: {time.monotonic() - began:.0f} s", sep="\n", end="\n\n", flush=True)
        if given.save or not given.short:
            save("benchmarks", found)
    return 0


def table(found: Measured) -> str:
    """The result as text for a terminal."""
    rows = [found.head, *found.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(found.head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([found.title, "", *lines, "", *found.after])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
