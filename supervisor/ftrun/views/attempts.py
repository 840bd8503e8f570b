"""An attempt after the other, as the records tell them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from ftrun.core.rules.exit_codes import STOPPED
from ftrun.core.rules.hang_rules import RULES, Silent
from ftrun.views.lost_time import Life, StepSample, Stretch
from ftrun.views.record_tail import Record
from ftrun.views.validated import number, whole

SAMPLES_MOST: Final = 10_000
LATEST: Final = 2.5e11  # s; beyond it no calendar goes
ACTING: Final = ("minor", "major", "critical")  # a fault of such a severity ends the attempt


class Mark(NamedTuple):
    """It happened at this instant.  `kind`: suspect, cleared, hang, fault, failure, stop, order or escalated."""

    at: float
    attempt: int
    kind: str
    text: str


class Checkpoint(NamedTuple):
    at: float
    attempt: int
    step: int | None


def thinned(values: list[Any], most: int) -> list[Any]:
    """Evenly, the first and the last among what is left."""
    if len(values) <= most:
        return values
    stride = -(-len(values) // (most - 1))
    return [*values[:-1:stride], values[-1]]


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


class AttemptHistory:
    """What the records so far tell.  `seen`: when attempts were last seen, by CLOCK_MONOTONIC, where records do not
    tell: an ftrun that was killed lived until then."""

    def __init__(self, *seen: Mapping[int, float]) -> None:
        self._seen = seen
        self.lives: list[Life] = []
        self.runs: list[tuple[float, float]] = []
        self.samples: list[StepSample] = []
        self.checkpoints: list[Checkpoint] = []
        self.marks: list[Mark] = []
        self.paused: list[Stretch] = []
        self.command: tuple[str, ...] = ()
        self.verdict: str | None = None
        self.exit_code: int | None = None
        self.why: str | None = None
        self.open = False
        self._at = self._mono = 0.0
        self._offset: float | None = None
        self._begun: float | None = None  # this ftrun
        self._paused_since: float | None = None

    def hear(self, record: Record) -> None:
        event, mono = text(record.get("event")), number(record.get("mono"))
        if mono is None or not self._timed(record, event, mono):
            return
        if event in HEARD and (self.open or event in ("started", "ended") or self._cut_in(record, event)):
            getattr(self, f"_{event}")(record, self._at)

    def _cut_in(self, record: Record, event: str) -> bool:
        """The begin is not among what is read.  After an end nothing is heard but another start."""
        if self.runs or event not in OF_AN_ATTEMPT:
            return False
        self.open, self._begun = True, self._at
        if event != "restart":
            self._begins(record, self._at)
        return True

    def _timed(self, record: Record, event: str, mono: float) -> bool:
        if self._offset is None or event == "started" or mono < self._mono - 1:
            try:
                wall = datetime.fromisoformat(text(record.get("time"))).timestamp()
            except (ValueError, OverflowError):
                return False
            if event == "started" and self.open:  # the one before was killed
                self._now(again=True)
                self._finished(self._last_sign(wall))
            # A wall clock that was set back does not turn the picture round.
            self._offset = max(wall, self._at) - mono
        if mono + self._offset > LATEST:
            return False
        self._at, self._mono = max(self._at, mono + self._offset), mono
        return True

    def _now(self, **changed: Any) -> None:
        """Of the attempt under way."""
        if self.lives:
            self.lives[-1] = self.lives[-1]._replace(**changed)

    @property
    def _life(self) -> Life | None:
        return self.lives[-1] if self.lives else None

    def _mark(self, record: Record, kind: str, words: str) -> None:
        self.marks.append(Mark(self._at, whole(record.get("attempt")) or 0, kind, words))

    def _stepped(self, at: float, step: int | None) -> None:
        if step is not None and self._life is not None:
            self.samples.append(StepSample(max(at, self._life.since), self._life.number, step, step))
            if len(self.samples) > 2 * SAMPLES_MOST:
                self.samples = thinned(self.samples, SAMPLES_MOST)

    # --- a record each --------------------------------------------------------------------------------------------

    def _started(self, record: Record, at: float) -> None:
        command = record.get("command")
        self.command = tuple(map(str, command)) if isinstance(command, list) else ()
        self.verdict = self.exit_code = self.why = None
        self.open, self._begun = True, at
        if self._life is not None and self._life.stopped:
            self._now(stopped=False, again=True)
        self._begins({**record, "reason": "started"} if self.lives else record, at)

    def _restart(self, record: Record, at: float) -> None:
        self._now(until=at, again=True)
        self._begins(record, at)

    def _begins(self, record: Record, at: float) -> None:
        life = Life(whole(record.get("attempt")) or len(self.lives) + 1, text(record.get("reason")), at, at)
        self.lives.append(life._replace(offset=self._offset or 0.0))

    def _first_beat(self, record: Record, at: float) -> None:
        self._now(first_beat=at)
        self._stepped(at, whole(record.get("step")))

    def _progress(self, record: Record, at: float) -> None:
        step = whole(record.get("step"))
        self._stepped(at, step)
        if record.get("by") == "checkpoint" and self._life is not None:
            self._now(saved=at)
            self.checkpoints.append(Checkpoint(at, self._life.number, step))

    def _suspect(self, record: Record, at: float) -> None:
        self._mark(record, "suspect", sentence(record))

    def _cleared(self, record: Record, at: float) -> None:
        self._mark(record, "cleared", text(record.get("why")))

    def _hang(self, record: Record, at: float) -> None:
        age, where = number(record.get("age")) or 0.0, text(record.get("why"))
        why = sentence(record) + (f", at {where}" if where else "")
        self._mark(record, "hang", why)
        self._stepped(at - age, whole(record.get("step")))
        self._now(cause="hang", why=why, silent=at - age, verdict=at, report=text(record.get("report")) or None)

    def _fault(self, record: Record, at: float) -> None:
        words = " ".join(text(record.get(name)) for name in ("device", "code", "severity"))
        self._mark(record, "fault", words)
        if record.get("severity") in ACTING and self._life is not None and self._life.cause is None:
            self._now(cause="fault", why=words, verdict=at)

    def _exited(self, record: Record, at: float) -> None:
        signal, code = whole(record.get("signal")), whole(record.get("code"))
        status = f"signal {signal} ended the command" if signal is not None else f"the command exited with {code}"
        life = self._life
        if life is None or life.verdict is not None:
            self._now(rested=at)
            return
        self._now(verdict=at, rested=at)
        if code != 0 and life.cause is None:
            why = text(record.get("why")) or status
            self._mark(record, "failure", why)
            self._now(cause="failure", why=why)

    def _stopping(self, record: Record, at: float) -> None:
        life = self._life
        if record.get("by") == "outside":  # it may go on for long, and save what it did
            self._mark(record, "stop", f"stop asked by signal {whole(record.get('signal'))}")
            if life is not None and life.cause is None:
                self._now(cause="stop")
            return
        if life is not None and life.verdict is None:
            self._now(verdict=at)
        self._now(rested=at)

    def _killed(self, record: Record, at: float) -> None:
        self._now(rested=at, killed=whole(record.get("processes")))

    def _healing(self, record: Record, at: float) -> None:
        if self._life is not None:
            self._now(rests=(*self._life.rests[-63:], (at, "healing" if record.get("device") else "waiting")))

    def _escalated(self, record: Record, at: float) -> None:
        self._mark(record, "escalated", f"{text(record.get('verdict'))} ({whole(record.get('exit_code'))})")

    def _order(self, record: Record, at: float) -> None:
        if record.get("ok"):
            self._mark(record, "order", f"{text(record.get('what'))} by {text(record.get('by'))}")

    def _paused(self, record: Record, at: float) -> None:
        self._paused_since = at if self._paused_since is None else self._paused_since

    def _resumed(self, record: Record, at: float) -> None:
        """For as long as nothing had moved in the pause it stood; the rest of it counts as any time."""
        stood = number(record.get("stood")) or 0.0
        if self._paused_since is not None and stood > 0:
            self.paused.append(Stretch(max(self._paused_since, at - stood), at, "paused"))
        self._paused_since = None

    def _ended(self, record: Record, at: float) -> None:
        self.verdict, self.exit_code = text(record.get("verdict")), whole(record.get("exit_code"))
        self.why = text(record.get("why"))
        if self.open:
            self._now(kept=self.exit_code == 0, stopped=self.verdict == STOPPED)
            self._finished(at)
        self._offset = None  # whatever comes next is another ftrun's

    def _finished(self, at: float) -> None:
        """This ftrun is at its end, or was found dead."""
        self._resumed({}, at)
        if self._begun is not None:
            self._now(until=at)
            self.runs.append((self._begun, at))
        self.open, self._begun = False, None

    def _last_sign(self, before: float) -> float:
        """Of this ftrun, which was killed."""
        life = self._life
        if life is None:
            return self._at
        signs = (seen[life.number] + life.offset for seen in self._seen if life.number in seen)
        return max((at for at in signs if self._at < at < before), default=self._at)

    def close(self, now: float, lives: bool) -> None:
        """Nothing more is known; `lives`: what runs still does."""
        if not self.open:
            return
        self._finished(max(self._at, now) if lives else self._last_sign(now))
        self._now(under_way=lives, cut_off=not lives)
        self.open = lives


HEARD: Final = frozenset(
    (
        *("started", "restart", "first_beat", "progress", "suspect", "cleared", "hang", "fault", "exited", "stopping"),
        *("killed", "healing", "escalated", "order", "paused", "resumed", "ended"),
    )
)


OF_AN_ATTEMPT: Final = ("restart", "first_beat", "progress", "suspect", "hang", "exited")


def sentence(record: Record) -> str:
    """A finding, short."""
    silent = Silent(whole(record.get("rank")), whole(record.get("step")), text(record.get("section")))
    rule = text(record.get("rule"))
    return next((known.brief(silent) for name, known in RULES.items() if name == rule), RULES["step"].brief(silent))
