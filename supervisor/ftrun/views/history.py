"""What became of a run, as plain values: `events.jsonl` and `steps.jsonl`, read and put in order.

Times are seconds since the epoch.  Within one ftrun they follow its monotonic clock, so that a step of the wall clock
moves nothing; from one ftrun to the next, which may be of another boot, they follow the wall clock, and never go back.
"""

import errno
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ftrun.core.accounting.totals import Figures, figures
from ftrun.views import liveness, state
from ftrun.views import lost_time as losses
from ftrun.views.attempts import SAMPLES_MOST, AttemptHistory, Checkpoint, Mark, thinned
from ftrun.views.lost_time import Life, StepSample, Stretch
from ftrun.views.record_tail import Record
from ftrun.views.rundir import NoRunDir
from ftrun.views.validated import number, whole

RECORDS_MOST: Final = 64 << 20  # bytes, the last ones; of more records nobody could make out a thing
STEPS_MOST: Final = 16 << 20
CHECKPOINTS_MOST: Final = 5_000
LINE_MOST: Final = 1 << 20


class History(NamedTuple):
    """`runs`: from when to when an ftrun was at work in this run dir.  `lost`: where its lost time is drawn; no two of
    them overlap.  `figures`: how much that was, by the account of `state.json`; None where there is none to read, so
    that the stretches have to tell.  `saved`: how many checkpoints there were, of which `checkpoints` are some.
    `open`: an ftrun is at work.  `problems`: what could not be read."""

    run_dir: str
    command: tuple[str, ...] = ()
    runs: tuple[tuple[float, float], ...] = ()
    attempts: tuple[Life, ...] = ()
    samples: tuple[StepSample, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    saved: int = 0
    marks: tuple[Mark, ...] = ()
    lost: tuple[Stretch, ...] = ()
    open: bool = False
    verdict: str | None = None
    exit_code: int | None = None
    why: str | None = None
    problems: tuple[str, ...] = ()
    figures: Figures | None = None

    @property
    def wall(self) -> float:
        """Seconds in which an ftrun was at work here."""
        return self.spanned if self.figures is None else self.figures.wall

    @property
    def spanned(self) -> float:
        """The same, as it is drawn."""
        return sum(until - since for since, until in self.runs)

    @property
    def totals(self) -> dict[str, float]:
        """Lost seconds by why, in the order in which they are always told; only what there is."""
        found = self.drawn if self.figures is None else self.figures.lost
        return {why: found[why] for why in losses.WHYS if found.get(why, 0.0) > 0}

    @property
    def drawn(self) -> dict[str, float]:
        """Seconds of the stretches, by why."""
        found = {why: sum(s.until - s.since for s in self.lost if s.why == why) for why in losses.WHYS}
        return {why: seconds for why, seconds in found.items() if seconds > 0}

    @property
    def worth(self) -> dict[str, float]:
        """The same, of what is worth a word."""
        return {why: seconds for why, seconds in self.totals.items() if seconds >= max(0.05, self.wall / 10_000)}

    @property
    def goodput(self) -> float | None:
        """Time that is not lost, of all: 0 to 1; None where nobody knows yet."""
        if self.figures is not None:
            return self.figures.goodput
        return max(0.0, 1 - sum(self.totals.values()) / self.wall) if self.wall > 0 else None


class Known(NamedTuple):
    """What `state.json` tells: whether an ftrun `lives`; of its last attempt the last step, and when it was last seen
    (CLOCK_MONOTONIC); and where the time went."""

    lives: bool = True
    attempt: int = 0
    step: int | None = None
    seen: float | None = None
    figures: Figures | None = None


UNKNOWN: Final = Known()


def read(run_dir: str, now: float | None = None) -> History:
    """Of a running ftrun (up to `now`, of `time.time`; None: just now), or of one that is gone.  Lines that are torn or
    are no records are passed over.  NoRunDir where there are none at all."""
    wall = time.time()
    now = wall if now is None else now
    known = _known(run_dir, time.monotonic() + now - wall)  # first: an end that comes now is on record then
    records, problems = _lines(f"{run_dir}/events.jsonl", RECORDS_MOST)
    try:
        steps, cut = _lines(f"{run_dir}/steps.jsonl", STEPS_MOST)
        problems += cut
    except NoRunDir:
        steps = iter(())  # nothing stepped
    found = fold(run_dir, records, steps, now, known)
    return found._replace(problems=tuple(problems))


def _known(run_dir: str, now: float) -> Known:
    """`now`: CLOCK_MONOTONIC."""
    found = state.load(run_dir)
    run = found.part("run")
    lives = liveness.is_running(run_dir, run)
    if found.ledger is None:
        return Known(lives)
    account = found.ledger.account
    spent = figures(account, now if lives and liveness.same_boot(run) else None)
    kept = spent if spent.wall > 0 else None
    return Known(lives, found.ledger.start_cnt, found.ledger.last_step, account.at, kept)


def _lines(path: str, most: int) -> tuple[Iterator[Record], list[str]]:
    try:
        stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):  # it may have no end
            raise OSError(errno.EINVAL, "it is no file")
        size = found.st_size
        if size > most:
            stream.seek(size - most)
    except OSError as error:
        raise NoRunDir(f"{path}: {error.strerror}") from None
    shown = f"only the last {most >> 20} MiB of {path} are shown"
    return _parsed(stream, path), [shown] if size > most else []


def _parsed(stream: Any, path: str) -> Iterator[Record]:
    with stream:
        while True:
            try:
                line = stream.readline(LINE_MOST)
            except OSError as error:
                raise NoRunDir(f"{path}: {error.strerror}") from None
            if not line:
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield record


def fold(
    run_dir: str, records: Iterable[Record], steps: Iterable[Record], now: float, known: Known = UNKNOWN
) -> History:
    """Pure."""
    seen = [step for record in steps if (step := _seen(record)) is not None]
    told = AttemptHistory(
        {step.attempt: step.at for step in seen}, {} if known.seen is None else {known.attempt: known.seen}
    )
    for record in records:
        told.hear(record)
    told.close(now, known.lives)
    lives = tuple(told.lives)
    samples = _joined(told.samples, _placed(seen, lives))
    samples = (*samples, *_last(samples, lives, known))
    lives = losses.with_steps(lives, samples)
    return History(
        run_dir=run_dir,
        command=told.command,
        runs=tuple(told.runs),
        attempts=lives,
        samples=samples,
        checkpoints=tuple(thinned(told.checkpoints, CHECKPOINTS_MOST)),
        saved=sum(checkpoint.step is not None for checkpoint in told.checkpoints),
        marks=tuple(told.marks),
        lost=losses.stretches(lives, samples, told.paused),
        open=told.open,
        verdict=told.verdict,
        exit_code=told.exit_code,
        why=told.why,
        figures=known.figures,
    )


def _seen(step: Record) -> StepSample | None:
    """By its monotonic clock."""
    mono, low, high = number(step.get("mono")), whole(step.get("low")), whole(step.get("high"))
    if mono is None or low is None or high is None:
        return None
    return StepSample(mono, whole(step.get("attempt")) or 0, low, high)


def _placed(steps: Iterable[StepSample], lives: tuple[Life, ...]) -> tuple[StepSample, ...]:
    """Samples on the attempts that they are of: those know how their monotonic clock maps."""
    by_number: dict[int, list[Life]] = {}
    for life in lives:
        by_number.setdefault(life.number, []).append(life)
    found: list[StepSample] = []
    for step in steps:
        for life in reversed(by_number.get(step.attempt, [])):
            at = step.at + life.offset
            if life.since - 1 <= at <= life.until + 1:
                found.append(step._replace(at=min(max(at, life.since), life.until)))
                break
    found.sort()
    return tuple(thinned(found, SAMPLES_MOST))


def _joined(told: list[StepSample], placed: tuple[StepSample, ...]) -> tuple[StepSample, ...]:
    """The samples, with what records tell of an attempt before its first and after its last one: records know one step
    where samples know those of all ranks."""
    ends: dict[int, tuple[StepSample, StepSample]] = {}
    for sample in placed:
        ends[sample.attempt] = (ends.get(sample.attempt, (sample,))[0], sample)
    beyond = [s for s in told if s.attempt not in ends or s < ends[s.attempt][0] or s > ends[s.attempt][1]]
    return tuple(sorted((*placed, *thinned(beyond, SAMPLES_MOST))))


def _last(samples: Sequence[StepSample], lives: Sequence[Life], known: Known) -> list[StepSample]:
    """The last step of the last attempt, which comes after its last sample.  One that never stepped has none: what is
    known is of the one before."""
    last = samples[-1] if samples else None
    if known.step is None or last is None or not lives or not last.attempt == known.attempt == lives[-1].number:
        return []
    life = lives[-1]
    at = life.worked_until if known.seen is None else min(life.worked_until, known.seen + life.offset)
    if known.step <= last.high or at < max(last.at, life.since):
        return []
    return [StepSample(at, life.number, known.step, known.step)]
