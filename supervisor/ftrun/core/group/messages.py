"""The messages of a group (one ftrun in each container): the reports of the members to rank 0, and its orders to all of
them.  Each is a complete state, so that a lost, late or repeated message does no harm."""

from typing import Final, Literal

from ftrun.core.machine.values import Reason
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.shared import GroupRound, NodeRounds

SILENCE: Final = 60.0  # s without a message after which a member counts as lost: the default of `--peer-timeout`
MOST_LIVES: Final = 32  # members of a group in which each knows the ftruns of all
MISSED_PULSES: Final = 3  # the least number of pulses from a node that must be missing
Places = tuple[tuple[int, int], ...]
"""Members in the order of their places (places.py), as pairs: the first of consecutive members, and how many."""
Counts = tuple[int, int, int]  # restarts in a row without progress: hang, fault, failure

ReportedState = Literal["ready", "running", "fallen", "stopping", "done", "ending", "leaving", "left"]
"""`ready`: nothing of an earlier epoch runs here, and nothing prevents a start.  `running`: the command of `epoch`
runs.  `fallen`: the command ended by itself, and the cause is not known yet.  `stopping`: the tree is being stopped, a
device is being healed, or a delay is under way; `ready` follows.  `done`: the command succeeded.  `ending`: it ended
with a verdict, which waits for the group's decision.  `leaving`: this container was asked from outside to stop.
`left`: the last report of this ftrun."""


class NodeFailure(NamedTuple):
    """Why a member itself stopped, or is stopping, the command of its epoch.  `age`: how many seconds before this
    report that began.  `rank`, `step`: of the suspect; `waits`: its stack shows that it waits for others; `proved`: it
    is proved to be the cause.  `symptom`: its exception is the consequence of the end of another process, such as a
    broken connection."""

    cause: Reason
    why: str
    age: float = 0.0
    rank: int | None = None
    step: int | None = None
    waits: bool = False
    symptom: bool = False
    proved: bool = False


class GroupEnd(NamedTuple):
    """A verdict.  `asked`: it follows from a stop from outside.  `cut`: this member lost contact with rank 0, so that
    the verdict means the loss of this member and is none about the job.  `loss`: members are missing, and no command
    has hung."""

    code: int
    verdict: str
    why: str
    node: str | None = None
    device: str | None = None
    asked: bool = False
    cut: bool = False
    loss: bool = False


class Ranks(NamedTuple):
    """What a member offers for its next start, where ftrun starts the ranks: how many it will start.  Of a member that
    may get the first place also: its address, where the others can reach it (empty: they know it themselves), and a
    port that is reserved there."""

    number: int
    address: str = ""
    port: int = 0


class Starter(NamedTuple):
    """The ftrun that started an epoch: member 0's, or that of `rank` which has taken over (lease.py).  A later one
    learns of it from the members, and starts nothing while it may still be at work.  `host`: where the member
    reached it that reports it; `port`: there it has accepted connections, as long as it lives; 0: not known.
    `contained`: if it dies, the kernel ends all of its processes.  `left`: it has ended, and nothing of it runs.
    """

    life: str
    node: str
    boot: str
    host: str = ""
    port: int = 0
    contained: bool = False
    left: bool = False
    rank: int = 0


class Life(NamedTuple):
    """The ftrun of a member that runs an epoch.  `host` and `port`: where rank 0 has reached it, and where it accepts
    connections as long as it lives; `boot`, `contained`: as in `Starter`."""

    rank: int
    life: str
    boot: str
    host: str
    port: int
    contained: bool = False


class EpochRanks(NamedTuple):
    """The ranks of an epoch.  Rank 0 of the job listens at `address` and `port`; `counts`: pairs (members, ranks of
    each of them), in the order of their places."""

    address: str
    port: int
    counts: tuple[tuple[int, int], ...]


class MemberReport(NamedTuple):
    """The complete state of a member, for rank 0.  `life` identifies this ftrun process, and `seq` rises within it.
    `epoch`: the newest epoch that this member has run or that rank 0 has ended; the member starts only later ones.
    `end`: only with `ending`, `done`, `left`.  `ran`: the last epoch whose command this ftrun process itself started;
    0: none.  `ranks`: None if the command is one process.  `rounds`: None if its ranks cannot recover.  `places`: of
    `epoch`; empty: not known.  `address`: where the other members can reach this one; empty: at the endpoint of the
    group.  `checkpoint`: a number that rises with each checkpoint that is safe on disk in this attempt.  `regains`:
    devices that the command here runs without, and that are well again.  `starter`: of `epoch`, if this member started
    it or waits as its spare; None: not known.  `lives`: all others that may run `epoch` or a later one, as far as they
    are known; only from a member that ran it, and of which no earlier rank 0 can know that it has stopped, since no
    later epoch can have begun then.
    """

    rank: int
    life: str
    seq: int
    node: str
    boot: str  # of its machine
    epoch: int
    state: ReportedState
    failure: NodeFailure | None = None  # in this epoch
    end: GroupEnd | None = None
    counts: Counts = (0, 0, 0)
    progressed: bool = False  # in this epoch, beyond all earlier ones
    devices_unchanged: bool = False  # for the idle timeout: it does nothing, or its accelerators have not changed
    paused: float | None = None  # verdicts are paused for so many more seconds; inf: until resumed; 0: resumed
    ran: int = 0
    ranks: Ranks | None = None  # of the next start
    rounds: NodeRounds | None = None
    places: Places = ()
    address: str = ""
    checkpoint: int | None = None
    regains: tuple[str, ...] = ()
    starter: Starter | None = None
    lives: tuple[Life, ...] = ()
    devices_waited: bool = False  # for the limit of that rule its ranks wait for devices or each other, and none works


class Pulse(NamedTuple):
    """The rank of a member that stopped first, as of the member's last heartbeat: `age` seconds without a step or
    heartbeat."""

    rank: int
    step: int | None
    age: float


class GroupOrder(NamedTuple):
    """What every member must do now.  `wait`: continue as before.  `run`: the command of `epoch` runs; a member that is
    ready and has not run it starts it, a member that runs an older one stops that.  `stop`: `epoch` is over.  `end`:
    the job ends with `end`.

    `why` is one line for a person; `cause`, `node`, `member`, `rank`, `step`: of the first failure.  `counts` hold from
    this epoch on; `progressed`: a member made progress in this epoch, which resets them.  `devices_unchanged`: for the
    idle timeout each member that has not ended did nothing, or its accelerators have not changed; `devices_waited`: for
    the limit of that rule all ranks of each wait for devices or each other, and no device works.  `paused`: as in
    `MemberReport`.  `world`: with a `run` that starts an epoch, where ftrun starts the ranks.  `round`: what their
    ranks do within the epoch; None: they do not recover, or (with `wait`) that is not known.  `places`: the members
    that work in `epoch`, in the order of their nodes; each other member waits as a spare.  `master`: the address of the
    first of them; empty: the endpoint's.  `starter`: of `epoch`, if this coordinator has started it, or ends; None: not
    known.  `lives`: of those that run `epoch`, but member 0.
    """

    epoch: int
    what: Literal["wait", "run", "stop", "end"]
    why: str = ""
    cause: Reason | None = None
    node: str | None = None
    rank: int | None = None
    step: int | None = None
    counts: Counts = (0, 0, 0)
    progressed: bool = False
    devices_unchanged: bool = False
    paused: float | None = None
    end: GroupEnd | None = None
    world: EpochRanks | None = None
    round: GroupRound | None = None
    places: Places = ()
    master: str = ""
    starter: Starter | None = None
    lives: tuple[Life, ...] = ()
    member: int | None = None
    devices_waited: bool = False
