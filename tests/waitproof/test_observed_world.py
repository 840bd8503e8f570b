"""Which processes are all the ranks of a job."""

from dataclasses import dataclass

import pytest

from waitproof import waits
from waitproof.world import WaitingProcess, World


@dataclass
class Rank:
    pid: int
    rank: int | None
    parent: int = 1  # ftrun, which is outside of the tree


def world(*ranks: Rank, size: int = 2, local: int = 2) -> World:
    seen = waits.empty(frozenset())
    for rank in ranks:
        process = WaitingProcess({}, rank=rank.rank, parent=rank.parent)
        seen.processes[rank.pid] = process if rank.rank is None else process._replace(size=size, local_size=local)
    return seen


WORKER = Rank(13, 1, parent=11)


@pytest.mark.parametrize(
    ("seen", "ended", "expected"),
    [
        (world(Rank(10, 0), Rank(11, 1), WORKER), (), {10, 11, 13}),
        (world(Rank(11, 1)), (), set()),
        (world(Rank(11, 1), WORKER), (0,), {11, 13}),
        (world(Rank(11, 1), size=4), (0, 2, 3), set()),  # the others are on another node
        (world(Rank(9, None), Rank(11, 1, parent=9)), (0,), set()),  # a script, which may start another rank 0
        (world(Rank(9, None), Rank(10, 0, parent=9), Rank(11, 1, parent=9)), (), {10, 11}),
    ],
)
def test_all_ranks_are_known(seen: World, ended: tuple[int, ...], expected: set[int]) -> None:
    assert seen.ranks_of_whole_job(frozenset(ended)) == expected
