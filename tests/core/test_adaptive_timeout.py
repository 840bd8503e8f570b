"""`--hang-timeout auto` on recorded trainings, through the digest of the hooks and the whole decision.

The two promises: never a false hang over 10,000 steps; and once 100 steps were seen, a real stop is suspected within
max(30 s, 10 x p99).  p99 is by nearest rank, of the last thousand silences at the last full hundred of steps, those of
the warm-up (the first ten) left out; time in sections is no silence.
"""

import itertools
import random
from collections.abc import Sequence

import pytest

from core.recorded import RARE, STEPS, USUAL, about, recorded, steady
from core.training import LATE, Step, Training, Within, promptly
from ftrun.core.machine.states import Running, Starting

PLACES = [place for place in (100, 101, 150, 999, 1000, 1099, 5050, 9999) if place < STEPS]


def bound(silences: Sequence[float], stopped: int) -> float:
    """max(30 s, 10 x p99); from less than a hundred steps the provisional one, at most the start timeout."""
    if stopped < 100:
        return min(3600.0, max(300.0, 30 * max(silences[:10])))
    known = sorted(silences[10 : stopped // 100 * 100][-1000:])
    return max(30.0, 10 * known[-1 - len(known) // 100])


@pytest.mark.parametrize("name", USUAL)
def test_recorded_trainings_are_never_suspected_and_stops_are_found(name: str) -> None:
    silences = recorded(name, USUAL[name])
    training = Training().start(silences)
    for place in (50, *PLACES):
        if place < len(silences):
            assert promptly(training.run(place).found_after(), bound(silences, place))
    training.run()
    assert training.workers[0].moved == len(silences)
    assert training.suspicions == []


@pytest.mark.parametrize("name", RARE)
def test_a_rare_silence_is_suspected_once(name: str) -> None:
    """Where a silence is rarer than one in a hundred and longer than the bound, no limit can keep both promises.

    The first of its kind is suspected at the bound.  The second look finds that the process works and clears it, at
    twice the age each time (one that lasts ten times the bound is checked four times); no later one is suspected: the
    limit stays doubled until the hooks have counted that silence, and from then on it is twice the longest.  A real
    stop is found within that.
    """
    silences = recorded(name, RARE[name])
    training = Training(works=True).start(silences)
    for place in PLACES:
        most = max(bound(silences, place), 2.2 * max(silences[10:place]))
        assert training.run(place).found_after() <= most + 2 * LATE
    training.run()
    assert training.workers[0].moved == STEPS
    steps = [suspicion.step for suspicion in training.suspicions]
    assert len(set(steps)) == 1, "all of them are of one silence"
    assert silences[steps[0]] == next(s for i, s in enumerate(silences) if i >= 10 and s > bound(silences, i))
    assert len(steps) <= 4
    assert not training.named("hang")


def test_a_rare_silence_without_work_is_a_hang_at_first() -> None:
    """What neither computes nor reads nor writes for longer than the bound cannot be distinguished from a hang.

    Such a stretch needs a section.  Without one, a job that waits idly for a minute in its 150th step is ended there,
    and each hang in a row doubles what it gets next time: it comes through in the next.
    """
    silences = [1.0] * 150 + [60.0] + [1.0] * 50
    training = Training()
    for moved in (150, 201):
        training.start(silences).run()
        assert training.workers[0].moved == moved
    assert [hang["limit"] for hang in training.named("hang")] == [30.0]
    in_a_section: list[Step] = [*[1.0] * 150, Within(60.0, 1.0), *[1.0] * 50]
    assert not Training().start(in_a_section).run().suspicions


def test_a_limit_that_changed_by_a_tenth_is_not_recorded() -> None:
    training = Training().start(recorded("one", steady(20.0))).run()
    assert len(training.named("learned")) == 1
    training = Training().start(recorded("three times as slow", USUAL["three times as slow"])).run()
    limits = [record["limit"] for record in training.named("learned")]
    assert len(limits) >= 3
    for earlier, later in itertools.pairwise(limits):
        assert isinstance(earlier, float)
        assert isinstance(later, float)
        assert abs(later - earlier) > 0.1 * earlier


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 100))]


@pytest.mark.parametrize("usual", [0.05, 1.0, 10.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_training_within_its_bound_is_suspected(seed: int, usual: float) -> None:
    """Any: the silences are drawn one by one, each within the bound that those before it set."""
    chance = random.Random(seed)
    silences = [about(chance, usual) for _ in range(100)]
    while len(silences) < 700:
        most = bound(silences, len(silences))
        long = chance.random() < 0.02
        silences.append(chance.uniform(0.0, 0.99 * most) if long else about(chance, usual))
    training = Training().start(silences).run()
    assert training.suspicions == []
    assert isinstance(training.job.phase, Starting | Running)
