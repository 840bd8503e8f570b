"""Ranks that ftrun starts on two hosts, one on each: programs of others find their place by the environment alone, and
a run with a failure or a hang ends with the weights of one without."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.hosts import Hosts
from support.runs import wait_for
from support.trained import NEEDED, PROGRAMS, weights

Make = Callable[[int], Hosts]
LONG = 300.0  # s; PyTorch is imported by six processes, on a machine that has other work
pytestmark = pytest.mark.torch


def train(hosts: Hosts, program: str, *options: str, strike: str = "") -> Path:
    """The folder of the run, which has ended with 0 on both hosts."""
    folder = hosts.folder / f"{program}-{strike.partition(':')[0] or 'plain'}"
    folder.mkdir()
    command = [sys.executable, str(PROGRAMS / f"with_{program}.py"), str(folder)]
    one_rank = ["--nproc-per-node", "1", *options, "--"]
    runs = [
        hosts.start(member, *hosts.group(member, 2, wait="4m"), *one_rank, *command, environment={"STRIKE": strike})
        for member in (1, 0)
    ]
    wait_for(lambda: all(run.ended for run in runs), "the end of both members", LONG)
    assert [run.wait() for run in runs] == [0, 0], hosts.log()
    ranks = [[(world["rank"], world["local_rank"]) for world in run.named("rank_exited")][-1] for run in runs]
    assert ranks == [(1, 0), (0, 0)]
    return folder


def struck(two: Hosts, program: str) -> Path:
    """Rank 1, on the second host, fails once."""
    folder = train(two, program, "--restart-on", "failure", "--backoff", "100ms", strike="raise:5")
    for run in two.last:
        assert len(run.named("spawned")) == 2
        (order,) = (one for one in run.named("group") if one["what"] == "run" and one["epoch"] == 2)
        assert order["world_size"] == 2
        assert "rank 1: ValueError: struck" in order["why"]
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3 * LONG)
@pytest.mark.parametrize("program", NEEDED)
def test_a_group_with_a_failure_ends_with_the_weights_of_one_without(program: str, hosts: Make) -> None:
    if any(importlib.util.find_spec(name) is None for name in NEEDED[program]):
        pytest.skip(f"not installed: one of {', '.join(NEEDED[program])}")
    two = hosts(2)
    assert weights(train(two, program)) == weights(struck(two, program))


@pytest.mark.slow
@pytest.mark.timeout(3 * LONG)
def test_a_group_with_a_hang_ends_with_the_weights_of_one_without(hosts: Make) -> None:
    two = hosts(2)
    plain = weights(train(two, "ddp"))
    assert plain == weights(train(two, "ddp", "--hang-timeout", "10s", "--start-timeout", "5m", strike="hang:5"))
    assert "hang" in [run.named("restart")[0]["reason"] for run in two.last]
