"""What the members of a group (one ftrun a container) tell rank 0, and what it orders all of them: whole states, so
that a message that is lost, late or repeated does no harm."""

from typing import Final, Literal, NamedTuple

from ftrun.core.machine.values import Reason

SILENCE: Final = 60.0  # s without a word of a member that count as its loss: the default of `--peer-timeout`
BEATS: Final = 3  # heartbeats that have to be missing, at least
Counts = tuple[int, int, int]  # restarts in a row without progress: hang, fault, failure

State = Literal["ready", "running", "fallen", "stopping", "done", "ending", "leaving", "left"]
"""`ready`: nothing of an earlier epoch runs here, and nothing stands against a start.  `running`: the command of
`epoch`.  `fallen`: it ended by itself, and it is not known yet of what.  `stopping`: the tree is being ended, or a
device healed, or a wait is under way; `ready` follows.  `done`: it ended well.  `ending`: it ended, with a verdict, and
waits for the word of the group.  `leaving`: this container is asked to stop from outside.  `left`: the last word of
this ftrun."""


class NodeFailure(NamedTuple):
    """Why a member ended, or ends, the command of its epoch by itself.  `age`: for how long it has been so, in seconds
    when this was said.  `rank`, `step`: of the suspect; `waits`: its stack shows that it waits for others."""

    cause: Reason
    why: str
    age: float = 0.0
    rank: int | None = None
    step: int | None = None
    waits: bool = False


class GroupEnd(NamedTuple):
    """A verdict.  `asked`: it comes of a stop from outside.  `cut`: it comes of not hearing rank 0, so that it is the
    loss of this member, and no verdict about the job."""

    code: int
    verdict: str
    why: str
    node: str | None = None
    device: str | None = None
    asked: bool = False
    cut: bool = False


class Report(NamedTuple):
    """All that rank 0 has to know of a member.  `life` names this ftrun: another one in its place has another; `seq`
    rises in it.  `epoch`: of the command that runs or ran last, or of the last that it was told to be over: none up to
    there will start here.  `end`: only with `ending`, `done`, `left`.  `ran`: the last epoch whose command was started
    by this ftrun itself; 0: none.
    """

    rank: int
    life: str
    seq: int
    node: str
    boot: str  # of its machine
    epoch: int
    state: State
    trouble: NodeFailure | None = None  # in this epoch
    end: GroupEnd | None = None
    counts: Counts = (0, 0, 0)
    progressed: bool = False  # in this epoch, beyond all earlier ones
    still: bool = False  # its accelerators have not changed for as long as a hang takes
    paused: float | None = None  # verdicts are held back for so many more seconds; inf: until resumed; 0: resumed
    ran: int = 0


class Pulse(NamedTuple):
    """The rank of a member that stopped first, as of its last heartbeat: `age` s without a step, or a beat."""

    rank: int
    step: int | None
    age: float


class GroupOrder(NamedTuple):
    """What every member is to do now.  `wait`: go on with what you do.  `run`: the command of `epoch` runs; who is
    ready and has not run it starts it, who runs an older one ends that.  `stop`: `epoch` is over.  `end`: all is, with
    `end`.

    `why` is one line for a person; `cause`, `node`, `rank`, `step`: of the first trouble.  `counts` hold from this
    epoch on; `progressed`: some member did in this epoch, so that they are zero.  `still`: the accelerators of all have
    not changed for as long as a hang takes.  `paused` as in `Report`.
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
    still: bool = False
    paused: float | None = None
    end: GroupEnd | None = None
