"""The control socket between PID 1 and the ranks that can recover: one packet, one JSON object (docs/recovery.md)."""

from typing import Final, Literal

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol

LARGEST: Final = 4096  # bytes of a packet
Reason = Literal["first", "retry", "rank"]
Held = tuple[tuple[int, str], ...]  # complete snapshots: their steps and shards


class Hello(NamedTuple):
    """The training function of a rank was called for the first time in this process."""

    local_rank: int
    pid: int
    held: Held = ()


class Retry(NamedTuple):
    """The rank leaves the round, since its function raised `ft.Retry`, or since a collective failed."""

    round: int
    why: str = ""
    kind: Literal["retry", "collective"] = "retry"


class Barrier(NamedTuple):
    """The rank has left the round and waits.  `problem`: why its process cannot do another one."""

    round: int
    held: Held = ()
    problem: str | None = None


class Restored(NamedTuple):
    """The rank has loaded the snapshot of another rank, with which it begins this round."""

    round: int


class Finished(NamedTuple):
    """The function returned in this round."""

    round: int


class Go(NamedTuple):
    """The rank begins this round, with these environment variables.  `restore`: `step`, `shard`, and `from`, the local
    rank whose snapshot it is; None: the checkpoint.  `lends`: another rank begins with the snapshot of this one, which
    must not be overwritten until `Release`."""

    round: int
    variables: dict[str, str]
    restore: dict[str, object] | None
    reason: Reason
    lends: bool = False


class Release(NamedTuple):
    """No other rank needs the snapshot any more with which the rank began this round."""

    round: int


class Fence(NamedTuple):
    """The rank has to leave this round."""

    round: int
    why: str = ""


FromRank = Hello | Retry | Barrier | Restored | Finished
ToRank = Go | Release | Fence
FROM_RANK = Protocol[FromRank]("type", Hello, Retry, Barrier, Restored, Finished)
TO_RANK = Protocol[ToRank]("type", Go, Release, Fence)
