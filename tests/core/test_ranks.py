"""Several processes that claim one rank: the one that trains speaks for it."""

import itertools

import pytest

from ftrun.core.machine.values import Rank, unranked
from ftrun.core.rules.ranks import one_each
from ftrun.core.text import sentences

TRAINS = Rank(0, pid=1, claimed_at=5.0, moved_at=90.0, step=7)
LAUNCHED = Rank(0, pid=2, claimed_at=1.0, moved_at=2.0)  # called a hook once, and waits
BEATS = Rank(0, pid=3, claimed_at=6.0, moved_at=99.0)  # a data worker, without a step
BEGINS = Rank(0, pid=4, claimed_at=95.0)


def representative(*views: Rank) -> Rank:
    (same, *others) = {one_each(order) for order in itertools.permutations(views)}
    assert not others, "the order of the slots decides nothing"
    (rank,) = same
    return rank


def test_ranks_are_sorted_by_number() -> None:
    ranks = Rank(3), Rank(0), Rank(1)
    assert one_each(ranks) == (ranks[1], ranks[2], ranks[0])
    assert one_each(()) == ()


@pytest.mark.parametrize(
    ("views", "pid"),
    [
        ((TRAINS, LAUNCHED), 1),
        ((TRAINS, BEATS), 1),
        ((TRAINS, BEATS, LAUNCHED, BEGINS), 1),
        ((LAUNCHED, BEATS), 3),
        ((LAUNCHED, BEGINS), 4),
        ((TRAINS, TRAINS._replace(pid=5, moved_at=91.0)), 5),
        ((TRAINS._replace(done=True), TRAINS._replace(pid=5, moved_at=3.0)), 5),
    ],
)
def test_a_process_that_steps_represents_its_rank(views: tuple[Rank, ...], pid: int) -> None:
    assert representative(*views).pid == pid


@pytest.mark.parametrize("present", [True, False])
def test_a_rank_that_is_done_stays_done_beside_other_processes(present: bool) -> None:
    """The launcher cleans up, for hours if it likes."""
    done = TRAINS._replace(done=True, present=present)
    assert representative(done, LAUNCHED, BEATS) == done


def test_after_a_crash_another_process_represents_the_rank() -> None:
    """The launcher may end the others first, or start them again; its silence is not as old as its own last beat."""
    gone = TRAINS._replace(present=False)
    assert representative(gone, LAUNCHED) == LAUNCHED._replace(claimed_at=90.0, moved_at=None)
    assert representative(gone, BEGINS) == BEGINS
    assert representative(gone, BEATS) == BEATS
    assert representative(gone, LAUNCHED._replace(present=False)) == gone, "nobody is left"


def test_reports_of_all_processes_are_kept() -> None:
    saved = LAUNCHED._replace(checkpoint_step=9, checkpoint_path="/c/9")
    failed = BEATS._replace(fatal="the vocabulary does not match")
    rank = representative(TRAINS._replace(checkpoint_step=4, checkpoint_path="/c/4"), saved, failed)
    assert (rank.pid, rank.checkpoint_step, rank.checkpoint_path) == (1, 9, "/c/9")
    assert rank.fatal == "the vocabulary does not match"
    first = representative(TRAINS, LAUNCHED._replace(checkpoint_step=0, checkpoint_path="/c/0"))
    assert (first.checkpoint_step, first.checkpoint_path) == (0, "/c/0")


# --- several processes without RANK -----------------------------------------------------------------------------------

PARENT = Rank(0, pid=10, claimed_at=1.0, moved_at=2.0, step=0, ranked=False, parents=(9, 5))  # warmed up, then joins
STEPS = Rank(0, pid=11, claimed_at=5.0, moved_at=90.0, step=7, ranked=False, parents=(10, 9, 5))
HANGS = STEPS._replace(pid=12, moved_at=20.0, step=3)
DATA = STEPS._replace(pid=13, moved_at=95.0, step=None, checkpoint_step=4, checkpoint_path="/c/4")


def places(*views: Rank) -> dict[int, Rank]:
    (same, *others) = {one_each(order) for order in itertools.permutations(views)}
    assert not others, "the order of the slots decides nothing"
    return {view.rank: view for view in same}


def test_each_process_that_steps_without_rank_is_watched() -> None:
    found = places(STEPS, HANGS)
    assert found == {view.rank: view for view in (one._replace(rank=unranked(one.pid)) for one in (STEPS, HANGS))}
    assert [sentences.rank(rank) for rank in found] == ["process 11 (no RANK)", "process 12 (no RANK)"]


def test_their_parent_is_not_watched_and_reports_are_kept() -> None:
    found = places(PARENT, STEPS, HANGS, DATA)
    assert [view.pid for view in found.values()] == [11, 12]
    assert found[unranked(11)].checkpoint_path == "/c/4"
    assert places(PARENT, STEPS) == {0: STEPS}, "one that steps is rank 0"


def test_their_parent_is_watched_once_they_are_gone() -> None:
    gone = [view._replace(present=False) for view in (STEPS, HANGS)]
    assert places(PARENT, *gone)[0] == PARENT._replace(claimed_at=90.0, moved_at=None)
    assert 0 not in places(PARENT, *(view._replace(done=True) for view in gone)), "as any launcher of what is done"
    assert places(PARENT, gone[0])[0] == PARENT._replace(claimed_at=90.0, moved_at=None)


def test_a_process_that_ended_leaves_the_others_watched() -> None:
    assert set(places(STEPS._replace(present=False), HANGS)) == {unranked(11), unranked(12)}


def test_processes_with_the_same_rank_share_it() -> None:
    assert list(places(STEPS, HANGS._replace(ranked=True))) == [0]
    assert list(places(STEPS._replace(ranked=True), HANGS._replace(ranked=True))) == [0]


def test_a_data_worker_with_heartbeats_restarts_no_silence() -> None:
    assert representative(STEPS, DATA).moved_at == STEPS.moved_at
