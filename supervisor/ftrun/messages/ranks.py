"""The control socket between PID 1 and the ranks that can recover: one packet, one JSON object."""

from typing import Final, Literal

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.table import BeginRound, FenceRank, ReleaseSnapshot
from ftrun.messages.codec import Protocol

LARGEST: Final = 4096  # bytes of a packet
HeldSnapshots = tuple[tuple[int, str], ...]  # complete snapshots: their steps and shards


class Hello(NamedTuple):
    """The training function of a rank was called for the first time in this process."""

    local_rank: int
    pid: int
    held: HeldSnapshots = ()


class Retry(NamedTuple):
    """The rank leaves the round, since its function raised `ft.Retry`, or since a collective failed."""

    round: int
    why: str = ""
    kind: Literal["retry", "collective"] = "retry"


class Barrier(NamedTuple):
    """The rank has left the round and waits.  `problem`: why its process cannot work in another round."""

    round: int
    held: HeldSnapshots = ()
    problem: str | None = None


class Restored(NamedTuple):
    """The rank has loaded the snapshot of another rank, with which it begins this round."""

    round: int


class Finished(NamedTuple):
    """The function returned in this round."""

    round: int


FromRank = Hello | Retry | Barrier | Restored | Finished
ToRank = BeginRound | ReleaseSnapshot | FenceRank  # as they are decided
FROM_RANK = Protocol[FromRank]("type", FromRank)
TO_RANK = Protocol[ToRank]("type", ToRank)
