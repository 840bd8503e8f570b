"""What the core knows: plain values.  Times are CLOCK_MONOTONIC seconds, durations are seconds."""

from typing import Final, Literal, NamedTuple

from ftrun.core.accounting.totals import Account
from ftrun.core.rules.fault_history import Occurrence
from ftrun.core.rules.idle import Idle

Cause = Literal["hang", "fault", "failure"]
CAUSES: Final[tuple[Cause, ...]] = ("hang", "fault", "failure")
Reason = Literal["first", "hang", "fault", "failure", "manual", "peer"]
Rule = Literal["step", "start", "section", "idle"]  # by which a hang is found; `hang_rules.RULES` says what each means
TOUCH: Final = -1  # the "rank" of the touch file; of several processes without RANK it is -1 - pid


def unranked(pid: int) -> int:
    """What stands in place of the rank for one of several processes without RANK that step: below `TOUCH`."""
    return TOUCH - pid


class Section(NamedTuple):
    """`side`: entered by a thread that does not train, so that the steps are judged as well.  `automatic`: by the
    hooks themselves, around a call of the program's; `longest`: in seconds, of the earlier ones of its name in this
    process, where there were enough to judge by."""

    name: str
    started: float
    timeout: float | None = None
    side: bool = False
    automatic: bool = False
    longest: float | None = None


class SavedFile(NamedTuple):
    """A file of the program's.  `version` is its size and time of modification, which a rename keeps; "-": unknown."""

    path: str
    version: str = "-"


class Rank(NamedTuple):
    """One rank as last seen.  `present`: its process lives.  `moved_at` is None until it first moved.

    `saved`: files that it saved after its first movement, by a library that the hooks know, the newest last.
    `resumed`: files that it loaded before.
    """

    rank: int
    pid: int = 0
    present: bool = True
    claimed_at: float = 0.0
    alive_at: float | None = None
    moved_at: float | None = None
    step: int | None = None
    credit: float = 0.0  # time in closed sections since it moved: ages nobody
    done: bool = False
    fatal: str | None = None
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None
    sections: tuple[Section, ...] = ()  # outermost first
    broken: str | None = None  # the section that an exception closed, if nothing has moved since
    intervals: int = 0  # silences between two movements that were seen; of those, in seconds:
    usual: float = 0.0  # the 99th percentile of the last thousand
    longest: float = 0.0  # of all but the first ten
    slowest_start: float = 0.0  # the longest of the first ten
    saved: tuple[SavedFile, ...] = ()
    resumed: tuple[SavedFile, ...] = ()
    ranked: bool = True  # RANK or the like told its rank; without, `rank` is 0
    parents: tuple[int, ...] = ()  # the pids of the processes that one without RANK descends from, the nearest first


class Finding(NamedTuple):
    """Why a rank, or the whole tree, is taken for hung: silent for `age`, over `limit`.  `learned`: nobody gave that
    limit, so that evidence may raise it."""

    rule: Rule
    rank: int | None
    age: float
    limit: float
    step: int | None = None
    section: str | None = None
    pid: int = 0
    learned: bool = False


class RaisedLimit(NamedTuple):
    """Evidence spoke for this rank: its learned limit is `limit` until the hooks have counted the silence."""

    rank: int
    limit: float


class Fault(NamedTuple):
    """A device fault.  `severity` is one of `core.faults.SEVERITIES`."""

    device: str
    code: str
    severity: str
    why: str = ""

    @property
    def acts(self) -> bool:
        """Whether it ends the attempt by itself: never a warning or an unknown code, nor a fault of the program's own
        after which the program can go on (`user`)."""
        return self.severity in ("minor", "minor+user", "major", "critical")

    @property
    def by_user(self) -> bool:
        """Whether the program caused it, by an operator or by its input: no number of such faults isolates a node."""
        return self.severity in ("user", "minor+user")

    @property
    def place(self) -> tuple[str, str]:
        return self.device, self.code

    @property
    def mark(self) -> tuple[str, str, str]:
        """What makes it the same fault again within an attempt."""
        return self.device, self.code, self.severity


class Device(NamedTuple):
    """One that the command may use: `word` names it in the environment variable `variable`."""

    id: str
    variable: str = ""
    word: str = ""


class Attempt(NamedTuple):
    """Facts about one start of the command; a restart forgets them.

    `patience` multiplies learned limits: it doubles with each hang in a row, since one that comes again and again may
    be a silence that this program needs.  `first_beat`: as in `Ledger`, when this attempt began.  `start_raised`:
    evidence spoke for a start without a beat, so that it may last at least so many seconds.  `inherited`: what earlier
    attempts saved, as in `Ledger`, when this attempt began.
    """

    number: int
    pid: int = 0
    spawned_at: float = 0.0
    ranks: tuple[Rank, ...] = ()
    aways: tuple[tuple[float, float], ...] = ()  # stretches in which nobody was judged
    everywhere: bool = False  # the accelerators of all containers of the group hold still
    stopped_at: float | None = None  # stopped by the user's job control since
    forwarded: frozenset[int] = frozenset()
    progressed: bool = False
    raised: tuple[RaisedLimit, ...] = ()
    idle: Idle = Idle()
    patience: int = 1
    first_beat: float | None = None
    start_raised: float = 0.0
    inherited: tuple[SavedFile, ...] = ()
    known: tuple[tuple[str, str, str], ...] = ()  # faults that were counted: one that fires again and again is one
    fault: Fault | None = None  # user-induced, seen while training still moved
    fault_at: float = 0.0
    barred: bool = False  # some of its processes run as a user who cannot give beats: none that is missing counts
    reported: bool = False  # a hang on which nothing is done was reported

    @property
    def moved(self) -> bool:
        return any(r.moved_at is not None for r in self.ranks)

    @property
    def step(self) -> int | None:
        return max((r.step for r in self.ranks if r.step is not None), default=None)

    @property
    def checkpoint(self) -> Rank | None:
        """The rank that reported the newest checkpoint."""
        reported = [r for r in self.ranks if r.checkpoint_step is not None]
        return max(reported, key=lambda r: r.checkpoint_step or 0) if reported else None

    @property
    def section(self) -> str | None:
        """The outermost section that the lowest rank is in, or broke in: the stretch that a restart may want to skip.
        One that the hooks opened by themselves tells the program nothing."""
        inside = (next((s.name for s in r.sections if not s.automatic), r.broken) for r in self.ranks)
        return next((name for name in inside if name is not None), None)

    @property
    def fatal(self) -> str | None:
        return next((r.fatal for r in self.ranks if r.fatal is not None), None)


class LearnedTimeouts(NamedTuple):
    """What `--hang-timeout auto` knows of the job, in seconds; the figures behind `limit` are those of `Rank`."""

    limit: float
    usual: float
    longest: float
    intervals: int
    slowest_start: float


class Ledger(NamedTuple):
    """What outlives an attempt, a crash of ftrun and a restart of the container in the same pod.

    `first_beat`: the longest time in seconds that an attempt took from its spawn to its first movement; None while none
    has moved.
    """

    start_cnt: int = 0
    schedule_cnt: int = 1
    hang: int = 0  # restarts in a row without progress, a count a cause
    fault: int = 0
    failure: int = 0
    best_step: int | None = None
    best_checkpoint: int | None = None
    last_step: int | None = None
    last_checkpoint: str | None = None
    last_section: str | None = None
    reason: Reason = "first"  # why the attempt under way was started
    learned: LearnedTimeouts | None = None
    occurrences: tuple[Occurrence, ...] = ()
    removed: tuple[str, ...] = ()  # ids of devices that the command does without
    visible: tuple[str, ...] = ()  # if so: a variable, and the words for it of those that are left
    reached: bool = False  # this schedule got beyond all earlier ones
    faulted: bool = False  # a device fault acted on this schedule
    first_beat: float | None = None
    saved: tuple[SavedFile, ...] = ()  # by the program itself, the newest last
    job: str = ""  # what identifies the training job: faults of another one are not counted
    epoch: int = 0  # of the group: that of the command that runs, or ran last
    account: Account = Account()  # where the time went

    def count(self, cause: Cause) -> int:
        return {"hang": self.hang, "fault": self.fault, "failure": self.failure}[cause]

    def counted(self, cause: Cause) -> "Ledger":
        if cause == "hang":
            return self._replace(hang=self.hang + 1)
        if cause == "fault":
            return self._replace(fault=self.fault + 1)
        return self._replace(failure=self.failure + 1)
