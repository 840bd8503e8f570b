"""The attempts of a run, rebuilt from its records."""

import re
from collections.abc import Mapping
from copy import copy
from typing import Any, Final, Self

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.exit_codes import STOPPED
from ftrun.core.rules.hang_rules import RULES, Silent
from ftrun.messages import records
from ftrun.records.files import recent_events
from ftrun.records.files.record_files import Record
from ftrun.records.files.state import integer, number, string
from ftrun.records.files.steps import StepSample
from ftrun.records.past.lost_time import AttemptSpan, LostInterval

SAMPLES_MOST: Final = 10_000
RECOVERIES_MOST: Final = 1_000  # intervals of an attempt
LATEST: Final = 2.5e11  # s; no calendar goes beyond it
ENDING_SEVERITIES: Final = ("minor", "minor+user", "major", "critical")  # a fault of such a severity ends the attempt
PLACE: Final = re.compile(r"\(([^()]+:\d+ in [^()]+)\)$")  # at the end of the reason of a failure
OF_AN_ATTEMPT: Final = ("restart", "first_beat", "progress", "suspect", "hang", "exited")


class Mark(NamedTuple):
    """What happened at one instant.  `kind`: suspect, cleared, hang, fault, failure, stop, order or escalated."""

    at: float
    attempt: int
    kind: str
    text: str


class SavedCheckpoint(NamedTuple):
    at: float
    attempt: int
    step: int | None


def thinned(values: list[Any], most: int) -> list[Any]:
    """At most `most` of the values, evenly spread, with the first and the last."""
    if len(values) <= most:
        return values
    stride = -(-len(values) // (most - 1))
    return [*values[:-1:stride], values[-1]]


class AttemptHistory:
    """The history up to the last added record.  `seen`: when attempts were last seen, by CLOCK_MONOTONIC: an ftrun that
    was killed had run until then.  `samples`: how many steps are kept at least, of those that the records have."""

    def __init__(self, *seen: Mapping[int, float], samples: int = SAMPLES_MOST) -> None:
        self._seen, self._samples_most = seen, samples
        self.attempts: list[AttemptSpan] = []
        self.runs: list[tuple[float, float]] = []
        self.samples: list[StepSample] = []
        self.checkpoints: list[SavedCheckpoint] = []
        self.marks: list[Mark] = []
        self.paused: list[LostInterval] = []
        self.command: tuple[str, ...] = ()
        self.verdict: str | None = None
        self.exit_code: int | None = None
        self.why: str | None = None
        self.open = False
        self._at = self._mono = 0.0
        self._offset: float | None = None
        self._began: float | None = None  # the present ftrun
        self._paused_since: float | None = None
        self._grouped = False
        self._over = 0  # ftruns that have ended
        self._saved_at: float | None = None  # of the last attempt, in which it is not noted yet
        self.saved = 0  # checkpoints of a known step
        self.saved_before = False  # in an attempt that is forgotten

    def add(self, record: Record) -> None:
        """The next record, in order."""
        event, mono = string(record.get("event")), number(record.get("mono"))
        if event is None or mono is None or not self._advance_clock(record, event, mono):
            return
        if not (self.open or event in ("started", "ended") or self._begin_without_start(record, event)):
            return
        at, step, why = self._at, integer(record.get("step")), string(record.get("why")) or ""
        match event:
            case "started":
                self._started(record)
            case "restart":
                self._update(until=at, again=True)
                self._begin_attempt(record)
            case "first_beat":
                self._update(first_beat=at)
                self._add_step(at, step)
            case "progress":
                self._add_step(at, step)
                if record.get("by") == "checkpoint" and self.attempts:
                    self._add_checkpoint(step)
            case "suspect":
                self._mark(record, "suspect", finding_text(record))
            case "cleared":
                self._mark(record, "cleared", why)
            case "hang":
                since = at - (number(record.get("age")) or 0.0)
                text = finding_text(record) + (f", at {why}" if why else "")
                self._mark(record, "hang", text)
                self._add_step(since, step)
                report = string(record.get("report"))
                self._update(cause="hang", why=text, place=why, silent=since, verdict=at, report=report)
            case "recovered":
                self._recovered(at, number(record.get("seconds")) or 0.0)
            case "fault":
                text = " ".join(string(record.get(name)) or "" for name in ("device", "code", "severity"))
                self._mark(record, "fault", text)
                ends = record.get("severity") in ENDING_SEVERITIES and record.get("preexisting") is not True
                if ends and self.attempts and self.attempts[-1].cause is None:
                    self._update(cause="fault", why=text, verdict=at)
            case "exited":
                self._exited(record, why)
            case "stopping":
                self._stopping(record)
            case "killed":
                self._update(rested=at, killed=integer(record.get("processes")))
            case "healing":
                if self.attempts:
                    rest = (at, "healing" if record.get("device") else "waiting")
                    self._update(rests=(*self.attempts[-1].rests[-63:], rest))
            case "escalated":
                text = f"{string(record.get('verdict')) or ''} ({integer(record.get('exit_code'))})"
                self._mark(record, "escalated", text)
            case "order":
                if record.get("ok"):
                    what, by = string(record.get("what")) or "", string(record.get("by")) or ""
                    self._mark(record, "order", f"{what} by {by}")
            case "paused":
                self._paused_since = at if self._paused_since is None else self._paused_since
            case "resumed":
                self._resumed(number(record.get("stood")) or 0.0)
            case "frozen":
                began = at - (number(record.get("seconds")) or 0.0)
                if self._paused_since is None and self.attempts and began < at:
                    self.paused.append(LostInterval(began, at, "paused"))
            case "group":
                self._grouped = True
                cause = {"elsewhere": recent_events.elsewhere(record)} if recent_events.is_cause(record) else {}
                self._update(grouped=True, **cause)
            case "ended":
                self._ended(record, why)

    def _recovered(self, at: float, seconds: float) -> None:
        """All ranks have moved again: what had looked like the end of the attempt was none."""
        if not self.attempts:
            return
        last, began = self.attempts[-1], max(self.attempts[-1].since, at - seconds)
        found = [LostInterval(began, at, "recovery")]
        if last.silent is not None and last.verdict is not None:
            found.insert(0, LostInterval(max(last.since, last.silent), min(last.verdict, began), "hang"))
        kept = (*last.recoveries, *found)[-RECOVERIES_MOST:]
        self._update(recoveries=kept, cause=None, why="", place="", silent=None, verdict=None, report=None)

    def copy(self) -> Self:
        """A copy which `finish` can change without changing this history."""
        found = copy(self)
        found.attempts, found.runs, found.paused = [*self.attempts], [*self.runs], [*self.paused]
        return found

    def forget(self, most: int) -> None:
        """Forget all that is older than the last `most` attempts."""
        if len(self.attempts) <= most:
            return
        self.saved_before |= any(attempt.saved is not None for attempt in self.attempts[:-most])
        self.attempts = self.attempts[-most:]
        since, oldest = self.attempts[0].since, min(attempt.number for attempt in self.attempts)
        self.samples = [one for one in self.samples if one.attempt >= oldest]
        self.checkpoints = [one for one in self.checkpoints if one.at >= since]
        self.marks = [one for one in self.marks if one.at >= since]
        self.paused = [one for one in self.paused if one.until >= since]
        self.runs = self.runs[-most:]

    def finish(self, now: float, alive: bool) -> None:
        """There are no more records; `alive`: the ftrun that has not ended is running."""
        self._update()
        if not self.open:
            return
        self._finish_run(max(self._at, now) if alive else self._last_sign(now))
        self._update(under_way=alive, cut_off=not alive)
        self.open = alive

    def _advance_clock(self, record: Record, event: str, mono: float) -> bool:
        """Whether the record has a time; `_at` is that time then."""
        if self._offset is None or event == "started" or mono < self._mono - 1:
            wall = records.seconds(record.get("time"))
            if wall is None:
                return False
            if event == "started" and self.open:  # the ftrun before was killed
                self._update(again=True)
                self._finish_run(self._last_sign(wall))
            # Times never go back, even if the wall clock was set back.
            self._offset = max(wall, self._at) - mono
        if mono + self._offset > LATEST:
            return False
        self._at, self._mono = max(self._at, mono + self._offset), mono
        return True

    def _begin_without_start(self, record: Record, event: str) -> bool:
        """The record of the start is not among those that were read.  After an end only a start counts."""
        if self.runs or event not in OF_AN_ATTEMPT:
            return False
        self.open, self._began = True, self._at
        if event != "restart":
            self._begin_attempt(record)
        return True

    def _add_checkpoint(self, step: int | None) -> None:
        self._saved_at = self._at
        self.saved += step is not None
        self.checkpoints.append(SavedCheckpoint(self._at, self.attempts[-1].number, step))
        if len(self.checkpoints) > 2 * self._samples_most:
            self.checkpoints = thinned(self.checkpoints, self._samples_most)

    def _update(self, **changed: Any) -> None:
        """Change the last attempt, if there is one."""
        if self.attempts:
            if self._saved_at is not None:
                changed, self._saved_at = {"saved": self._saved_at, **changed}, None
            self.attempts[-1] = self.attempts[-1]._replace(**changed)

    def _mark(self, record: Record, kind: str, text: str) -> None:
        self.marks.append(Mark(self._at, integer(record.get("attempt")) or 0, kind, text))

    def _add_step(self, at: float, step: int | None) -> None:
        if step is not None and self.attempts:
            attempt = self.attempts[-1]
            self.samples.append(StepSample(max(at, attempt.since), attempt.number, step, step))
            if len(self.samples) > 2 * self._samples_most:
                self.samples = thinned(self.samples, self._samples_most)

    def _started(self, record: Record) -> None:
        command = record.get("command")
        self.command = tuple(map(str, command)) if isinstance(command, list) else ()
        self.verdict = self.exit_code = self.why = None
        self.open, self._began = True, self._at
        if self.attempts and self.attempts[-1].stopped:
            self._update(stopped=False, again=True)
        self._begin_attempt({**record, "reason": "started"} if self.attempts else record)

    def _begin_attempt(self, record: Record) -> None:
        self._update()
        number, reason = integer(record.get("attempt")) or len(self.attempts) + 1, string(record.get("reason")) or ""
        known = self._offset or 0.0
        span = AttemptSpan(number, reason, self._at, self._at, grouped=self._grouped, offset=known, run=self._over)
        self.attempts.append(span)

    def _exited(self, record: Record, why: str) -> None:
        at, attempt = self._at, self.attempts[-1] if self.attempts else None
        if attempt is None or attempt.verdict is not None:
            self._update(rested=at)
            return
        self._update(verdict=at, rested=at)
        signal, code = integer(record.get("signal")), integer(record.get("code"))
        if recent_events.is_failure(record) and attempt.cause is None:
            status = f"signal {signal} ended the command" if signal is not None else f"the command exited with {code}"
            self._mark(record, "failure", why or status)
            place = PLACE.search(why)
            self._update(cause="failure", why=why or status, place=place[1] if place else "")

    def _stopping(self, record: Record) -> None:
        attempt = self.attempts[-1] if self.attempts else None
        if record.get("by") == "outside":  # the command may go on for long, and save its work
            self._mark(record, "stop", f"stop asked by signal {integer(record.get('signal'))}")
            if attempt is not None and attempt.cause is None:
                self._update(cause="stop")
            return
        if attempt is not None and attempt.verdict is None:
            self._update(verdict=self._at)
        self._update(rested=None)  # what is left of its tree is being ended

    def _resumed(self, stood: float) -> None:
        """The end of a pause: the `stood` seconds without any movement are lost, the rest counts as usual."""
        if self._paused_since is not None and stood > 0:
            self.paused.append(LostInterval(max(self._paused_since, self._at - stood), self._at, "paused"))
        self._paused_since = None

    def _ended(self, record: Record, why: str) -> None:
        self.verdict, self.exit_code = string(record.get("verdict")) or "", integer(record.get("exit_code"))
        self.why = why
        if self.open:
            self._update(kept=self.exit_code == 0, stopped=self.verdict == STOPPED)
            self._finish_run(self._at)
        self._offset = None  # later records are of another ftrun

    def _finish_run(self, at: float) -> None:
        """The present ftrun ended, or was killed, at this time."""
        self._resumed(0.0)
        if self._began is not None:
            self._update(until=at)
            self.runs.append((self._began, at))
            self._over += 1
        self.open, self._began = False, None

    def _last_sign(self, before: float) -> float:
        """When the present ftrun, which was killed, was last seen."""
        if not self.attempts:
            return self._at
        attempt = self.attempts[-1]
        signs = (seen[attempt.number] + attempt.offset for seen in self._seen if attempt.number in seen)
        return max((at for at in signs if self._at < at < before), default=self._at)


def finding_text(record: Record) -> str:
    """A finding of a hang rule, short."""
    silent = Silent(integer(record.get("rank")), integer(record.get("step")), string(record.get("section")) or "")
    rule = string(record.get("rule"))
    return next((known.brief(silent) for name, known in RULES.items() if name == rule), RULES["step"].brief(silent))
