"""Simulate groups of up to 100,000 members, with messengers in a star and in a tree: `bin/prove scale`.

Rank 0 runs the real coordinator (`core/group`); what is between it and the members is `relay.py`, a plan
(docs/scale.md); the network and the processors are a model (`model.py`).  Every run has a
seed and is the same on every machine."""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from typing import Final

from proof.scale import page
from proof.scale.fleet import Fleet, Node
from proof.scale.model import RACK_SIZE, Network, Simulation
from proof.scale.outcome import FAN, Case, Outcome
from support.measured import save

LIMIT: Final = 900.0  # s of simulated time until a run counts as stuck


def started(size: int, fan: int, network: Network, seed: int) -> Fleet:
    fleet = Fleet(Simulation(network, seed), size, fan)
    fleet.begin()
    wait_until(fleet, lambda: count(fleet, "run", 1) == size)
    settle(fleet, 1.0)
    for node in fleet.nodes:
        node.received_bytes = node.sent_bytes = 0
    return fleet


def settle(fleet: Fleet, seconds: float) -> None:
    """Let the reports of this moment arrive."""
    end = fleet.simulation.now + seconds
    fleet.simulation.at(end, lambda: None)
    fleet.simulation.run(lambda: fleet.simulation.now >= end, seconds + 1.0)


def wait_until(fleet: Fleet, condition: Callable[[], bool]) -> None:
    if not fleet.simulation.run(condition, LIMIT):
        raise AssertionError(f"the group is stuck in {fleet.coordinator.phase}: {fleet.coordinator.order}")


def count(fleet: Fleet, what: str, epoch: int) -> int:
    return len(fleet.moments.get((what, epoch), ()))


def recovered(fleet: Fleet, began: float, lost: float = 0.0) -> Outcome:
    """Wait until all members run the second epoch.  `lost`: seconds that the fault itself takes, which do not count."""
    size = len(fleet.nodes)
    wait_until(fleet, lambda: count(fleet, "run", 2) >= size)
    fence = max(fleet.moments.get(("stop", 1), [began])) - began
    total = max(fleet.moments["run", 2]) - began
    return Outcome(fence, max(0.0, total - max(fence, lost)), fleet.coordinator.epoch, *burden(fleet))


def undisturbed(fleet: Fleet, began: float, ready: Callable[[], bool]) -> Outcome:
    """Wait until the tree is whole again; `barrier` is that time, and no epoch may have begun."""
    wait_until(fleet, ready)
    whole = fleet.simulation.now - began
    settle(fleet, 30.0)
    return Outcome(0.0, whole, fleet.coordinator.epoch, *burden(fleet))


def burden(fleet: Fleet) -> tuple[float, int, int]:
    busiest = max(fleet.nodes, key=lambda node: node.received_bytes + node.sent_bytes)
    children = max(len(node.children) for node in fleet.nodes)
    return (busiest.received_bytes + busiest.sent_bytes) / 1024, children, fleet.depth


# --- the faults -----------------------------------------------------------------------------------------------------


def one_command(fleet: Fleet) -> Outcome:
    began = fleet.simulation.now
    fleet.nodes[-1].fail("CUDA error")
    return recovered(fleet, began)


def rack(fleet: Fleet) -> Outcome:
    began = fleet.simulation.now
    first = len(fleet.nodes) // 2 // RACK_SIZE * RACK_SIZE
    for node in fleet.nodes[first : first + RACK_SIZE]:
        node.fail("CUDA error")
    return recovered(fleet, began)


def inner(fleet: Fleet) -> Node:
    """A relay directly below rank 0, whose loss concerns the most members."""
    return next(node for node in reversed(fleet.root.children) if node.children)


def inner_messenger(fleet: Fleet) -> Outcome:
    node, began = inner(fleet), fleet.simulation.now
    fleet.kill_messenger(node)
    return undisturbed(fleet, began, lambda: len(node.relay.members) == node.relay.size)


def inner_messenger_in_restart(fleet: Fleet) -> Outcome:
    began = fleet.simulation.now
    fleet.nodes[-1].fail("CUDA error")
    fleet.kill_messenger(inner(fleet))
    return recovered(fleet, began)


def inner_container(fleet: Fleet, gone: float = 20.0) -> Outcome:
    node, began = inner(fleet), fleet.simulation.now
    fleet.kill_container(node)
    fleet.simulation.at(began + gone, fleet.replace, node)
    return recovered(fleet, began, gone)


def power_zone(fleet: Fleet, gone: float = 60.0) -> Outcome:
    """A tenth of all members, from the leaves, whose containers come back after a minute."""
    began = fleet.simulation.now
    leaves = [node for node in fleet.nodes if not node.children]
    zone = leaves[-len(fleet.nodes) // 10 :]
    for node in zone:
        fleet.kill_container(node)
        fleet.simulation.at(began + gone, fleet.replace, node)
    return recovered(fleet, began, gone)


def switch(fleet: Fleet, lasting: float = 30.0) -> Outcome:
    """A pod without its uplink; nothing else fails."""
    began = fleet.simulation.now
    fleet.simulation.cut.add(1)
    fleet.simulation.at(began + lasting, fleet.simulation.cut.clear)
    found = undisturbed(fleet, began, lambda: not fleet.simulation.cut)
    return found._replace(barrier=found.barrier - lasting)


def switch_in_restart(fleet: Fleet, lasting: float = 30.0) -> Outcome:
    began = fleet.simulation.now
    fleet.simulation.cut.add(1)
    fleet.simulation.at(began + lasting, fleet.simulation.cut.clear)
    fleet.nodes[-1].fail("CUDA error")
    return recovered(fleet, began, lasting)


CASES: Final = (
    Case("the command of one member fails", one_command, 2),
    Case("32 members of a rack fail at once", rack, 2),
    Case("one node in a hundred is 50 times slower, and a command fails", one_command, 2, Network(slow=0.01)),
    Case("1 % of the segments are lost, and a command fails", one_command, 2, Network(loss=0.01)),
    Case("a messenger directly below rank 0 dies", inner_messenger, 1),
    Case("the same while all members restart", inner_messenger_in_restart, 2),
    Case("the container of such a messenger is lost for 20 s", inner_container, 2),
    Case("a tenth of all members loses power for 60 s", power_zone, 2),
    Case("a switch cuts off 1,024 members for 30 s", switch, 1),
    Case("the same, and meanwhile a command fails", switch_in_restart, 2),
)


def run(case: Case, size: int, fan: int, seed: int) -> Outcome:
    found = case.play(started(size, fan, case.network, seed))
    if found.epochs != case.epochs:
        raise AssertionError(f"{case.name}: {found.epochs} epochs began, not {case.epochs}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser("bin/prove scale", description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="of the largest group [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--dry", action="store_true", help="publish nothing")
    given = parser.parse_args()
    rows, found = [], []
    for size, fan in shapes(given.size):
        rows.append((size, fan, report("one failure", size, fan, CASES[0], given.seed)))
    for case in CASES:
        for size in (given.size // 10, given.size):
            found.append((case, size, report(case.name, size, FAN, case, given.seed)))
    if not given.dry:
        print(*(save("scale", part) for part in (page.sizes(rows), page.faults(found), page.failures())))
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB at most")
    return 0


def shapes(largest: int) -> list[tuple[int, int]]:
    stars = [size for size in (100, 1_000, 4_000, 10_000) if size <= largest]
    trees = [size for size in (100, 1_000, 10_000, 100_000) if size <= largest]
    found = [(size, size) for size in stars] + [(size, FAN) for size in trees]
    return found + [(trees[-1], fan) for fan in (16, 32, 128, 320)]


def report(name: str, size: int, fan: int, case: Case, seed: int) -> Outcome:
    began = time.monotonic()
    found = run(case, size, fan, seed)
    print(f"{size} members, {fan} each: {name}: {found}, in {time.monotonic() - began:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
