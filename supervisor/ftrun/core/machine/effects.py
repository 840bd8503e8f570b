"""Effects: what the loop has to do, in order.  A record comes before any effect that is visible outside."""

from collections.abc import Iterator, Sequence

from ftrun.core.machine.values import Fault, Finding, NodePlace, RankPlace
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.table import BeginRound as BeginRound
from ftrun.core.ranks.table import EndRank as EndRank
from ftrun.core.ranks.table import FenceRank as FenceRank
from ftrun.core.ranks.table import RankAct
from ftrun.core.ranks.table import ReleaseSnapshot as ReleaseSnapshot
from ftrun.core.ranks.table import StartRank as StartRank

Fields = tuple[tuple[str, object], ...]


class Persist(NamedTuple):
    """Write this record.  `durable`: the record and the ledger must be on disk before the next effect."""

    event: str
    fields: Fields = ()
    durable: bool = False


class LogLine(NamedTuple):
    text: str


class Spawn(NamedTuple):
    """Start the command, for this `round` of its ranks; its environment comes from the ledger.  In a group: `place` of
    the ranks that ftrun starts, and `node` of this member."""

    number: int
    place: RankPlace | None = None
    node: NodePlace | None = None
    round: int = 1


class PrepareStandbys(NamedTuple):
    """This member waits as a spare: have standbys ready for a start at a place that may be like this (`Spawn`)."""

    place: RankPlace | None
    node: NodePlace


class FindLeftovers(NamedTuple):
    """Look, a moment later, for processes that a rank which is done has left; the answer, if any, is
    `LeftoversFound`."""

    local_rank: int


class EndLeftovers(NamedTuple):
    """Send SIGTERM (and SIGCONT) to what a rank that is done has left, and SIGKILL after `grace` seconds, until nothing
    is left; the answer is `RankTreeEnded`."""

    local_rank: int
    grace: float


class Forward(NamedTuple):
    signal: int


class Investigate(NamedTuple):
    """Collect evidence about a suspicion; the answer is `EvidenceCollected`.  `due`: the limit passes only then, in
    CLOCK_MONOTONIC seconds, and the answer comes after a second `Investigate`, without `due`; without that, the
    evidence is discarded."""

    finding: Finding
    due: float | None = None


class Look(NamedTuple):
    """Look whether anything can still end the wait of a job that stands still; the answer, if any, is `Looked`."""


class Terminate(NamedTuple):
    """Send SIGTERM (and SIGCONT) to the whole tree; the answer is `TreeEnded` when no process is left.  `in_turn`: to
    each process only once its parent has ended, since a program that saves its state may need its own processes."""

    in_turn: bool = False


class Kill(NamedTuple):
    """Send SIGKILL to the whole tree until no process is left; the answer is `TreeEnded`."""


class Inspect(NamedTuple):
    """List what SIGKILL did not end; the answer is `ProcessesSurvived`, or `TreeEnded` if no process is left."""


class Release(NamedTuple):
    """Check that the killed processes hold no device any more; the answer is `DevicesReleased`."""


class Heal(NamedTuple):
    """Have this fault healed and check that it is gone; the answer is `HealingFinished`.  None: ask whether the
    platform permits a start; the answer is `StartPermission`."""

    fault: Fault | None


class AskForVerdict(NamedTuple):
    """Ask whether another ftrun of this job has reached a verdict; the answer is `VerdictShared`."""


class AnswerOperator(NamedTuple):
    """Reply to the operator's request `id`."""

    id: str
    ok: bool
    why: str


class Exit(NamedTuple):
    """End ftrun.  `node`: the node that the verdict is about; None: this node; `device`: a device of that node."""

    code: int
    verdict: str
    message: str
    node: str | None = None
    device: str | None = None


RankEffect = RankAct | FindLeftovers | EndLeftovers
Effect = (
    Persist
    | LogLine
    | Spawn
    | PrepareStandbys
    | RankEffect
    | Forward
    | Investigate
    | Look
    | Terminate
    | Kill
    | Inspect
    | Release
    | Heal
    | AskForVerdict
    | AnswerOperator
    | Exit
)


def by_start(effects: Sequence[Effect], before: int, after: int) -> Iterator[tuple[Effect, int]]:
    """Each effect with the number of the start that it belongs to: effects before the record of a restart belong to the
    attempt that has ended."""
    restarts = (number for number, one in enumerate(effects) if isinstance(one, Persist) and one.event == "restart")
    first = next(restarts, 0)
    return ((effect, before if number < first else after) for number, effect in enumerate(effects))
