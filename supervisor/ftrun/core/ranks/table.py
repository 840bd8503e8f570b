"""The ranks of this node in a round of recovery: plain values.  Times are CLOCK_MONOTONIC seconds."""

from collections.abc import Mapping
from typing import Literal

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.shared import RUNGS, GroupRound, Rung

# The state of one rank.  `new`: its process runs and has not said that it can recover.  `working`: it is in its
# training function.  `leaving`: it was asked to leave it.  `waiting`: it has left the round, or its new process is
# there, and it waits for the next round.  `finished`: its function has returned.  `exited`: it ended with 0.  `ending`:
# its processes are being ended, to be replaced.  `starting`: its new process was started and has not reported yet.
RankStage = Literal["new", "working", "leaving", "waiting", "finished", "exited", "ending", "starting"]
# The stage of the rounds of all ranks.  `closed`: not all ranks can recover.  `working`: all work.  `settling`: a
# collective failed, and the death that explains it may be noticed in a moment.  `meeting`: the round has ended, and the
# ranks meet for the next one.  `proving`: the next round has begun, and not every rank has moved in it yet.
RoundStage = Literal["closed", "working", "settling", "meeting", "proving"]

SOON, LATE = 0.1, 5.0  # s; how often the heartbeats are read until a recovery is proved: ever more seldom


class HeldSnapshot(NamedTuple):
    """State of training that a rank has in shared memory.  `step`: its number, which is the step unless a step was kept
    twice or the steps went back (`ftrun_hooks/_snapshot.py`).  Ranks with the same `shard` hold the same state; "":
    nobody else holds this one."""

    step: int
    shard: str = ""


class Restore(NamedTuple):
    """The snapshot with which a rank begins the next round: the snapshot of the local rank `source`."""

    step: int
    source: int
    shard: str = ""


class RankMember(NamedTuple):
    """One rank of this node.  `replaced`: how often its process was replaced in this attempt; `in_a_row`: without
    progress in between, where `mark` is the progress of the job at the last time.  `due`: by when its state has to
    change, where ftrun waits for that."""

    local_rank: int
    rank: int
    state: RankStage = "new"
    held: tuple[HeldSnapshot, ...] = ()
    shard: str = ""
    replaced: int = 0
    in_a_row: int = 0
    mark: object = None
    due: float | None = None


class Rounds(NamedTuple):
    """The rounds of one attempt.

    `number`: of the round at work, or of the one that ended last.  `rung`: of the recovery that is under way or not
    proved yet; `replacing`: the local ranks that it replaces.  `why`: the fault in a sentence, noticed at `since`;
    `cause`, `status`: what it is counted as if the tree is restarted, and the status of the process that ended;
    `first_cause`: the cause of the fault with which the recovery began that is under way, not proved yet, or failed.
    `began`: when the round at work began; `moved`: the local ranks that have moved in it since, as far as is known.
    `settles`: until when a death may still explain why a collective failed.  `restored`: the step that the round began
    with; None: the step of the checkpoint.  `slowest_hello`: how many seconds after its start the slowest rank
    reported.  `borrowers`: the local ranks that still load a snapshot of a lender; `lenders`: the local ranks that have
    these.

    `shared`: they recover together with the ranks of the other members of a group.  `adopted`: the last order that was
    followed; `proving`: the one that began the round at work.  `own`: the fault that ended the round was noticed here.
    `lacks_culprit`: while they settle, another node may name the cause; otherwise nothing below the tree helps.
    """

    members: tuple[RankMember, ...] = ()
    stage: RoundStage = "closed"
    number: int = 1
    rung: Rung | None = None
    replacing: frozenset[int] = frozenset()
    why: str = ""
    cause: str = "failure"
    first_cause: str = ""
    status: int | None = None
    since: float = 0.0
    began: float = 0.0
    moved: frozenset[int] = frozenset()
    settles: float | None = None
    restored: int | None = None
    slowest_hello: float = 0.0
    borrowers: frozenset[int] = frozenset()
    lenders: frozenset[int] = frozenset()
    shared: bool = False
    adopted: GroupRound | None = None
    proving: GroupRound | None = None
    own: bool = False
    lacks_culprit: bool = False

    @property
    def deadline(self) -> float | None:
        """When time alone changes something next."""
        if self.stage == "settling":
            return self.settles
        waiting = (member.due for member in self.members if member.due is not None)
        return min(waiting, default=None) if self.stage == "meeting" else None

    @property
    def is_under_way(self) -> bool:
        """Whether the ranks are between two rounds, so that nobody is expected to move."""
        return self.stage in ("settling", "meeting")

    @property
    def is_changing(self) -> bool:
        """Whether the ranks are between two rounds, or the recovery is not proved yet."""
        return self.stage in ("settling", "meeting", "proving")

    @property
    def is_open(self) -> bool:
        """Whether every rank of this node can recover."""
        return self.stage != "closed"

    def next_read(self, now: float) -> float | None:
        """When the heartbeats have to be read to see that a recovery has succeeded; None: none is to be proved."""
        return now + min(max((now - self.began) / 4, SOON), LATE) if self.stage == "proving" else None

    def shifted(self, seconds: float) -> "Rounds":
        """After a time in which the ranks could do nothing: what they are waited for gets the rest of its time."""
        members = tuple(m if m.due is None else m._replace(due=m.due + seconds) for m in self.members)
        return self._replace(members=members, settles=None if self.settles is None else self.settles + seconds)

    def member(self, local_rank: int) -> RankMember | None:
        return next((member for member in self.members if member.local_rank == local_rank), None)

    def with_member(self, changed: RankMember) -> "Rounds":
        members = (changed if member.local_rank == changed.local_rank else member for member in self.members)
        return self._replace(members=tuple(members))


class Rules(NamedTuple):
    """What the policy permits.  `timeout`: in seconds, for a rank to come to the next round.  `max_replaced`: how often
    one rank may be replaced in a row without progress; None: no limit.  `progress`: how far the job has got; it changes
    with each progress."""

    rungs: frozenset[str] = frozenset(RUNGS)
    timeout: float = 60.0
    max_replaced: int | None = 3
    progress: object = None


# --- what happened ------------------------------------------------------------------------------------------------


class SaidHello(NamedTuple):
    """The training function of a rank was called for the first time in this process.  `after`: seconds since that was
    started, which the machine adds."""

    local_rank: int
    held: tuple[HeldSnapshot, ...] = ()
    after: float = 0.0


class AskedRetry(NamedTuple):
    """A rank leaves its round, because of a fault that may pass or (`collective`) because a collective failed."""

    local_rank: int
    round: int
    why: str = ""
    collective: bool = False


class LeftRound(NamedTuple):
    """A rank has left its round and waits.  `problem`: why its process cannot work in another round."""

    local_rank: int
    round: int
    held: tuple[HeldSnapshot, ...] = ()
    problem: str | None = None


class SnapshotRestored(NamedTuple):
    """A rank has loaded the snapshot of another rank, with which it begins this round."""

    local_rank: int
    round: int


class FunctionFinished(NamedTuple):
    """The function returned in this round."""

    local_rank: int
    round: int


RankReport = SaidHello | AskedRetry | LeftRound | SnapshotRestored | FunctionFinished


class RankProcessEnded(NamedTuple):
    """The process of a rank ended; `status`: as a shell reports it, 0 where it has ended well."""

    local_rank: int
    status: int
    why: str = ""


class Blamed(NamedTuple):
    """A verdict: the processes of these ranks have to be replaced, or (none) the step has to be retried.  `suspect`:
    the local rank that is replaced where a retry is not possible, or has not helped; None: not known."""

    local_ranks: frozenset[int]
    why: str = ""
    cause: str = "hang"
    suspect: int | None = None


class HangWithoutCulprit(NamedTuple):
    """A verdict whose cause may be a rank of another node of the group, which names it in a moment."""

    why: str = ""
    cause: str = "hang"


class RankTreeCleared(NamedTuple):
    """No process of this rank is left."""

    local_rank: int


class GroupOrdered(NamedTuple):
    """What the members of the group do together."""

    round: GroupRound


class Waited(NamedTuple):
    """Time has passed.  `moved`: the local ranks that have moved since the round at work began, or since a hang was
    declared for which the ranks settle."""

    moved: frozenset[int] = frozenset()


Happened = RankReport | RankProcessEnded | Blamed | HangWithoutCulprit | RankTreeCleared | GroupOrdered | Waited


# --- what has to be done: those about one rank are also effects (core/machine) and messages to that rank --------------


class RecordRecovering(NamedTuple):
    """Record that round `number` is being prepared by this rung, which replaces `ranks`."""

    rung: Rung
    number: int
    ranks: tuple[int, ...]
    why: str


class FenceRank(NamedTuple):
    """Ask a rank to leave this round."""

    local_rank: int
    round: int
    why: str


class EndRank(NamedTuple):
    """Send SIGKILL to all processes of a rank until none is left; the answer is `RankTreeCleared`."""

    local_rank: int


class StartRank(NamedTuple):
    """Start a rank's process again, for this round.  `start_cnt`: the number of this start, which the machine adds."""

    local_rank: int
    round: int
    start_cnt: int = 0


class BeginRound(NamedTuple):
    """Let a rank begin this round, with the state of `restore` (None: of the checkpoint), because of `reason`.  In a
    group rank 0 listens at `master`, address and port.  `lends`: another rank begins with its snapshot, which must stay
    as it is until `ReleaseSnapshot`.  `variables`: of its environment, which PID 1 adds when it sends this."""

    local_rank: int
    round: int
    restore: Restore | None
    reason: Rung
    master: tuple[str, int] | None = None
    lends: bool = False
    variables: Mapping[str, str] = {}


class ReleaseSnapshot(NamedTuple):
    """No other rank needs the snapshot any more with which this one began the round."""

    local_rank: int
    round: int


class RecordRecovered(NamedTuple):
    """Record that the recovery has succeeded."""

    rung: Rung
    number: int
    ranks: tuple[int, ...]
    step: int | None


class GiveUp(NamedTuple):
    """No rung below the tree is left; `why` in a few words, after the fault."""

    why: str


RankAct = FenceRank | EndRank | StartRank | BeginRound | ReleaseSnapshot
Act = RecordRecovering | RankAct | RecordRecovered | GiveUp
