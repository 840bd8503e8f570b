"""Many short jobs of ranks that can recover, with faults: `--ranks`."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from proof.chaos.rank_check import check
from proof.chaos.rank_plan import RankJob, job
from proof.chaos.rank_play import play
from proof.chaos.series import HEAD, Form, Result, last, options, output, table
from support import measured

TAIL = 40  # records of a job that failed


def describe(made: RankJob, outcome: Any) -> Iterator[str]:
    yield from (f"{made._replace(options=(), inner=(), outer=())}", options(made.options))
    yield from (f"planned: {fault}" for fault in (*made.inner, *made.outer))
    if outcome is not None:
        yield from (f"happened: {one}" for one in outcome.struck)
        yield f"after {outcome.seconds:.1f} s, code {outcome.code}"
        yield from (*last(outcome.records, TAIL), *output(outcome.stderr, 12))


def tally(results: Sequence[Result]) -> tuple[Counter[str], Counter[str], Counter[str]]:
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
        records = result.outcome.records
        recovered.update(r["rung"] for r in records if r["event"] == "recovered")
        recovered["tree"] += sum(r["event"] == "restart" for r in records)
        recovered[f"ended with {result.outcome.code}"] += 1
    return happened, lost, recovered


def page(results: list[Result], seed: int, took: float) -> measured.Measured:
    """The published section."""
    happened, lost, recovered = tally(results)
    ends = {name: number for name, number in recovered.items() if name.startswith("ended")}
    jobs = sorted(result.outcome.seconds for result in results if result.outcome is not None)
    return measured.Measured(
        name="12-rank-chaos",
        title="Chaos of ranks that recover",
        made_by="bin/prove chaos --ranks",
        before=(
            f"The result is {len(results):,} short jobs of two to four ranks with {happened.total():,} faults, of "
            f"which {lost.total():,} were mishandled, in {took / 60:.0f} minutes with seed {seed}, on a machine with a "
            f"load of {os.getloadavg()[2]:.0f}. The ranks add numbers over TCP in each step and keep snapshots; some "
            "have worker processes, or `except Exception` around the step. The faults strike in a step, within `keep`, "
            "`restore`, the leaving of a round and the beginning of the next, or from outside, also at processes of "
            "ftrun, at /dev/shm and through MindCluster's `reset.json`. Options, faults and moments follow from the "
            f"seed and the index of the job. The median duration of a job is {jobs[len(jobs) // 2]:.1f} s.",
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
        head=HEAD,
        rows=table(happened, lost),
    )


def _and(ends: dict[str, int]) -> str:
    return ", ".join(f"{name} ({number:,})" for name, number in sorted(ends.items()))


FORM = Form("--ranks", lambda: None, job, play, check, describe, tally, page, enough=500)
