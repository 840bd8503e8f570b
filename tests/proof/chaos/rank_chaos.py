"""Many short jobs of ranks that can recover, with faults, each derived from a seed and an index: `--ranks`."""

import os
import shutil
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

from proof.chaos.described import last
from proof.chaos.play import Stopped
from proof.chaos.rank_check import check
from proof.chaos.rank_plan import RankJob, RankOutcome, job
from proof.chaos.rank_play import play
from support import measured

ENOUGH, ENOUGH_IN_GROUPS = 500, 150  # faults
FOUND = """\
- Where a rank ended with 0 while another one, whose collective had failed, waited for the next round, that one waited
  for ever. All ranks are restarted now (`tests/scenarios/a_rank_that_ends_well_while_the_others_need_it.txt`).
- Where all ranks were replaced and a new process hung before the first heartbeat of any of them, nobody noticed. The
  time to the first heartbeat counts again now, from the beginning of the round (`tests/cli/test_rank_faults.py`)."""
R = TypeVar("R")
TAIL = 40  # records of a job that failed


class RankResult(NamedTuple):
    """`outcome` is None if the harness itself failed; `wrong` has the reason."""

    job: RankJob
    outcome: RankOutcome | None
    wrong: list[str]


def one(made: RankJob, folder: Path, stop: threading.Event) -> RankResult | None:
    """One job; None if it was stopped.  The folder of a failed one is kept."""
    mine = folder / f"ranks-{made.seed}-{made.number}"
    try:
        outcome = play(made, mine, stop)
        wrong = check(outcome)
    except Stopped:
        return None
    except Exception:
        return RankResult(made, None, [f"the harness failed: {traceback.format_exc()}"])
    if not wrong:
        shutil.rmtree(mine, ignore_errors=True)
    return RankResult(made, outcome, wrong)


def run(seed: int, seconds: float, beside: int, folder: Path, members: int = 1) -> list[RankResult]:
    """Jobs side by side until the time is over; what failed is printed."""

    def play_one(index: int, stop: threading.Event) -> RankResult | None:
        result = one(job(seed, index, members), folder, stop)
        if result is not None and result.wrong:
            print(report(result, folder), flush=True)
        return result

    return side_by_side(play_one, seconds, beside)


def side_by_side(play_one: Callable[[int, threading.Event], R | None], seconds: float, beside: int) -> list[R]:
    """The results of as many jobs as the time allows; `play_one` gets the index of a job, and returns None if that was
    stopped."""
    until, stop, indexes, lock = time.monotonic() + seconds, threading.Event(), count(), threading.Lock()
    results: list[R] = []

    def work() -> None:
        while time.monotonic() < until and not stop.is_set():
            with lock:
                index = next(indexes)
            result = play_one(index, stop)
            if result is None:
                return
            results.append(result)

    with ThreadPoolExecutor(beside) as pool:
        try:
            for future in [pool.submit(work) for _ in range(beside)]:
                future.result()
        except KeyboardInterrupt:
            stop.set()
    return results


def report(result: RankResult, folder: Path) -> str:
    """A description of the job and of what was wrong."""
    made, outcome = result.job, result.outcome
    lines = [f"--- {made.name} {'failed' if result.wrong else 'passed'}", *(f"  {wrong}" for wrong in result.wrong)]
    lines += [f"  {made._replace(options=(), inner=(), outer=())}"]
    lines += [f"  {' '.join(f'--{name} {text}' for name, text in made.options)}"]
    lines += [f"  planned: {fault}" for fault in (*made.inner, *made.outer)]
    if outcome is not None:
        lines += [f"  happened: {one}" for one in outcome.struck]
        lines.append(f"  after {outcome.seconds:.1f} s")
        for number, side in enumerate(outcome.sides):
            lines.append(f"  ftrun {number}: code {side.code}")
            lines += last(side.records, TAIL)
        lines += [f"    | {line}" for line in outcome.stderr.splitlines()[-12:]]
    lines.append(f"  folder: {folder}; again: bin/prove chaos --ranks --members {made.members} --job {made.name}")
    return "\n".join(lines)


def summary(results: list[RankResult]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Faults by kind, those of them in a job that failed, and what the jobs recovered by."""
    happened, lost, recovered = Counter[str](), Counter[str](), Counter[str]()
    for result in results:
        if result.outcome is None:
            continue
        kinds = Counter(
            f"{one['kind']} ({one['moment']})" if "moment" in one else one["kind"] for one in result.outcome.struck
        )
        happened += kinds
        lost += kinds if result.wrong else Counter()
        # What one member of a group has proved, another one may have missed.
        records = [record for side in result.outcome.sides for record in side.records]
        proved = {(r["attempt"], r["round"], r["rung"]) for r in records if r["event"] == "recovered"}
        recovered.update(rung for _, _, rung in proved)
        recovered["tree"] += len({r["attempt"] for r in records if r["event"] == "restart"})
        recovered[f"ended with {result.outcome.code}"] += 1
    return happened, lost, recovered


def page(results: list[RankResult], seed: int, took: float, members: int) -> measured.Measured:
    """The published section."""
    happened, lost, recovered = summary(results)
    ends = {name: number for name, number in recovered.items() if name.startswith("ended")}
    jobs = sorted(result.outcome.seconds for result in results if result.outcome is not None)
    alone = members == 1
    what = "two to four ranks" if alone else f"{2 * members} ranks, two in each of {members} ftruns that form a group,"
    outside = "from outside, also at processes of ftrun"
    outside += ", at /dev/shm and through MindCluster's `reset.json`" if alone else " on each node"
    return measured.Measured(
        name="12-rank-chaos" if alone else "13-group-rank-chaos",
        title="Chaos of ranks that recover" if alone else "Chaos of ranks that recover in a group",
        made_by="bin/prove chaos --ranks" + ("" if alone else f" --members {members}"),
        before=(
            f"The result is {len(results):,} short jobs of {what} with {happened.total():,} faults, of which "
            f"{lost.total():,} were mishandled, in {took / 60:.0f} minutes with seed {seed}, on a machine with a load "
            f"of {os.getloadavg()[2]:.0f}. The ranks add numbers over TCP in each step and keep snapshots; some have "
            "worker processes, or `except Exception` around the step. The faults strike in a step, within `keep`, "
            f"`restore`, the leaving of a round and the beginning of the next, or {outside}. Options, faults and "
            "moments follow from the seed and the index of the job. The median duration of a job is "
            f"{jobs[len(jobs) // 2]:.1f} s.",
            f"There were {recovered['retry']:,} retries, {recovered['rank']:,} replacements of ranks and "
            f"{recovered['tree']:,} restarts of all ranks. The jobs {_and(ends)}; those that did not end with 0 had "
            "used up their restarts, or had `failure` not in `--restart-on`.",
            "After each job these conditions are checked: each value after each step, and the values at the end, are "
            "those of a run without faults; no step of a round is done after a step of a later one; who was not "
            "replaced has kept its process; each rung is permitted and follows a finer one; nothing is recovered "
            "without a fault; the exit code is that of the records and explained by the restart budget; no process "
            "and no folder is left. A rank that is stopped after its training is over is continued: nobody watches it "
            "any more.",
        ),
        head=("fault (moment)", "injected", "mishandled"),
        rows=(
            *((kind, f"{happened[kind]:,}", f"{lost[kind]:,}") for kind in sorted(happened)),
            ("**total**", f"**{happened.total():,}**", f"**{lost.total():,}**"),
        ),
        after=("These defects were found by runs of it. All are fixed, each with a test:", FOUND) if alone else (),
    )


def _and(ends: dict[str, int]) -> str:
    return ", ".join(f"{name} ({number:,})" for name, number in sorted(ends.items()))
