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


def speaker(*views: Rank) -> Rank:
    (same, *others) = {one_each(order) for order in itertools.permutations(views)}
    assert not others, "the order of the slots decides nothing"
    (rank,) = same
    return rank


def test_ranks_are_told_apart_and_sorted() -> None:
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
def test_who_steps_comes_first_then_who_moved_last(views: tuple[Rank, ...], pid: int) -> None:
    assert speaker(*views).pid == pid


@pytest.mark.parametrize("present", [True, False])
def test_a_rank_that_said_done_is_done_whoever_else_lingers(present: bool) -> None:
    """The launcher cleans up, for hours if it likes."""
    done = TRAINS._replace(done=True, present=present)
    assert speaker(done, LAUNCHED, BEATS) == done


def test_after_a_crash_another_stands_in_and_begins_then() -> None:
    """The launcher may end the others first, or start them again; its silence is not as old as its own last beat."""
    gone = TRAINS._replace(present=False)
    assert speaker(gone, LAUNCHED) == LAUNCHED._replace(claimed_at=90.0, moved_at=None)
    assert speaker(gone, BEGINS) == BEGINS
    assert speaker(gone, BEATS) == BEATS
    assert speaker(gone, LAUNCHED._replace(present=False)) == gone, "nobody is left"


def test_what_any_of_them_reported_is_kept() -> None:
    saved = LAUNCHED._replace(checkpoint_step=9, checkpoint_path="/c/9")
    failed = BEATS._replace(fatal="the vocabulary does not match")
    rank = speaker(TRAINS._replace(checkpoint_step=4, checkpoint_path="/c/4"), saved, failed)
    assert (rank.pid, rank.checkpoint_step, rank.checkpoint_path) == (1, 9, "/c/9")
    assert rank.fatal == "the vocabulary does not match"
    first = speaker(TRAINS, LAUNCHED._replace(checkpoint_step=0, checkpoint_path="/c/0"))
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


def test_each_that_steps_without_rank_is_judged_by_itself() -> None:
    found = places(STEPS, HANGS)
    assert found == {view.rank: view for view in (one._replace(rank=unranked(one.pid)) for one in (STEPS, HANGS))}
    assert [sentences.rank(rank) for rank in found] == ["process 11 (no RANK)", "process 12 (no RANK)"]


def test_the_one_that_started_them_is_left_out_and_what_others_reported_is_kept() -> None:
    found = places(PARENT, STEPS, HANGS, DATA)
    assert [view.pid for view in found.values()] == [11, 12]
    assert found[unranked(11)].checkpoint_path == "/c/4"
    assert places(PARENT, STEPS) == {0: STEPS}, "one that steps is rank 0"


def test_it_is_judged_again_when_they_are_gone_and_begins_then() -> None:
    gone = [view._replace(present=False) for view in (STEPS, HANGS)]
    assert places(PARENT, *gone)[0] == PARENT._replace(claimed_at=90.0, moved_at=None)
    assert 0 not in places(PARENT, *(view._replace(done=True) for view in gone)), "as any launcher of what is done"
    assert places(PARENT, gone[0])[0] == PARENT._replace(claimed_at=90.0, moved_at=None)


def test_one_that_ended_leaves_the_others_their_places() -> None:
    assert set(places(STEPS._replace(present=False), HANGS)) == {unranked(11), unranked(12)}


def test_those_that_were_told_the_same_rank_share_it() -> None:
    assert list(places(STEPS, HANGS._replace(ranked=True))) == [0]
    assert list(places(STEPS._replace(ranked=True), HANGS._replace(ranked=True))) == [0]


def test_a_data_worker_that_beats_makes_nobody_begin_anew() -> None:
    assert speaker(STEPS, DATA).moved_at == STEPS.moved_at
