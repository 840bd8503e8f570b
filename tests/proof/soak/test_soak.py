"""No figure grows with the restarts; and growth would be found."""

import random
from pathlib import Path

import pytest

from proof.soak.growth import MEMORY, Allowed, grown, growth
from proof.soak.running import Plan, Soak
from proof.soak.samples import SUPERVISOR
from support.runs import Mode, need_pid1, patched

# An ftrun that opens a descriptor more at each start, or keeps 32 KiB.
LEAKING = """
import os
from ftrun.host import spawn
kept, start = [], spawn.spawn
def spawned(*words):
    kept.append({leak})
    return start(*words)
spawn.spawn = spawned
"""


def noisy(each: float, restarts: int = 10_000, start: float = 19_000.0) -> list[tuple[int, float]]:
    """A hundred samples of memory that warms up, varies, and grows by `each` per restart."""
    random.seed(each)
    looks = range(0, restarts, restarts // 100)
    return [(at, start + 400 * (1 - 2 ** (-at / 300)) + random.uniform(-150, 150) + each * at) for at in looks]


@pytest.mark.parametrize(("each", "seen"), [(1.0, True), (0.5, True), (0.3, True), (0.0, False), (-0.5, False)])
def test_growth_of_memory_is_found_and_noise_is_not(each: float, seen: bool) -> None:
    assert growth(noisy(each), MEMORY).grown is seen


@pytest.mark.parametrize("each", [1, 0.01])
def test_growth_of_descriptors_is_found(each: float) -> None:
    figures = [(at, 27 + int(each * at)) for at in range(0, 10_000, 100)]
    assert growth(figures, Allowed(slack=1)).grown


def test_warm_up_and_an_outlier_are_no_growth() -> None:
    figures = [(at, 20.0 if at < 800 else 27.0) for at in range(0, 10_000, 100)]
    figures[-3] = (figures[-3][0], 500.0)
    assert not growth(figures, Allowed()).grown
    few = [27.0] * 11 + [30.0]  # the last sample was taken while a helper was being started
    assert not growth(list(enumerate(few)), Allowed(slack=1)).grown
    assert growth(list(enumerate([27.0] * 10 + [30.0] * 2)), Allowed(slack=1)).grown
    filling = [(at, min(at, 256.0)) for at in range(0, 1000, 20)]  # of the state store
    assert not growth(filling, Allowed(slack=1)).grown
    assert growth(filling[:25], Allowed(slack=1)).grown, "a shorter run is judged all the same"
    with pytest.raises(ValueError, match="2 samples are too few"):
        growth(figures[:2], Allowed())


@pytest.mark.pid1
@pytest.mark.slow  # sixty starts; in the gate the tests above have what counts as growth
def test_a_few_restarts_cause_no_growth(tmp_path: Path) -> None:
    need_pid1()
    with Soak(tmp_path, Plan(60, look=5, hang=30), "pid1") as soak:
        assert grown(list(soak.samples())) == []


@pytest.mark.pid1
@pytest.mark.slow
@pytest.mark.parametrize("form", ["ranks", "warm"])
def test_replaced_ranks_and_warm_starts_cause_no_growth(tmp_path: Path, form: str) -> None:
    need_pid1()
    with Soak(tmp_path, Plan(200, look=5, form=form), "pid1") as soak:
        assert grown(list(soak.samples())) == []


@pytest.mark.pid1
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pid1", "subreaper"])
def test_two_thousand_restarts_cause_no_growth(tmp_path: Path, mode: Mode) -> None:
    need_pid1()
    with Soak(tmp_path, Plan(2000, look=20), mode) as soak:
        assert grown(list(soak.samples())) == []


@pytest.mark.pid1
@pytest.mark.slow
@pytest.mark.parametrize(("leak", "what"), [("os.pipe()", "descriptors"), ("os.urandom(32768)", "rss")])
def test_planted_leak_is_found(tmp_path: Path, leak: str, what: str) -> None:
    need_pid1()
    with Soak(tmp_path, Plan(120, look=10), "subreaper", patched(LEAKING.format(leak=leak))) as soak:
        assert any(line.startswith(f"{SUPERVISOR}: {what} from") for line in grown(list(soak.samples())))
