"""How long a group waits for members that are lost.  Pure.

Each of them has the whole `--wait-peer`, counted from its own loss, also if it had come back and is lost again.  All of
them together have no more than LONGEST times that: a member that is lost again and again must not keep the others from
work for ever.
"""

from collections.abc import Collection, Mapping
from typing import Final, Literal

from ftrun.core.named_tuple import NamedTuple

LONGEST: Final = 3


class LossWait(NamedTuple):
    """The wait for lost members.  `members`: the first of them; `number`: of all of them.  `left`: the seconds until
    what follows, if none of them comes back before.

    `then`: `go on`: `working` members go on without them.  `replace`: spares take their places, since it is certain
    then that nothing of the lost ones runs any more.  `end`: the job ends with `code`.  `start`: the members are
    back, and all start; until then earlier processes of them may still run their command."""

    members: tuple[int, ...]
    number: int
    left: float
    then: Literal["go on", "replace", "end", "start"]
    working: int | None = None
    code: int | None = None


class NodeNote(NamedTuple):
    """A line for the records of rank 0."""

    what: str


class NodeLost(NamedTuple):
    """A record of rank 0: this member is lost, or has left the others before the end.  `wait`: how long those that are
    lost are waited for, and what follows; None: nobody waits for them."""

    rank: int
    node: str
    why: str
    wait: LossWait | None


class Losses(NamedTuple):
    """`first`, `newest`: when members were lost while the group waits; None: never.  `missing`: those that are missing
    now, and since when."""

    first: float | None = None
    newest: float | None = None
    missing: Mapping[int, float] = {}

    def following(self, missing: Collection[int], now: float) -> "Losses":
        """The losses with the members that are missing now."""
        if self.missing.keys() == set(missing):
            return self
        since = {rank: self.missing.get(rank, now) for rank in missing}
        first = self.first if self.first is not None or not since else min(since.values())
        return Losses(first, max(since.values(), default=self.newest), since)

    def until(self, wait: float) -> float | None:
        """Until when those that are missing are waited for; None: nobody was lost."""
        if self.first is None:
            return None
        return min(max(self.missing.values(), default=self.first) + wait, self.first + LONGEST * wait)

    def waited(self, wait: float, now: float) -> bool:
        """Whether each missing member has been waited for as long as `wait` allows."""
        return all(now >= since + wait for since in self.missing.values())
