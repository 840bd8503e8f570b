"""The present state of a run as values, for `ftctl status`, `top`, the page and the metrics.  Times are in seconds."""

from typing import Final

from ftrun.core.machine.values import Rule
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.standby import NextStart
from ftrun.core.text import sentences
from ftrun.records.files.recent_events import Incident

PROVED: Final = "what is proved to hang"


class Limit(NamedTuple):
    """A timeout in force: `hang`, `start`, `section`, `automatic section`, `spin` or `idle`.  `seconds` None: it is
    off, or hangs are proved.

    `source`: where its value comes from, as text: `default`, `option`, `environment`, `annotations` or `config file`,
    and what it applies to.
    """

    name: str
    seconds: float | None
    source: str

    @property
    def proved(self) -> bool:
        """Whether hangs are proved, which needs no time."""
        return self.seconds is None and self.source.endswith(PROVED)


class RankNow(NamedTuple):
    """`moved` and `alive`: seconds ago; None: never.  `step_time`: seconds per step, over the last
    minute, or over this attempt until that is known; `work`: of these, the time in which it does not wait for other
    ranks, None where that is not known (ADR 36).

    `state`: `starting`, `moving`, `section`, `done`, `gone`, or `exited` for a rank that ftrun started and that failed.
    `rule`: the hang rule that would find this rank first, with its `limit`; None where none does by time alone.  `age`:
    of its silence.
    """

    rank: int
    pid: int
    state: str
    step: int | None = None
    moved: float | None = None
    alive: float | None = None
    section: str | None = None
    rule: Rule | None = None
    age: float | None = None
    limit: float | None = None
    step_time: float | None = None
    local_rank: int | None = None  # of a rank that ftrun started
    exit: str | None = None  # how it ended, as text
    straggler: str | None = None  # why it is slow against the others
    work: float | None = None
    device: str | None = None  # the id of its accelerator, where each rank has one
    cpu: float | None = None  # per cent of one processor that its process uses; only `top` and the page measure it
    memory: int | None = None  # bytes of memory in which its process is resident; as `cpu`

    @property
    def used(self) -> float:
        """The part of its limit that it has used up."""
        return 0.0 if self.age is None or not self.limit else self.age / self.limit

    @property
    def called(self) -> str:
        """`rank 5`; `rank 5 (local rank 1)` where ftrun started it and the two numbers differ, as in a group."""
        text = sentences.rank(self.rank)
        return text if self.local_rank in (None, self.rank) else f"{text} (local rank {self.local_rank})"


class DeviceNow(NamedTuple):
    """A device as the probe reported it `age` ago.  Memory in bytes, `power` in W, `util` in per cent; None: not
    reported.

    `health`: `ok`, or the driver's name for another state; `recovery`: the action that the driver asks for.
    """

    id: str
    name: str = ""
    util: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power: float | None = None
    age: float = 0.0
    index: int | None = None  # type: ignore[assignment]  # a tuple has a method of that name
    health: str | None = None
    recovery: str | None = None

    @property
    def fault(self) -> str:
        """What the driver reports against it; empty: nothing, or no answer of the driver yet."""
        asks = "" if self.recovery in (None, "none") else f"the driver asks for: {self.recovery}"
        return ", ".join(filter(None, ("" if self.health in (None, "ok") else self.health, asks)))


class JobNow(NamedTuple):
    """What is wrong with the job of a group beside this member: a sentence, with who is missing, what is waited for and
    until when; `state`: the same without times.  `lost`: a member is."""

    text: str
    state: str
    lost: bool = False


class StalledRank(NamedTuple):
    """A rank that has not moved for `age` seconds, unusually long, and nothing is proved."""

    rank: int
    age: float


class Snapshot(NamedTuple):
    """`alive`: an ftrun is running in this run dir.  `phase`: launching, starting, running, suspect, stopping, healing,
    waiting, spare, finished, done; or `cut off` where ftrun died without a verdict.

    `counts`: consecutive restarts without progress, by cause; `left`: how many more are permitted (None: no limit).
    Both are empty after the end, when a new run would begin with a full budget.  `restarts`: all in this run dir, by
    reason, or without a `state.json` those among the newest records.  `reason`: why this attempt was started; empty:
    unknown.  `trouble`: the last incident (a fixed name of the JSON).

    A run that is cut off is shown as it was at its end.  `deadline`: seconds until `next`, a sentence on what happens
    then.  `lost`: seconds by reason; `goodput`: 0 to 1, None while no step and no checkpoint
    has been seen.
    """

    run_dir: str
    alive: bool
    phase: str
    attempt: int
    reason: str
    origin: str = ""  # what happened on another member, where that is the reason: `a failure on node-b`
    command: tuple[str, ...] = ()
    version: str = ""
    pid: int | None = None  # of the command
    node: str = ""  # its name
    part: str = ""  # the phase of this command, where several run in sequence
    schedule_cnt: int | None = 1
    began: str | None = None  # ISO-8601
    ended: str | None = None  # ISO-8601; of a run that is cut off: of its last record
    wall: float | None = None
    up: float | None = None  # since the exec of this attempt
    first_beat: float | None = None  # the longest time from a start to its first heartbeat, of earlier starts
    paused: float | None = None  # for so long; no verdicts meanwhile
    resumes: float | None = None  # by itself in so long
    paused_by: str = ""  # who paused it
    suspended: float | None = None  # the command is stopped by job control for so long; no verdicts meanwhile
    counts: dict[str, int] = {}  # noqa: RUF012 - a value, never changed
    left: dict[str, int | None] = {}  # noqa: RUF012 - likewise
    restarts: dict[str, int] = {}  # noqa: RUF012 - likewise
    step: int | None = None
    best_step: int | None = None
    step_time: float | None = None  # s
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    checkpoint_age: float | None = None
    checkpoint_time: str | None = None  # ISO-8601
    ranks: tuple[RankNow, ...] = ()
    slowest: RankNow | None = None  # the one with the lowest step
    stalest: RankNow | None = None  # the one nearest to its limit, or else silent for the longest time
    limits: tuple[Limit, ...] = ()
    deadline: float | None = None
    next: str | None = None
    round: int | None = None  # of ranks that can recover, the one at work or that has ended last
    recovery: str | None = None  # how they recover at this moment
    recovered: dict[str, int] = {}  # noqa: RUF012 - so often in this run dir, by rung
    next_start: NextStart | None = None  # whether it would be warm; None: no standbys
    stalled: StalledRank | None = None
    heartbeats: str | None = None  # where they come from, or what would add them
    wait: str | None = None  # what a job that stands still waits for, according to the last look at it
    devices: tuple[DeviceNow, ...] = ()
    trouble: Incident | None = None
    lost: dict[str, float] = {}  # noqa: RUF012 - likewise
    goodput: float | None = None
    verdict: str | None = None
    exit_code: int | None = None
    why: str | None = None
    since: float | None = None  # how long it has been in this phase
    group: str | None = None  # the state of the group that it is a member of
    job: JobNow | None = None  # what is wrong beside this member; None: nothing, as far as it knows
    lost_members: int | None = None  # of that group, that are lost or not heard of; None: not known
    problems: tuple[str, ...] = ()  # what could not be read, one line each
    stopped: int | None = None  # the pid of ftrun, which a signal has stopped, so that it watches nothing
    full_disk: bool = False  # that of the run dir: what its files say may be out of date
