"""The simulation of large groups: a tree of messengers decides as a star does, and each fault has the outcome that the
page promises."""

import random

import pytest

from ftrun.core.group.membership import Steady
from ftrun.core.group.messages import GroupOrder, NodeFailure, Report, State
from ftrun.core.group.root_cause import MemberState
from proof.scale.__main__ import CASES, count, inner, run, settle, started, wait_until
from proof.scale.model import Network
from proof.scale.outcome import Case
from proof.scale.relay import SLOT, Relay, merge

SMALL, LARGE = (200, 6), (1_100, 32)  # members, and how many report to one messenger; a switch needs a second pod


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_fault_costs_as_many_restarts_as_the_page_says(case: Case) -> None:
    size, fan = LARGE if "switch" in case.name or "same, and" in case.name else SMALL
    found = run(case, size, fan, seed=3)  # raises if the group is stuck or restarts too often
    assert found.depth >= 2


@pytest.mark.parametrize("seed", range(8))
def test_a_tree_decides_as_a_star_does(seed: int) -> None:
    """Some members fail at random moments, a few at once: each restarts exactly as often in both shapes."""
    epochs = set()
    for fan in (SMALL[0], 5, 14):
        chance = random.Random(seed)
        fleet = started(SMALL[0], fan, Network(), seed)
        for _ in range(chance.randint(1, 4)):
            for number in chance.sample(range(SMALL[0]), chance.randint(1, 5)):
                fleet.nodes[number].fail("CUDA error")
            settle(fleet, 5.0)
        assert isinstance(fleet.coordinator.phase, Steady)
        assert all(node.state == "running" and node.epoch == fleet.coordinator.epoch for node in fleet.nodes)
        epochs.add(fleet.coordinator.epoch)
    assert len(epochs) == 1


def test_no_member_starts_an_epoch_while_another_runs_the_one_before() -> None:
    fleet = started(*SMALL, Network(slow=0.05), seed=5)
    stops = len(fleet.nodes) - 1
    fleet.nodes[7].fail("CUDA error")
    fleet.kill_messenger(inner(fleet))
    wait_until(fleet, lambda: count(fleet, "run", 2) == len(fleet.nodes))
    assert count(fleet, "stop", 1) == stops
    assert max(fleet.moments["stop", 1]) < min(fleet.moments["run", 2])


def test_the_failure_of_a_member_reaches_rank_zero_by_its_name() -> None:
    fleet = started(*SMALL, Network(), seed=6)
    fleet.nodes[150].fail("CUDA error")
    wait_until(fleet, lambda: count(fleet, "run", 2) == len(fleet.nodes))
    assert "node-150: CUDA error" in fleet.coordinator.order.why


def merged(what: str, *below: tuple[State, int, NodeFailure | None], now: float = 100.0) -> Report | None:
    """The report of a relay with two members, to which epoch 1 was ordered last: (state, epoch, failure) of each."""
    members = {
        number: MemberState(
            Report(number, f"life-{number}", 1, f"node-{number}", "boot", epoch, state, failure),
            None if failure is None else now - failure.age,
        )
        for number, (state, epoch, failure) in enumerate(below)
    }
    order = GroupOrder(1, "stop" if what == "stop" else "run")
    return merge(Relay("node-0", 2, 600.0, members, order), now, Report(4, f"{SLOT}4", 7, "node-0", "boot", 0, "ready"))


LATE, EARLY = NodeFailure("failure", "connection lost", 1.0), NodeFailure("failure", "CUDA error", 5.0)


def test_a_relay_says_nothing_until_it_knows_all_of_its_members() -> None:
    assert merged("run", ("running", 1, None)) is None


def test_a_relay_is_ready_or_running_only_if_all_are() -> None:
    assert merged("run", ("running", 1, None), ("running", 1, None)).state == "running"  # type: ignore[union-attr]
    starting = merged("run", ("running", 1, None), ("ready", 0, None))
    assert starting is not None
    assert (starting.state, starting.epoch) == ("ready", 0)
    assert merged("stop", ("ready", 1, None), ("ready", 1, None)).state == "ready"  # type: ignore[union-attr]


def test_the_first_failure_is_named_once_all_have_answered() -> None:
    """While a member below has not answered, an earlier failure may still come."""
    waiting = merged("stop", ("stopping", 1, LATE), ("running", 1, None))
    assert waiting is not None
    assert (waiting.state, waiting.failure) == ("fallen", None)
    answered = merged("stop", ("stopping", 1, LATE), ("stopping", 1, EARLY))
    assert answered is not None
    assert answered.state == "stopping"
    assert answered.failure == EARLY._replace(why="node-1: CUDA error")


def test_a_failure_is_passed_on_before_the_order_to_stop() -> None:
    found = merged("run", ("stopping", 1, LATE), ("running", 1, None))
    assert found is not None
    assert found.state == "stopping"
    assert found.failure == LATE._replace(why="node-0: connection lost")
