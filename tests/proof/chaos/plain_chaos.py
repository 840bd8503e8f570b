"""Many short jobs of one ftrun with faults of everything around it."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from proof.chaos.check import check
from proof.chaos.plan import Job, job
from proof.chaos.play import play
from proof.chaos.series import HEAD, Form, Result, last, options, output, table
from proof.chaos.world import refusal
from support import measured

TAIL = 25  # records of a job that failed
LENIENT = """\
The following is accepted: replies to requests, and messages of helpers, after `ended`; exit code 2 for a start while
the stopped container still holds the lock; without a free file descriptor, 125 with an error message, or no termination
message; the beat folder of an ftrun that was killed before its command was started; the loss of a checkpoint that was
recorded less than 20 ms before ftrun was killed; a hang where the harness itself was delayed by half a second. With a
full or read-only run dir neither the counts nor the replay are checked. Devices are those of a fake driver library. An
Xid in the moment in which a start ends, or the probe is struck, need not be recorded. Groups have
a plan of their own (`bin/prove chaos --groups`)."""


def describe(made: Job, outcome: Any) -> Iterator[str]:
    yield from (f"{made.mode}, {made.place}, {made.training}", options(made.options))
    yield from (f"planned: {fault}" for fault in made.faults)
    if outcome is not None:
        for s in outcome.injected:
            yield f"injected at {s.at:.3f} into ftrun {s.run}, start {s.attempt}: {s.fault}"
        for number, run in enumerate(outcome.runs):
            yield f"ftrun {number}: code {run.code}{', killed by the chaos' if run.killed else ''}"
            yield from (*last(run.records, TAIL), *output(run.stderr, 12))


def tally(results: Sequence[Result]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    injected, lost = Counter[str](), Counter[str]()
    for result in results:
        if result.outcome is None:
            continue
        kinds = Counter(s.fault.kind for s in result.outcome.injected)
        kinds.update(f"training {r['does']}" for r in result.outcome.attempts if "does" in r)
        kinds.update(f"beside: {kind}" for kind in result.job.training.beside)
        kinds.update(["checkpoint rewritten in place"] * result.job.training.rewrites)
        kinds["start with a changed uptime"] += (len(result.outcome.runs) - 1) * (result.job.place == "other uptime")
        injected += kinds
        lost += kinds if result.wrong else Counter()
    return injected, lost, Counter()


def page(results: list[Result], seed: int, took: float) -> measured.Measured:
    """The published section."""
    injected, lost, _ = tally(results)
    outcome = [result.outcome for result in results if result.outcome is not None]
    starts = sum(len([r for r in one.attempts if "resumed" in r]) for one in outcome)
    runs = sum(len(one.runs) for one in outcome)
    median = statistics.median(one.seconds for one in outcome)
    return measured.Measured(
        name="10-chaos",
        title="Chaos",
        made_by="bin/prove chaos",
        before=(
            f"The result is {len(results):,} short jobs with {injected.total():,} faults, of which {lost.total():,} "
            f"were mishandled, in {took / 60:.0f} minutes with seed {seed}. A job is a small training under ftrun, as "
            "PID 1 of a PID namespace or as a subreaper; its options, children and faults are random, and follow from "
            f"the seed and the index of the job. The median duration of a job is {median:.1f} s. There were {runs:,} "
            f"runs of ftrun and {starts:,} starts of the command.",
            "After each job these conditions are checked: no process and no beat folder is left; each ftrun has exited "
            "once, with the exit code of its verdict; the records are complete and in order, and contain the end of "
            "each start; the command has seen each start number once; no start resumed below a recorded checkpoint; no "
            "start ended without a fault that explains it; and the pure core, given the events on which ftrun had "
            "decided, comes to the same records. The faults of a job count as mishandled if a condition does not hold.",
        ),
        head=HEAD,
        rows=table(injected, lost),
        after=(LENIENT,),
    )


FORM = Form("", refusal, job, play, check, describe, tally, page, enough=1_000)
