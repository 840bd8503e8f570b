"""The plain values of the core.  Times are CLOCK_MONOTONIC seconds, durations are seconds."""

from typing import Any, Final, Literal

from ftrun.core.accounting.totals import Account
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.table import Rounds
from ftrun.core.rules.fault_history import Occurrence
from ftrun.core.rules.idle import Idle
from ftrun.core.rules.regain import Regain

Cause = Literal["hang", "fault", "failure"]
CAUSES: Final[tuple[Cause, ...]] = ("hang", "fault", "failure")
Reason = Literal["first", "hang", "fault", "failure", "manual", "peer", "returned"]
# The rules that find hangs: `hang_rules.RULES`.
Rule = Literal["step", "start", "section", "idle", "deadlock", "device-wait", "spin"]
TOUCH: Final = -1  # the "rank" of the touch file; of several processes without RANK it is -1 - pid


def unranked(pid: int) -> int:
    """The number below `TOUCH` that stands for the rank of a process, where several processes without RANK step."""
    return TOUCH - pid


class Section(NamedTuple):
    """A section that is open.  `side`: a thread that does not train entered it, so that the steps are still checked.
    `automatic`: the hooks opened it themselves, around a call of the program."""

    name: str
    started: float
    timeout: float | None = None
    side: bool = False
    automatic: bool = False


class SavedFile(NamedTuple):
    """A file of the program.  `version` is its size and modification time, which a rename keeps, with the number of
    its inode if it was loaded; "-" and that number if it was still open when its save returned."""

    path: str
    version: str = "-"


class Rank(NamedTuple):
    """One rank, as last read.  `present`: its process is alive.  `moved_at` is None until it has first moved.

    `saved`: the files that it saved after its first movement, through a library that the hooks know, the newest last.
    `resumed`: the files that it loaded before that.
    """

    rank: int
    pid: int = 0
    present: bool = True
    claimed_at: float = 0.0
    alive_at: float | None = None
    moved_at: float | None = None
    step: int | None = None
    credit: float = 0.0  # seconds in closed sections since it moved, which do not count as silence
    done: bool = False
    fatal: str | None = None
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None
    sections: tuple[Section, ...] = ()  # outermost first
    broken: str | None = None  # the section that an exception closed, if nothing has moved since
    intervals: int = 0  # how many silences between two movements were measured; their figures, in seconds:
    usual: float = 0.0  # the 99th percentile of the last thousand
    longest: float = 0.0  # the longest, without the first ten
    slowest_start: float = 0.0  # the longest of the first ten
    saved: tuple[SavedFile, ...] = ()
    resumed: tuple[SavedFile, ...] = ()
    ranked: bool = True  # the rank comes from RANK or a similar variable; otherwise `rank` is 0
    parents: tuple[int, ...] = ()  # pids of the ancestors of a process without RANK, the nearest first
    source: str = ""  # the framework whose calls gave the first heartbeat; empty: the program did it itself
    unseen: bool = False  # the command has deleted the file that its heartbeats are in, and it has not moved since


class Finding(NamedTuple):
    """Why a rank, or the whole tree, is suspected to hang: it was silent for `age` seconds, longer than `limit`.
    `mechanism`: what looks have shown, a sentence."""

    rule: Rule
    rank: int | None
    age: float
    limit: float
    step: int | None = None
    section: str | None = None
    pid: int = 0
    mechanism: str = ""


class Standstill(NamedTuple):
    """The rank that has stood still for the longest time (None: the command), and since when."""

    rank: int | None
    since: float


class ClosedLook(NamedTuple):
    """A look that began at `at` and found that nothing can end the wait any more; the other fields are as in
    `events.Looked`."""

    at: float
    fingerprint: str
    mechanism: str
    rank: int | None = None
    pid: int = 0


class Spin(NamedTuple):
    """A rank whose main thread computes, as a look that began at `since` saw it.  `why`: a sentence; `fingerprint`: the
    same while it is in the same function, has read and written nothing, and has started and collected no process;
    `others`: CPU seconds so far of its other threads and its descendants.  `on_device`: all ranks of the node, of which
    this one has stood still for the longest time, wait for their devices or for each other.  `launched`: the same while
    the library of their collectives launches none; empty where it does not say."""

    since: float
    why: str
    fingerprint: str
    rank: int | None = None
    pid: int = 0
    others: float = 0.0
    on_device: bool = False
    launched: str = ""


class LookState(NamedTuple):
    """What the looks at this attempt have shown since it last moved (core/rules/looks.py)."""

    still: Standstill | None = None  # None: not known yet, or no rank is awaited
    begun: float | None = None  # when the look that is under way began
    age: float = 0.0  # s for which the job had stood still at the last look
    again: float | None = None  # when the last look has to be confirmed
    earliest: float = 0.0  # no other look comes before that
    closed: ClosedLook | None = None  # the last look, if it was closed
    proved: bool = False  # two looks in a row have found the same deadlock
    raised: float = 0.0  # a proof was refuted: no look before the job has stood still for so many seconds
    wait: str = ""  # what the job waits for, according to the last look
    recorded: str = ""  # the same in the last record `look`
    failed: str = ""  # why the last look had no result, also before a movement
    repeats: int = 0  # looks that the group has asked for
    spin: Spin | None = None  # the first of the looks in a row that found the same rank computing


class EarlyEvidence(NamedTuple):
    """Evidence that is collected before the limit passes (core/rules/early_evidence.py).

    `finding`: what it is about if the limit passes, at `due`; None: none is being collected.  `begun`: when it was
    begun.  `earliest`: none is begun before that.
    """

    finding: Finding | None = None
    due: float = 0.0
    begun: float = 0.0
    earliest: float = 0.0


class Fault(NamedTuple):
    """A device fault.  `severity` is one of `fault_codes.SEVERITIES`.

    `retry`: what may cure it where ranks can recover: empty, a class of `fault_codes.RETRIES`, `request` (the platform
    asks for a retry), or `process` (the platform asks for a new process of `rank` alone).  `rank`, `local`: the numbers
    in the complete job and its container of the rank that has the fault, where the platform names it.  `preexisting`:
    the device had it before the first start, and the command runs nevertheless: it is only recorded."""

    device: str
    code: str
    severity: str
    why: str = ""
    retry: str = ""
    rank: int | None = None
    local: int | None = None
    preexisting: bool = False

    @property
    def acts(self) -> bool:
        """Whether the fault alone ends the attempt.  A warning, an unknown code, and a fault that the program caused
        and can survive (`user`) never do."""
        return self.severity in ("minor", "minor+user", "major", "critical") and not self.preexisting

    @property
    def asks_retry(self) -> bool:
        """Whether the platform asks for a retry, since the device needs no reset."""
        return self.retry == "request"

    @property
    def is_final(self) -> bool:
        """Whether the device cannot heal in this container.  What the platform asks for counts more than a table."""
        return self.severity == "critical" and not self.asks_retry

    @property
    def by_user(self) -> bool:
        """Whether the program caused it, by an operator or its input.  Such faults never isolate a node."""
        return self.severity in ("user", "minor+user") and not self.preexisting

    @property
    def healing(self) -> str:
        """What heals it, for the command of `--heal`: `minor`, a restart, or `major`, a reset of the device."""
        return "major" if self.severity in ("major", "critical") else "minor"

    @property
    def key(self) -> tuple[str, str]:
        return self.device, self.code

    @property
    def mark(self) -> tuple[str, str, str, str]:
        """Two faults of one attempt with equal marks are the same fault."""
        return self.device, self.code, self.severity, self.retry


class LinkFault(NamedTuple):
    """A fault of a link, since `since`: the communication library's own retries come first.  `limit`: how long a rank
    may stand still before they count as used up, in seconds."""

    fault: Fault
    since: float
    limit: float


class UsableDevice(NamedTuple):
    """A device that the command may use: `name` is its name in the environment variable `variable`."""

    id: str
    variable: str = ""
    name: str = ""


class VisibleDevices(NamedTuple):
    """The devices that the command gets: the value of `variable` is `names`, joined by commas."""

    variable: str
    names: tuple[str, ...]


class LocalRank(NamedTuple):
    """A process that ftrun itself started as a rank (`--nproc-per-node`).  `rank`: its number in the whole job,
    `local_rank`: on this node.  `code` or `signal` is set once it has ended, at `exited_at`.  `started_at`: when its
    process was started in place of an earlier process; None: with the attempt.  `exception`: the last that one of its
    processes left."""

    rank: int
    local_rank: int
    pid: int
    exited_at: float | None = None
    code: int | None = None
    signal: int | None = None
    started_at: float | None = None
    exception: str = ""


class RankPlace(NamedTuple):
    """The ranks of one member of a group: `number` of them, counted from `first` among `size` in the whole job.
    `member` of `members`.  Rank 0 of the job listens at `address`, which is empty if only each member itself knows it,
    and at `port`."""

    first: int
    number: int
    size: int
    member: int
    members: int
    address: str
    port: int


class NodePlace(NamedTuple):
    """The place of one member of a group among the `nodes` that work in an epoch.  `master`: the address of the first
    of them; empty: the address of the endpoint."""

    number: int
    nodes: int
    master: str = ""


class Attempt(NamedTuple):
    """Facts about one start of the command; a restart discards them.

    `first_beat`, `inherited`: `first_beat` and `saved` of the `Ledger` when this attempt began.  `stalled`: a stall
    that was recorded, as long as it lasts (core/rules/stalls.py).
    """

    number: int
    pid: int = 0
    spawned_at: float = 0.0
    ranks: tuple[Rank, ...] = ()
    aways: tuple[tuple[float, float], ...] = ()  # periods (start, end) that do not count as silence
    group_is_idle: bool = False  # all containers of the group do nothing, or their accelerators are unchanged
    group_awaits_devices: bool = False  # the ranks of all containers of the group wait for devices, none of which works
    stopped_at: float | None = None  # since when the user's job control has stopped the command
    forwarded: frozenset[int] = frozenset()
    progressed: bool = False
    idle: Idle = Idle()
    first_beat: float | None = None
    inherited: tuple[SavedFile, ...] = ()
    counted_faults: tuple[tuple[str, ...], ...] = ()  # marks of faults already counted: a repeated one counts once
    fault: Fault | None = None  # a user-induced fault that was seen while training still moved
    fault_at: float = 0.0
    cannot_beat: bool = False  # missing heartbeats do not count: processes cannot send any, or they are not seen
    hang_reported: bool = False  # a hang that ftrun only reports has been recorded
    look: LookState = LookState()
    early: EarlyEvidence = EarlyEvidence()
    stalled: Standstill | None = None
    processes: tuple[LocalRank, ...] = ()  # the ranks that ftrun itself started, by local rank; `pid` is the first
    rounds: Rounds = Rounds()  # of these ranks, where they can recover
    replacements: int = 0  # `Ledger.replacements` when this attempt began
    saves: int = 0  # checkpoint files (`--progress`) that were saved in it, where one may make the job larger
    link: LinkFault | None = None
    retried_fault: Fault | None = None  # the last fault that a round of the ranks was to cure, at `retried_at`
    retried_at: float = 0.0
    regain: Regain = Regain()
    launched_at: float = 0.0  # no process of the attempt before has lived since then
    frameworks: tuple[str, ...] = ()  # libraries for training that the command has imported

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
        """The outermost section that the lowest rank is in, or failed in, which the program may want to skip after a
        restart.  Sections that the hooks opened themselves are left out, since the program does not know them."""
        inside = (next((s.name for s in r.sections if not s.automatic), r.broken) for r in self.ranks)
        return next((name for name in inside if name is not None), None)

    @property
    def is_at_end(self) -> bool:
        """Whether all its ranks have trained to their end, and some process of them is still there."""
        ranks = [rank for rank in self.ranks if rank.rank != TOUCH]
        return any(rank.present for rank in ranks) and all(rank.done or not rank.present for rank in ranks)

    @property
    def fatal(self) -> str | None:
        return next((r.fatal for r in self.ranks if r.fatal is not None), None)

    def rank_of(self, local_rank: int) -> int:
        return next((one.rank for one in self.processes if one.local_rank == local_rank), local_rank)

    def with_process(self, local_rank: int, **changed: Any) -> "Attempt":
        """The attempt with these changed fields of a process that ftrun started as a rank."""
        processes = (one._replace(**changed) if one.local_rank == local_rank else one for one in self.processes)
        return self._replace(processes=tuple(processes))


class NextStart(NamedTuple):
    """`ready` of the `of` processes of the next start wait with their imports done.  `why`: why the others do not, if
    that is known; `saved`: the seconds that the last warm start has saved up to its first heartbeat."""

    ready: int
    of: int
    why: str | None = None
    saved: float | None = None


class UsualPauses(NamedTuple):
    """What is known of the pauses between two movements, in seconds, as in `Rank`, after so many `steps`."""

    usual: float
    longest: float
    steps: int


class Ledger(NamedTuple):
    """State that outlives an attempt, a crash of ftrun and a restart of the container in the same pod.

    `first_beat`: the longest time in seconds that an attempt took from its spawn to its first movement; None until one
    has moved.  `replacements`: by how much the number of starts of any rank exceeds `start_cnt`, because ranks were
    replaced alone.
    """

    start_cnt: int = 0
    schedule_cnt: int = 1
    hang: int = 0  # restarts in a row without progress, one count for each cause
    fault: int = 0
    failure: int = 0
    best_step: int | None = None
    best_checkpoint: int | None = None
    last_step: int | None = None
    last_checkpoint: str | None = None
    last_section: str | None = None
    reason: Reason = "first"  # why the attempt under way was started
    learned: UsualPauses | None = None
    occurrences: tuple[Occurrence, ...] = ()
    removed: tuple[str, ...] = ()  # ids of devices that were taken away from the command
    visible: VisibleDevices | None = None  # the devices that are left, if some were taken away
    reached: bool = False  # this schedule got further than all earlier ones
    faulted: bool = False  # a device fault ended an attempt of this schedule
    first_beat: float | None = None
    saved: tuple[SavedFile, ...] = ()  # files that the program itself saved, the newest last
    job: str = ""  # identifies the training job; faults of other jobs are not counted
    epoch: int = 0  # the group's epoch of the command that runs or ran last
    account: Account = Account()  # where the time went
    replacements: int = 0
    retried: int = 0  # recoveries below the tree that have succeeded in this run dir, by their rung
    replaced: int = 0
    regained: tuple[str, ...] = ()  # devices for which a checkpoint restarts the command no more
    troubles: tuple[str, ...] = ()  # the last hangs and failures and their places: `hang at train.py:68`
    ended_at: tuple[int, ...] = ()  # how far the job was when an attempt hung after its end (`policy.extent`)

    @property
    def starts(self) -> int:
        """The highest number of starts of the command, or of a single rank that was replaced, in this pod."""
        return self.start_cnt + self.replacements

    def count(self, cause: Cause) -> int:
        return int(getattr(self, cause))

    def counted(self, cause: Cause) -> "Ledger":
        counts: dict[str, Any] = {cause: self.count(cause) + 1}
        return self._replace(**counts)
