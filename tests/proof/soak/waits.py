"""Run each row of `test_outside_waits.py` many times, as a user would: with the real limits and waits of minutes.

    nice bin/prove waits --repeats 50 --publish

A healthy job waits for something outside the job; a run fails if ftrun reports a hang, restarts it, or ends with an
exit code of its own.
The runs sleep nearly all the time, so many run at once; their starts are spread, because a start needs the processor.
The rows take turns, so that a program that is interrupted has run each of them equally often.  `--out` gets one line of
JSON for each run, after those that are there; `--publish` makes the section of docs/reliability.md from all of them.
"""

import argparse
import itertools
import json
import signal
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.measured import Measured, save
from test_outside_waits import NEEDS, ROW_NAMES, meet, serving

Result = dict[str, Any]
REASONS = {
    "waits for a timer": "a timer",
    "it works: ": "bytes read or written",
    "it exchanges": "traffic with a process outside the job",
    "/checkpoint (": "a file",
    "outside the job": "a connection to a process outside the job",
    "it moved": "a step in the meantime",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50, metavar="N", help="of each row [%(default)s]")
    parser.add_argument("--seconds", type=float, default=100.0, metavar="S", help="that each wait takes [%(default)s]")
    parser.add_argument("--at-once", type=int, default=30, metavar="N", help="runs at the same time [%(default)s]")
    parser.add_argument("--pause", type=float, default=4.5, metavar="S", help="between two starts [%(default)s]")
    parser.add_argument("--rows", nargs="*", choices=ROW_NAMES, default=ROW_NAMES, metavar="ROW", help="[all]")
    parser.add_argument("--publish", action="store_true", help="write docs/measured")
    parser.add_argument("--out", type=Path, default=Path("waits.jsonl"), metavar="FILE", help="[%(default)s]")
    given = parser.parse_args()
    rows = [row for row in given.rows if (lacking := NEEDS.get(row, str)()) == "" or print(f"{row}: {lacking}")]
    stop = threading.Event()
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, lambda *_: stop.set())
    results: list[Result] = []
    slots = threading.Semaphore(given.at_once)
    with (
        serving() as port,
        tempfile.TemporaryDirectory(prefix="waits-") as folder,
        given.out.open("a") as out,
        ThreadPoolExecutor(given.at_once) as pool,
    ):

        def one(number: int, row: str) -> None:
            try:
                result = measure(row, Path(folder) / str(number), port, given.seconds)
                results.append(result)
                out.write(json.dumps(result) + "\n")
                out.flush()
            finally:
                slots.release()

        for number, (_, row) in enumerate(itertools.product(range(given.repeats), rows)):
            slots.acquire()
            if stop.wait(given.pause):
                break
            pool.submit(one, number, row)
    wrong = [result for result in results if result["wrong"]]
    print(*(result["wrong"] for result in wrong), f"{len(wrong)} of {len(results)} killed", sep="\n")
    if given.publish:
        runs = [json.loads(line) for line in given.out.read_text().splitlines()]
        print(save("reliability", section(runs, given.seconds)))
    return 1 if wrong else 0


def measure(row: str, folder: Path, port: int, seconds: float) -> Result:
    """One run.  `wrong` is empty where nothing ended it; `cleared` has the reasons why its suspicions were cleared."""
    begun = time.monotonic()
    try:
        wrong, run = meet(row, folder, port, seconds)
        cleared = [str(record["why"]) for record in run.named("cleared")]
        limits = [record["limit"] for record in run.named("learned")]
    except Exception as error:  # a run that did not end in time is a result as well
        wrong, cleared, limits = f"{row}: {error!r}", [], []
    return {
        "row": row,
        "wrong": wrong,
        "suspected": len(cleared),
        "cleared": cleared,
        "limits": limits,
        "took": round(time.monotonic() - begun, 1),
    }


def section(results: list[Result], seconds: float) -> Measured:
    before = (
        "The jobs are healthy and run without any option of ftrun: a hundred quick steps, from which ftrun learns a "
        f"timeout of 30 s, then a wait of {seconds:g} s for something outside the job, then further steps. A job "
        "counts as killed if ftrun reports a hang or restarts it. A suspicion that evidence clears does no harm.",
    )
    head = ("the job waits for", "runs", "killed", "suspicions per run, median", "evidence that cleared them")
    rows = []
    for row in dict.fromkeys(result["row"] for result in results):
        own = [result for result in results if result["row"] == row]
        suspected = statistics.median(result["suspected"] for result in own)
        killed = sum(bool(result["wrong"]) for result in own)
        why = ", ".join(sorted({reason(why) for result in own for why in result["cleared"]}))
        rows.append((row, f"{len(own)}", f"{killed}", f"{suspected:g}", why))
    suspicions, killed = sum(result["suspected"] for result in results), sum(bool(r["wrong"]) for r in results)
    after = (f"In {len(results):,} runs there were {suspicions:,} suspicions, and {killed} jobs were killed.",)
    return Measured(
        "25-waits", "Waits for something outside the job", "bin/prove waits --publish", before, head, tuple(rows), after
    )


def reason(why: str) -> str:
    """The kind of evidence that cleared a suspicion."""
    return next((kind for part, kind in REASONS.items() if part in why), why)


if __name__ == "__main__":
    sys.exit(main())
