"""What is learned of the pauses of a job, and from when on one is unusual; scenarios show that this ends nothing."""

import pytest

from ftrun.core.machine.values import Rank, UsualPauses
from ftrun.core.rules.stalls import learn, unusual_from

BEFORE = UsualPauses(4.5, 6.0, 500)


LEARNED = UsualPauses(7.0, 9.0, 200)


@pytest.mark.parametrize(
    ("intervals", "learned", "seconds"),
    [(99, None, 600.0), (99, BEFORE, 600.0), (99, LEARNED, 700.0), (100, LEARNED, 5000.0)],
)
def test_a_rank_that_has_not_moved_often_is_judged_by_what_the_job_has_learned(
    intervals: int, learned: UsualPauses | None, seconds: float
) -> None:
    assert unusual_from(Rank(0, intervals=intervals, usual=50.0), learned) == seconds


def test_nothing_is_learned_while_a_rank_has_moved_too_little() -> None:
    fast, slow = Rank(0, intervals=100, usual=0.5, longest=0.5), Rank(1, intervals=99, usual=60.0)
    assert learn(BEFORE, (fast, slow)) == BEFORE
    for over in (slow._replace(done=True), slow._replace(present=False)):
        assert learn(BEFORE, (fast, over)) == UsualPauses(0.5, 6.0, 100)


def test_a_figure_that_changed_by_a_tenth_is_no_news() -> None:
    assert learn(BEFORE, (Rank(0, intervals=600, usual=4.9, longest=7.0),)) == UsualPauses(4.5, 7.0, 600)
    assert learn(BEFORE, (Rank(0, intervals=600, usual=5.0, longest=5.0),)) == UsualPauses(5.0, 6.0, 600)
