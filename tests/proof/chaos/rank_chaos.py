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
