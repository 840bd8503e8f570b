"""Several processes that claim one rank: the one that trains speaks for it."""

import itertools

import pytest

from ftrun.core.ranks import one_each
from ftrun.core.values import Rank

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
