"""The history of a run as plain values, from `events.jsonl` and `steps.jsonl`.

Times are seconds since the epoch.  Within one ftrun they follow its monotonic clock, so that a step of the wall clock
moves nothing; from one ftrun to the next, which may be of another boot, they follow the wall clock, and never go back.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ftrun.core.accounting.totals import Figures, figures
from ftrun.core.named_tuple import NamedTuple
from ftrun.records import liveness, lost_time, rundir, state
from ftrun.records.attempts import SAMPLES_MOST, AttemptHistory, Checkpoint, Mark, thinned
from ftrun.records.lost_time import AttemptSpan, LostInterval
from ftrun.records.quick_progress import Progress, progress
from ftrun.records.record_files import GrowingFile, Record, parsed
from ftrun.records.steps import StepSample, sample

RECORDS: Final = "events.jsonl"
STEPS: Final = "steps.jsonl"
CUT: Final = "only the last"  # how the problem of a file that is too long begins
RECORDS_MOST: Final = 64 << 20  # bytes, the last ones; a picture of more records would be unreadable
STEPS_MOST: Final = 16 << 20
CHECKPOINTS_MOST: Final = 5_000


class History(NamedTuple):
    """`runs`: from when to when an ftrun worked in this run dir.  `lost`: where its lost time is drawn; no two of the
    intervals overlap.  `figures`: how much that was, by the account in `state.json`; None where there is none, so that
    the intervals are summed up.  `saved`: how many checkpoints there were; `checkpoints` has some of them.  `open`: an
    ftrun is working.  `problems`: what could not be read."""

    run_dir: str
    command: tuple[str, ...] = ()
    runs: tuple[tuple[float, float], ...] = ()
    attempts: tuple[AttemptSpan, ...] = ()
    samples: tuple[StepSample, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    saved: int = 0
    marks: tuple[Mark, ...] = ()
    lost: tuple[LostInterval, ...] = ()
    open: bool = False
    verdict: str | None = None
    exit_code: int | None = None
    why: str | None = None
    problems: tuple[str, ...] = ()
    figures: Figures | None = None

    @property
    def wall(self) -> float:
        """Seconds in which an ftrun worked here."""
        return self.drawn_wall if self.figures is None else self.figures.wall

    @property
    def drawn_wall(self) -> float:
        """The same, as it is drawn."""
        return sum(until - since for since, until in self.runs)

    @property
    def totals(self) -> dict[str, float]:
        """Lost seconds by reason, in a fixed order, without zeros."""
        found = self.drawn_totals if self.figures is None else self.figures.lost
        return {why: found[why] for why in lost_time.REASONS if found.get(why, 0.0) > 0}

    @property
    def cut(self) -> str:
        """What is shown of the files that are too long: `only the last 64 MiB of its records`; else empty."""
        names = ((f"/{RECORDS} are shown", "its records"), (f"/{STEPS} are shown", "its steps"))
        cut = (problem for problem in self.problems if problem.startswith(CUT))
        found = [
            f"{problem.partition(' of /')[0]} of {what}"
            for problem in cut
            for end, what in names
            if problem.endswith(end)
        ]
        return ", ".join(found)

    @property
    def drawn_totals(self) -> dict[str, float]:
        """Seconds of the intervals, by reason."""
        return {why: sum(s.until - s.since for s in self.lost if s.why == why) for why in lost_time.REASONS}

    @property
    def shown_totals(self) -> dict[str, float]:
        """The totals that are large enough to be shown."""
        return {why: seconds for why, seconds in self.totals.items() if seconds >= max(0.05, self.wall / 10_000)}

    @property
    def goodput(self) -> float | None:
        """The share of time that is not lost: 0 to 1; None: not known, as where no step and no checkpoint was seen."""
        if self.figures is not None:
            return self.figures.goodput
        if not self.samples and not self.saved:
            return None
        return max(0.0, 1 - sum(self.totals.values()) / self.wall) if self.wall > 0 else None


class KnownState(NamedTuple):
    """What `state.json` says: whether an ftrun is `alive`; the number of its last attempt, its last step, and when it
    was last seen (CLOCK_MONOTONIC); and where the time went."""

    alive: bool = True
    attempt: int = 0
    step: int | None = None
    seen: float | None = None
    figures: Figures | None = None


UNKNOWN: Final = KnownState()


def read(run_dir: str, now: float | None = None, most: int | None = None) -> History:
    """Of a running ftrun (up to `now`, of `time.time`; None: the present), or of one that is gone.  Lines that are torn
    or no records are skipped; `most`: bytes of records that are read.  NoRunDir if there are no records."""
    wall = time.time()
    now = wall if now is None else now
    known = known_state(run_dir, time.monotonic() + now - wall)  # first: a later end is then in the records
    rundir.check(run_dir)
    problems: list[str] = []
    try:
        records = parsed_records(_read(f"{run_dir}/{RECORDS}", most or RECORDS_MOST, problems))
        steps = _steps(f"{run_dir}/{STEPS}", problems)
        return fold(run_dir, records, steps, now, known)._replace(problems=tuple(problems))
    except OSError as error:
        raise rundir.NoRunDir(f"{error.filename or run_dir}: {error.strerror}") from None


def known_state(run_dir: str, now: float) -> KnownState:
    """`now`: CLOCK_MONOTONIC."""
    found = state.load(run_dir)
    run = found.part("run")
    alive = liveness.is_running(run_dir, run)
    if found.ledger is None:
        return KnownState(alive)
    account = found.ledger.account
    spent = figures(account, now if alive and liveness.same_boot(run) else None)
    return KnownState(
        alive, found.ledger.start_cnt, found.ledger.last_step, account.at, spent if spent.wall > 0 else None
    )


def _steps(path: str, problems: list[str]) -> list[StepSample]:
    """The samples of steps; without them the records still have a history."""
    try:
        return list(parsed_steps(_read(path, STEPS_MOST, problems)))
    except OSError as error:
        problems.append(f"the steps cannot be read: {path}: {error.strerror}")
        return []


def _read(path: str, most: int, problems: list[str]) -> Iterator[bytes]:
    """The lines in the last `most` bytes; none if there is no such file."""
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return iter(())
    if size > most:
        problems.append(f"{CUT} {most >> 20} MiB of {path} are shown")
    return GrowingFile(path, max(0, size - most)).lines()


def parsed_records(lines: Iterable[bytes]) -> Iterator[Record | Progress]:
    for line in lines:
        found = progress(line) or parsed(line)
        if found is not None:
            yield found


def parsed_steps(lines: Iterable[bytes]) -> Iterator[StepSample]:
    for line in lines:
        found = sample(parsed(line) or {})
        if found is not None:
            yield found


def fold(
    run_dir: str,
    records: Iterable[Record | Progress],
    steps: Iterable[Record | StepSample],
    now: float,
    known: KnownState = UNKNOWN,
) -> History:
    """Pure."""
    samples_found = (one if isinstance(one, StepSample) else sample(one) for one in steps)
    stepped = [step for step in samples_found if step is not None]
    found = AttemptHistory(
        {step.attempt: step.at for step in stepped}, {} if known.seen is None else {known.attempt: known.seen}
    )
    for record in records:
        found.add(record)
    return summed_up(run_dir, found, stepped, now, known)


def summed_up(
    run_dir: str, found: AttemptHistory, stepped: Sequence[StepSample], now: float, known: KnownState
) -> History:
    """The history of the records that were added to `found`, which is finished thereby.  Pure."""
    found.finish(now, known.alive)
    attempts = tuple(found.attempts)
    samples = _joined([StepSample(*one) for one in found.samples], _on_wall_clock(stepped, attempts))
    samples = (*samples, *_last_step(samples, attempts, known))
    attempts = lost_time.with_steps(attempts, samples)
    return History(
        run_dir=run_dir,
        command=found.command,
        runs=tuple(found.runs),
        attempts=attempts,
        samples=samples,
        checkpoints=tuple(Checkpoint(*one) for one in thinned(found.checkpoints, CHECKPOINTS_MOST)),
        saved=found.saved,
        marks=tuple(found.marks),
        lost=lost_time.lost_intervals(attempts, samples, found.paused, found.saved_before),
        open=found.open,
        verdict=found.verdict,
        exit_code=found.exit_code,
        why=found.why,
        figures=known.figures,
    )


def _on_wall_clock(steps: Iterable[StepSample], attempts: Sequence[AttemptSpan]) -> tuple[StepSample, ...]:
    """The samples of these attempts, by the wall clock: each attempt has the offset of its monotonic clock."""
    by_number: dict[int, list[AttemptSpan]] = {}
    for attempt in attempts:
        by_number.setdefault(attempt.number, []).append(attempt)
    found: list[StepSample] = []
    for step in steps:
        for attempt in reversed(by_number.get(step.attempt, [])):
            at = step.at + attempt.offset
            if attempt.since - 1 <= at <= attempt.until + 1:
                found.append(step._replace(at=min(max(at, attempt.since), attempt.until)))
                break
    found.sort()
    return tuple(thinned(found, SAMPLES_MOST))


def _joined(recorded: list[StepSample], sampled: tuple[StepSample, ...]) -> tuple[StepSample, ...]:
    """The samples, and the steps in records before the first and after the last sample of an attempt: a record has the
    step of one rank, a sample those of all ranks."""
    ends: dict[int, tuple[StepSample, StepSample]] = {}
    for one in sampled:
        ends[one.attempt] = (ends.get(one.attempt, (one,))[0], one)
    beyond = [s for s in recorded if s.attempt not in ends or s < ends[s.attempt][0] or s > ends[s.attempt][1]]
    return tuple(sorted((*sampled, *thinned(beyond, SAMPLES_MOST))))


def _last_step(samples: Sequence[StepSample], attempts: Sequence[AttemptSpan], known: KnownState) -> list[StepSample]:
    """The last step of the last attempt, if it came after its last sample.  An attempt without samples has none: the
    known step is of an attempt before."""
    last = samples[-1] if samples else None
    if known.step is None or last is None or not attempts or not last.attempt == known.attempt == attempts[-1].number:
        return []
    attempt = attempts[-1]
    at = attempt.worked_until if known.seen is None else min(attempt.worked_until, known.seen + attempt.offset)
    if known.step <= last.high or at < max(last.at, attempt.since):
        return []
    return [StepSample(at, attempt.number, known.step, known.step)]
