"""Many short jobs of ranks that can recover, with faults, each derived from a seed and an index: `--ranks`."""

import shutil
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import NamedTuple

from proof.chaos.play import Stopped
from proof.chaos.rank_check import check
from proof.chaos.rank_plan import RankJob, RankOutcome, job
from proof.chaos.rank_play import play
from support import measured

ENOUGH = 500  # faults
FOUND = """\
- Where a rank ended with 0 while another one, whose collective had failed, waited for the next round, that one waited
  for ever. All ranks are restarted now (`tests/scenarios/a_rank_that_ends_well_while_the_others_need_it.txt`)."""
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


def run(seed: int, seconds: float, beside: int, folder: Path, first: int = 0) -> list[RankResult]:
    """Jobs side by side until the time is over; what failed is printed."""
    until, stop, indexes, lock = time.monotonic() + seconds, threading.Event(), count(first), threading.Lock()
    results: list[RankResult] = []

    def work() -> None:
        while time.monotonic() < until and not stop.is_set():
            with lock:
                index = next(indexes)
            result = one(job(seed, index), folder, stop)
            if result is None:
                return
            results.append(result)
            if result.wrong:
                print(report(result, folder), flush=True)

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
        lines.append(f"  code {outcome.code} after {outcome.seconds:.1f} s")
        for record in outcome.records[-TAIL:]:
            fields = {k: v for k, v in record.items() if k not in ("schema", "time", "mono", "event", "command")}
            lines.append(f"    {record.get('mono')} {record.get('event')} {str(fields)[:300]}")
        lines += [f"    | {line}" for line in outcome.stderr.splitlines()[-12:]]
    lines.append(f"  folder: {folder}; again: bin/prove chaos --ranks --job {made.name}")
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
        for record in result.outcome.records:
            if record["event"] == "recovered":
                recovered[record["rung"]] += 1
            elif record["event"] == "restart":
                recovered["tree"] += 1
        recovered[f"ended with {result.outcome.code}"] += 1
    return happened, lost, recovered


def page(results: list[RankResult], seed: int, took: float) -> measured.Measured:
    """The published section."""
    happened, lost, recovered = summary(results)
    ends = {name: number for name, number in recovered.items() if name.startswith("ended")}
    jobs = sorted(result.outcome.seconds for result in results if result.outcome is not None)
    return measured.Measured(
        name="12-rank-chaos",
        title="Chaos of ranks that recover",
        made_by="bin/prove chaos --ranks",
        before=(
            f"The result is {len(results):,} short jobs of two to four ranks with {happened.total():,} faults, of "
            f"which {lost.total():,} were mishandled, in {took / 60:.0f} minutes with seed {seed}. The ranks add "
            "numbers over TCP in each step and keep snapshots; the faults strike in a step, within `keep`, `restore`, "
            "the leaving of a round and the beginning of the next, or from outside, also at processes of ftrun and "
            "through MindCluster's `reset.json`. Options, faults and moments follow from the seed and the index of the "
            f"job. The median duration of a job is {jobs[len(jobs) // 2]:.1f} s.",
            f"There were {recovered['retry']:,} retries, {recovered['rank']:,} replacements of ranks and "
            f"{recovered['tree']:,} restarts of all ranks. The jobs {_and(ends)}; those that did not end with 0 had "
            "used up their restarts, or had `failure` not in `--restart-on`.",
            "After each job these conditions are checked: each value after each step, and the values at the end, are "
            "those of a run without faults; no step of a round is done after a step of a later one; who was not "
            "replaced has kept its process; each rung is permitted and follows a finer one; nothing is recovered "
            "without a fault; the exit code is that of the records and explained by the restart budget; no process "
            "and no folder is left.",
        ),
        head=("fault (moment)", "injected", "mishandled"),
        rows=(
            *((kind, f"{happened[kind]:,}", f"{lost[kind]:,}") for kind in sorted(happened)),
            ("**total**", f"**{happened.total():,}**", f"**{lost.total():,}**"),
        ),
        after=("These defects were found by runs of it, this one included. All are fixed, each with a test:", FOUND),
    )


def _and(ends: dict[str, int]) -> str:
    return ", ".join(f"{name} ({number:,})" for name, number in sorted(ends.items()))
