"""The history of a run as plain values, from `events.jsonl` and `steps.jsonl`.

Times are seconds since the epoch.  Within one ftrun they follow its monotonic clock, so that a step of the wall clock
moves nothing; from one ftrun to the next, which may be of another boot, they follow the wall clock, and never go back.
"""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Final

from ftrun.core.accounting.totals import Figures, figures
from ftrun.core.named_tuple import NamedTuple
from ftrun.records.files import liveness, rundir, state
from ftrun.records.files.record_files import GrowingFile
from ftrun.records.files.steps import StepSample, sample
from ftrun.records.past import lost_time
from ftrun.records.past.attempts import SAMPLES_MOST, AttemptHistory, Mark, SavedCheckpoint, thinned
from ftrun.records.past.lost_time import AttemptSpan, LostInterval

RECORDS: Final = "events.jsonl"
STEPS: Final = "steps.jsonl"
RECORDS_MOST: Final = 64 << 20  # bytes, the last ones; a picture of more records would be unreadable
STEPS_MOST: Final = 16 << 20
CHECKPOINTS_MOST: Final = 5_000


class History(NamedTuple):
    """`runs`: from when to when an ftrun worked in this run dir.  `lost`: where its lost time is drawn; no two of the
    intervals overlap.  `figures`: how much that was, by the account in `state.json`; None where there is none, so that
    the intervals are summed up.  `saved`: how many checkpoints there were; `checkpoints` has some of them.  `open`: an
    ftrun is working.  `problems`: what could not be read; `cut`: what is shown of the files that are too long,
    as `only the last 64 MiB of its records`."""

    run_dir: str
    command: tuple[str, ...] = ()
    runs: tuple[tuple[float, float], ...] = ()
    attempts: tuple[AttemptSpan, ...] = ()
    samples: tuple[StepSample, ...] = ()
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    saved: int = 0
    marks: tuple[Mark, ...] = ()
    lost: tuple[LostInterval, ...] = ()
    open: bool = False
    verdict: str | None = None
    exit_code: int | None = None
    why: str | None = None
    problems: tuple[str, ...] = ()
    cut: str = ""
    figures: Figures | None = None

    @property
    def wall(self) -> float:
        """Seconds in which an ftrun worked here."""
        return self.drawn_wall if self.figures is None else self.figures.wall

    @property
    def drawn_wall(self) -> float:
        """Seconds in which an ftrun worked here, as they are drawn."""
        return sum(until - since for since, until in self.runs)

    @property
    def totals(self) -> dict[str, float]:
        """Lost seconds by reason, in a fixed order, without zeros."""
        found = self.drawn_totals if self.figures is None else self.figures.lost
        return {why: found[why] for why in lost_time.REASONS if found.get(why, 0.0) > 0}

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


def read(run_dir: str, now: float | None = None, most: int = RECORDS_MOST) -> History:
    """The history of a running ftrun (up to `now`, of `time.time`; None: the present), or of one that is gone.  Lines
    that are torn or no records are skipped; `most`: bytes of records that are read.  NoRunDir if there are no
    records."""
    return HistoryReader(run_dir, most, STEPS_MOST).read(now)


class HistoryReader:
    """Reads the history of a run that goes on again and again, each line once.  What is kept is bounded.

    `records_most`, `steps_most`: bytes at the end of each file that are read at first.  `attempts`: of so many, the
    last ones, the history is kept; None: of all.  `samples`: how many steps are kept at least, of each file."""

    def __init__(
        self,
        run_dir: str,
        records_most: int,
        steps_most: int,
        attempts: int | None = None,
        samples: int = SAMPLES_MOST,
    ) -> None:
        self._run_dir, self._attempts, self._samples = run_dir, attempts, samples
        self._problems: list[str] = []
        self._cut: list[str] = []
        self._records = self._end_of(RECORDS, "records", records_most)
        self._step_file = self._end_of(STEPS, "steps", steps_most)
        self._steps: list[StepSample] = []
        self._stepped_at: dict[int, float] = {}  # CLOCK_MONOTONIC of the last sample, by attempt
        self._seen_at: dict[int, float] = {}  # the same of the attempt in state.json
        self._found = AttemptHistory(self._stepped_at, self._seen_at, samples=samples)

    def _end_of(self, name: str, what: str, most: int) -> GrowingFile:
        path = f"{self._run_dir}/{name}"
        try:
            size = os.stat(path).st_size
        except OSError:
            return GrowingFile(path)  # it does not exist yet, or the first read says why it cannot be read
        if size > most:
            last = f"only the last {most >> 20} MiB of"
            self._problems.append(f"{last} {path} are shown")
            self._cut.append(f"{last} its {what}")
        return GrowingFile(path, max(0, size - most))

    def read(self, now: float | None = None) -> History:
        """The history up to `now` (of `time.time`; None: the present).  NoRunDir if there are no records."""
        wall = time.time()
        now = wall if now is None else now
        known = known_state(self._run_dir, time.monotonic() + now - wall)  # first: a later end is then in the records
        rundir.check(self._run_dir)
        try:
            problems = [*self._problems, *self._read_steps()]
            self._read_records(known)
        except OSError as error:
            raise rundir.NoRunDir(f"{error.filename or self._run_dir}: {error.strerror}") from None
        found = summed_up(self._run_dir, self._found.copy(), self._steps, now, known)
        return found._replace(problems=tuple(problems), cut=", ".join(self._cut))

    def _read_steps(self) -> list[str]:
        """Read the samples of steps.  Without them the records still have a history, and the result says why."""
        try:
            for step in filter(None, map(sample, self._step_file.parsed())):
                self._steps.append(step)
                self._stepped_at[step.attempt] = step.at
                if len(self._steps) > 2 * self._samples:
                    self._steps = thinned(self._steps, self._samples)
        except FileNotFoundError:
            pass  # no rank reports steps
        except OSError as error:
            return [f"the steps cannot be read: {self._step_file.path}: {error.strerror}"]
        return []

    def _read_records(self, known: KnownState) -> None:
        self._seen_at.clear()
        if known.seen is not None:
            self._seen_at[known.attempt] = known.seen
        for record in self._records.parsed():
            self._found.add(record)
            self._forget(2)
        self._forget(1)

    def _forget(self, times: int) -> None:
        """What is older than the last attempts, once there are more than `times` as many."""
        if self._attempts is None or len(self._found.attempts) <= times * self._attempts:
            return
        self._found.forget(self._attempts)
        oldest = min(attempt.number for attempt in self._found.attempts)
        self._steps = [step for step in self._steps if step.attempt >= oldest]
        for number in [number for number in self._stepped_at if number < oldest]:
            del self._stepped_at[number]


def known_state(run_dir: str, now: float) -> KnownState:
    """What `state.json` says at `now`, by CLOCK_MONOTONIC."""
    found = state.load(run_dir)
    run = found.rest.run
    alive = liveness.is_running(run_dir, run)
    if found.ledger is None:
        return KnownState(alive)
    account = found.ledger.account
    spent = figures(account, now if alive and liveness.same_boot(run) else None)
    return KnownState(
        alive, found.ledger.start_cnt, found.ledger.last_step, account.at, spent if spent.wall > 0 else None
    )


def summed_up(
    run_dir: str, found: AttemptHistory, stepped: Sequence[StepSample], now: float, known: KnownState
) -> History:
    """The history of the records that were added to `found`, which is finished thereby.  Pure."""
    found.finish(now, known.alive)
    attempts = tuple(found.attempts)
    samples = _joined(found.samples, _on_wall_clock(stepped, attempts))
    samples = (*samples, *_last_step(samples, attempts, known))
    attempts = lost_time.with_steps(attempts, samples)
    return History(
        run_dir=run_dir,
        command=found.command,
        runs=tuple(found.runs),
        attempts=attempts,
        samples=samples,
        checkpoints=tuple(thinned(found.checkpoints, CHECKPOINTS_MOST)),
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
