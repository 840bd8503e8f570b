"""Many short jobs with faults, each derived from a seed and an index: `bin/prove chaos`."""

import argparse
import queue
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from proof.chaos import coordinator_chaos, group_chaos, group_faults, rank_chaos, rank_plan
from proof.chaos.check import check
from proof.chaos.described import last
from proof.chaos.plan import Job, Outcome, job
from proof.chaos.play import Stopped, play
from proof.chaos.world import refusal
from support import hosts, measured

ENOUGH = 1_000  # faults
TAIL = 25  # records of a job that failed
FOUND = """\
- A checkpoint on record could be missing from `state.json` if ftrun was killed within the next 0.2 s; the next start
  resumed from an older checkpoint.
- With `/dev/shm` full, a checkpoint was reported without its path, and the path of the previous one was forgotten.
- A state store that was killed shortly before the end did not receive the verdict after its restart, and ftrun waited
  for it in vain.
- Without a free file descriptor ftrun could not read its process tree: it ended with 1 and a traceback, and left
  daemons behind.
- The path of a checkpoint was stored by rank: a forked child that saved like its parent, but at a lower step, replaced
  the path of the parent.
- A signal in the last milliseconds, after the interpreter had removed its signal handlers, became the exit status in
  place of the verdict."""

LENIENT = """\
The following is accepted: replies to requests, and messages of helpers, after `ended`; exit code 2 for a start while
the stopped container still holds the lock; without a free file descriptor, 125 with an error message, or no termination
message; the beat folder of an ftrun that was killed before its command was started; the loss of a checkpoint that was
recorded less than 20 ms before ftrun was killed; a hang where the harness itself was delayed by half a second. With a
full or read-only run dir neither the counts nor the replay are checked. Devices are those of a fake driver library. An
Xid in the moment in which a start ends, or the probe is struck, need not be recorded. Groups have
a plan of their own (`bin/prove chaos --groups`)."""


class Result(NamedTuple):
    """`outcome` is None if the harness itself failed; `wrong` has the reason."""

    job: Job
    outcome: Outcome | None
    wrong: list[str]


class Chaos:
    """Runs jobs side by side until `seconds` are over; `stop` ends it early.  The folder of a failed job is kept."""

    def __init__(self, seed: int, seconds: float, beside: int, folder: Path) -> None:
        self.seed, self.beside, self.folder = seed, beside, folder
        self.until, self.stop = time.monotonic() + seconds, threading.Event()
        self.results: list[Result] = []
        self._indexes = iter(range(1 << 30))
        self._lock = threading.Lock()

    def run(self) -> list[Result]:
        done: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        workers = [threading.Thread(target=self._work, args=(done,)) for _ in range(self.beside)]
        for worker in workers:
            worker.start()
        running = len(workers)
        while running:
            try:
                result = done.get()
            except KeyboardInterrupt:
                self.stop.set()
                continue
            if result is None:
                running -= 1
                continue
            self.results.append(result)
            if result.wrong:
                print(report(result, self.folder), flush=True)
        return self.results

    def _work(self, done: "queue.SimpleQueue[Result | None]") -> None:
        try:
            while time.monotonic() < self.until and not self.stop.is_set():
                with self._lock:
                    index = next(self._indexes)
                result = one(job(self.seed, index), self.folder, self.stop)
                if result is not None:
                    done.put(result)
        finally:
            done.put(None)


def one(made: Job, folder: Path, stop: threading.Event) -> Result | None:
    """One job; None if it was stopped."""
    mine = folder / f"{made.seed}-{made.number}"
    try:
        outcome = play(made, mine, stop)
        wrong = check(outcome)
    except Stopped:
        shutil.rmtree(mine, ignore_errors=True)
        return None
    except Exception:
        return Result(made, None, [f"the harness failed: {traceback.format_exc()}"])
    if not wrong:
        shutil.rmtree(mine, ignore_errors=True)
    return Result(made, outcome, wrong)


def report(result: Result, folder: Path) -> str:
    """A description of the job and its failure."""
    made, outcome = result.job, result.outcome
    lines = [f"--- {made.name} {'failed' if result.wrong else 'passed'}", *(f"  {wrong}" for wrong in result.wrong)]
    lines += [f"  {made.mode}, {made.place}, {made.training}", f"  {' '.join(f'--{n} {t}' for n, t in made.options)}"]
    lines += [f"  planned: {fault}" for fault in made.faults]
    if outcome is not None:
        lines += [
            f"  injected at {s.at:.3f} into ftrun {s.run}, start {s.attempt}: {s.fault}" for s in outcome.injected
        ]
        for number, run in enumerate(outcome.runs):
            lines.append(f"  ftrun {number}: code {run.code}{', killed by the chaos' if run.killed else ''}")
            lines += last(run.records, TAIL)
            lines += [f"    | {line}" for line in run.stderr.splitlines()[-12:]]
    lines.append(f"  folder: {folder / f'{made.seed}-{made.number}'}; again: bin/prove chaos --job {made.name}")
    return "\n".join(lines)


def counts(results: Sequence[Result]) -> tuple[Counter[str], Counter[str]]:
    """How many faults were injected, and how many of those were in a job that failed, by kind."""
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
    return injected, lost


def page(results: Sequence[Result], seed: int, took: float) -> measured.Measured:
    """The published section."""
    injected, lost = counts(results)
    outcome = [result.outcome for result in results if result.outcome is not None]
    starts = sum(len([r for r in one.attempts if "resumed" in r]) for one in outcome)
    runs = sum(len(one.runs) for one in outcome)
    median = statistics.median(one.seconds for one in outcome)
    rows = [(kind, f"{injected[kind]:,}", f"{lost[kind]:,}") for kind in sorted(injected)]
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
            "start ended without a fault that explains it; and the pure core, given the same records, produces the "
            "same records and the same verdict. The faults of a job count as mishandled if a condition does not hold.",
        ),
        head=("fault", "injected", "mishandled"),
        rows=(*rows, ("**total**", f"**{injected.total():,}**", f"**{lost.total():,}**")),
        after=(
            "These defects were found by earlier runs. All are fixed, each with a test "
            "(`tests/proof/chaos/test_chaos_found.py`):",
            FOUND,
            LENIENT,
        ),
    )


def seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bin/prove chaos", description=__doc__)
    parser.add_argument("--for", dest="lasting", type=seconds, default="30m", metavar="DUR", help="90s, 30m, 2h [30m]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 10**6), help="[a random one]")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="side by side [4]")
    parser.add_argument("--job", metavar="SEED:INDEX", help="run only this job again")
    parser.add_argument("--ranks", action="store_true", help="jobs of two to four ranks that can recover")
    parser.add_argument("--members", type=int, default=1, metavar="N", help="with --ranks: ftruns of a group [1]")
    parser.add_argument("--groups", action="store_true", help="jobs of groups of ftruns, with faults of everything")
    parser.add_argument("--coordinator", action="store_true", help="with --groups: faults of member 0 and its lease")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="with --groups: keep the outcomes, as pickles")
    given = parser.parse_args()
    if given.groups:
        return groups(given.seed, given.lasting, given.jobs, given.job, given.keep, given.coordinator)
    if given.ranks:
        return ranks(given.seed, given.lasting, given.jobs, given.job, given.members)
    if why := refusal():
        print(f"bin/prove chaos: {why}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    if given.job:
        result = one(job(*map(int, given.job.split(":"))), folder, threading.Event())
        assert result is not None
        print(report(result, folder))
        return _close(folder, [result])
    print(f"seed {given.seed}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    chaos = Chaos(given.seed, given.lasting, given.jobs, folder)
    results = chaos.run()
    injected, lost = counts(results)
    for kind in sorted(injected):
        print(f"{kind:28} {injected[kind]:5} {lost[kind]:5}")
    failed = [result.job.name for result in results if result.wrong]
    took = time.monotonic() - began
    print(f"{len(results)} jobs, {injected.total()} faults, {lost.total()} mishandled, {took:.0f} s, seed {given.seed}")
    if failed:
        print("failed:", *failed)
    if chaos.stop.is_set():
        return _close(folder, results) or 130
    if injected.total() < ENOUGH:
        print(f"not published: fewer than {ENOUGH:,} faults")
    else:
        measured.save("reliability", page(results, given.seed, took))
    return _close(folder, results)


def ranks(seed: int, lasting: float, beside: int, again: str | None, members: int) -> int:
    """`--ranks`: 0 if every job ended with the right values or the right code."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    if again:
        number, index = map(int, again.split(":"))
        result = rank_chaos.one(rank_plan.job(number, index, members), folder, threading.Event())
        assert result is not None
        print(rank_chaos.report(result, folder))
        return _close(folder, [result])
    print(f"seed {seed}", flush=True)
    began, results = time.monotonic(), rank_chaos.run(seed, lasting, beside, folder, members)
    happened, lost, recovered = rank_chaos.summary(results)
    for kind in sorted(happened):
        print(f"{kind:32} {happened[kind]:5} {lost[kind]:5}")
    print(", ".join(f"{name}: {number}" for name, number in sorted(recovered.items())))
    took = time.monotonic() - began
    print(f"{len(results)} jobs, {happened.total()} faults, {lost.total()} mishandled, {took:.0f} s, seed {seed}")
    if failed := [result.job.name for result in results if result.wrong]:
        print("failed:", *failed)
    enough = rank_chaos.ENOUGH if members == 1 else rank_chaos.ENOUGH_IN_GROUPS
    if happened.total() < enough:
        print(f"not published: fewer than {enough:,} faults")
    else:
        measured.save("reliability", rank_chaos.page(results, seed, took, members))
    return _close(folder, results)


def groups(seed: int, lasting: float, beside: int, again: str | None, outcomes: Path | None, coordinator: bool) -> int:
    """`--groups`: 0 if every job went as it has to."""
    if why := refusal() or hosts.refusal() or group_faults.refusal():
        print(f"bin/prove chaos: {why}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))

    def play_one(index: int, stop: threading.Event) -> group_chaos.GroupResult | None:
        result = group_chaos.one(seed, index, folder, stop, outcomes, coordinator)
        if result is not None and (result.wrong or again):
            print(group_chaos.report(result, folder), flush=True)
        return result

    if again:
        seed, index = map(int, again.split(":"))
        result = play_one(index, threading.Event())
        assert result is not None
        return _close(folder, [result])
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends what it has started
    began, results = time.monotonic(), rank_chaos.side_by_side(play_one, lasting, beside)
    took = time.monotonic() - began
    happened, lost, went = group_chaos.summary(results)
    for kind in sorted(happened):
        print(f"{kind:32} {happened[kind]:5} {lost[kind]:5}")
    print(", ".join(f"{name}: {number}" for name, number in sorted(went.items())))
    print(f"{len(results)} jobs, {happened.total()} faults, {lost.total()} mishandled, {took:.0f} s, seed {seed}")
    if failed := [result.job.name for result in results if result.wrong]:
        print("failed:", *failed)
    if coordinator and len(results) >= coordinator_chaos.ENOUGH:
        measured.save("reliability", coordinator_chaos.page(results, str(seed), took))
    elif coordinator:
        print(f"not published: fewer than {coordinator_chaos.ENOUGH:,} jobs")
    elif happened.total() < group_chaos.ENOUGH:
        print(f"not published: fewer than {group_chaos.ENOUGH:,} faults")
    else:
        measured.save("reliability", group_chaos.page(results, seed, took))
    return _close(folder, results)


def _close(folder: Path, results: "Sequence[Result | rank_chaos.RankResult | group_chaos.GroupResult]") -> int:
    if any(result.wrong for result in results):
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
