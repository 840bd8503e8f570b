"""What is learned of the pauses of a job, by the digest of the hooks and the whole decision; and that it ends none."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.training import Training
from ftrun.core.machine.values import Rank, UsualPauses
from ftrun.core.rules.stalls import learn, unusual_from

BEFORE = UsualPauses(4.5, 6.0, 500)


def test_a_hundred_steps_teach_what_is_usual() -> None:
    training = Training().start([30.0, *[8.0] * 150]).run(99)
    assert training.named("learned") == []
    (record,) = training.run(120).named("learned")
    assert record == {"usual": 8.0, "longest": 8.0, "steps": 100, "notice": 800.0}
    assert training.job.ledger.learned == UsualPauses(8.0, 8.0, 100)


@pytest.mark.parametrize(
    ("silences", "told"),
    [([0.1] * 30, 600.0), ([0.1] * 300, 600.0), ([8.0] * 150, 800.0), ([60.0] * 120, 6000.0)],
    ids=["too few steps", "fast", "slow", "very slow"],
)
def test_a_person_is_told_once_of_a_pause_a_hundred_times_as_long_as_usual(silences: list[float], told: float) -> None:
    training = Training().start(silences).run()
    assert training.stalled_after() == pytest.approx(told, abs=0.01)


def test_another_stall_is_another_record() -> None:
    training = Training().start([*[1.0] * 150, 700.0, *[1.0] * 20, 900.0, *[1.0] * 20]).run()
    assert [round(float(str(stall["age"]))) for stall in training.named("stalled")] == [600, 600]


def test_a_rank_that_has_not_moved_often_is_judged_by_what_the_job_has_learned() -> None:
    assert unusual_from(Rank(0, intervals=99, usual=50.0), None) == 600.0
    assert unusual_from(Rank(0, intervals=99, usual=50.0), UsualPauses(7.0, 9.0, 200)) == 700.0
    assert unusual_from(Rank(0, intervals=100, usual=50.0), UsualPauses(7.0, 9.0, 200)) == 5000.0


def test_nothing_is_learned_while_a_rank_has_moved_too_little() -> None:
    fast, slow = Rank(0, intervals=100, usual=0.5, longest=0.5), Rank(1, intervals=99, usual=60.0)
    assert learn(BEFORE, (fast, slow)) == BEFORE
    for over in (slow._replace(done=True), slow._replace(present=False)):
        assert learn(BEFORE, (fast, over)) == UsualPauses(0.5, 6.0, 100)


def test_a_figure_that_changed_by_a_tenth_is_no_news() -> None:
    assert learn(BEFORE, (Rank(0, intervals=600, usual=4.9, longest=7.0),)) == UsualPauses(4.5, 7.0, 600)
    assert learn(BEFORE, (Rank(0, intervals=600, usual=5.0, longest=5.0),)) == UsualPauses(5.0, 6.0, 600)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.05, 1.0, 10.0]))
def test_no_training_is_suspected_whatever_its_pauses(seed: int, usual: float) -> None:
    """`Training.step` fails if one is."""
    chance = random.Random(seed)
    silences = [min(3000.0, usual * chance.lognormvariate(0.0, 2.0)) for _ in range(120)]
    training = Training().start(silences).run()
    assert not training.named("suspect")
