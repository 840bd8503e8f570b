"""A round of recovery that the ranks of several members share: what a member reports, and what the group orders.

Each value is a complete state, like the reports and orders that carry it (core/group/messages.py)."""

from typing import Final, Literal

from ftrun.core.named_tuple import NamedTuple

Rung = Literal["retry", "rank"]
RUNGS: Final[tuple[Rung, ...]] = ("retry", "rank")  # the finest first; below them all is the restart of the tree
OPERATOR: Final = "operator"  # the rung above them, which belongs to the communication library
# The progress of the ranks of one member.  `closed`: not all of them have said that they can recover.  `ready`: all
# have.  `working`: they work in their round.  `proved`: each of them has moved in it, or is done.  `leaving`: they
# leave their round, or a new process has not reported yet.  `waiting`: each of them waits for the next round.
Progress = Literal["closed", "ready", "working", "proved", "leaving", "waiting"]


# The first bits of two counts in the number of a snapshot, as in `ftrun_hooks/_snapshot.py`, which core may not import:
# how often the step was kept before in a row, and how often the steps have gone back.  A test compares them.
AGAIN: Final = 40
BACK: Final = 46


def kept_step(number: int) -> int:
    """The step of a snapshot with this number."""
    return number & ((1 << AGAIN) - 1)


def newness(number: int) -> tuple[int, int, int]:
    """What is larger for the newer of two snapshots: how often the steps had gone back, the step, and the rest."""
    return number >> BACK, kept_step(number), number


class GroupRound(NamedTuple):
    """The round that the ranks of all members have in common within an epoch.

    `work`: round `number` works, or begins.  `leave`: every rank leaves round `number`, and waits for the next one.
    `close`: there is no next round; whoever noticed a fault does what follows without one.

    `rung`: of the recovery that is under way or not proved yet; None: there is none.  It replaces the processes of
    `ranks`, because of `why`.  With `work`: the rank 0 of the round listens at `address` and `port` (0: as at the start
    of the epoch); all begin with the snapshot of the number `step`, or (None) with the checkpoint.  `joining`: members
    whose ftrun is a new one; their ranks start for the next round.  `slowest`: how many seconds a process needs to
    report, as far as is known.
    """

    number: int = 1
    what: Literal["work", "leave", "close"] = "work"
    rung: Rung | None = None
    ranks: tuple[int, ...] = ()
    why: str = ""
    address: str = ""
    port: int = 0
    step: int | None = None
    joining: tuple[int, ...] = ()
    slowest: float = 0.0


class NodeRounds(NamedTuple):
    """The ranks of a member, between the rounds of the group.  `number`: of the round at work, or of the one that they
    leave or have left; `adopted`: the last `GroupRound` that was followed.

    `ended`: a rank has ended with 0, so that there is no next round.  `lacks_culprit`: a hang was declared here, and
    the evidence of this member names no rank as its cause.  With `leaving` and `waiting`, if a fault was noticed here:
    `rung`, `ranks` and `why` of it.  With `waiting`: all of them can have snapshots of `steps`.  `limit`:
    the most seconds that they need to come to the next round.  `rungs`: what `--recover` permits.
    """

    progress: Progress = "closed"
    number: int = 1
    adopted: GroupRound | None = None
    ended: bool = False
    rung: Rung | None = None
    ranks: tuple[int, ...] = ()
    why: str = ""
    steps: tuple[int, ...] = ()
    limit: float = 0.0
    slowest: float = 0.0
    rungs: tuple[str, ...] = ()
    lacks_culprit: bool = False
