"""An adversary plays against the coordinator of a group: see `coordinator_world`."""

import os

import pytest

from core.coordinator_world import World
from ftrun.core.group.membership import GroupShape

# The gate plays some of the worlds in which CI searches for the bugs of planted.py.
PLANTED = "FTRUN_PLANTED" in os.environ
FEW = 40 if PLANTED else 8
SEEDS = [range(FEW), pytest.param(range(FEW, 1000), marks=pytest.mark.slow)]
KINDS = {
    "falls": "ffhd",
    "losses": "dmc",
    "forgets": "xxfhd",
    "replaced": "rrrfhdz",
    "everything": "ffhhddmcxzlr",
    "ends": "eeeefdx",
    "kept": "kkkfhdmcxr",
}
ELASTIC = {
    "fewer": "nndmc",
    "spares": "nbddm",
    "flapping": "bbbnd",
    "partitions": "ppcmn",
    "scale-out": "ssnbd",
    "replaced": "rrrfhdnz",
    "everything": "ffhhddmcxzlnbpsr",
    "verdicts": "fffnde",
    "kept": "kkkfhdmcrnb",
}


def shape_of(seed: int) -> GroupShape:
    """Of 2 to 6 members: fewer are enough, some are spares, or a lost one is replaced."""
    size = 2 + seed % 5
    spares = (seed // 5) % 3 % (size - 1)
    least = max(1, size - spares - (seed // 3) % 3)
    return GroupShape(size, least, spares, replaces=seed % 2 == 0, scale_out=seed % 4 > 1)


def play(seed: int, kinds: str, shape: GroupShape | None = None) -> World:
    size = shape.size if shape else 1 + seed % 6
    world = World(seed, size, bad=[0.0, 0.1, 0.5][seed % 3], shape=shape)
    world.suffer(kinds, 8.0, 2)
    codes = {(end.code, end.why) for end in world.verdicts}
    assert len(codes) <= 1 or world.replaced, codes  # one that was replaced while it lives ends its job by itself
    return world


WORLDS = [(kinds, False) for kinds in KINDS.values()] + [(kinds, True) for kinds in ELASTIC.values()]
IDS = [*KINDS, *(f"elastic {name}" for name in ELASTIC)]


@pytest.mark.parametrize("seeds", SEEDS, ids=["few", "many"])
@pytest.mark.parametrize(("kinds", "elastic"), WORLDS, ids=IDS)
def test_no_two_epochs_at_work_and_nobody_waits_for_ever(kinds: str, elastic: bool, seeds: range) -> None:
    for seed in seeds:
        play(seed, kinds, shape_of(seed) if elastic else None)


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("seed", range(10))
def test_members_that_were_all_killed_start_again_at_once_in_the_run_dirs_they_had(seed: int, spares: int) -> None:
    """Only the run dirs remember the epoch, and their locks show that nothing of it runs: no lease is waited for."""
    world = World(seed, size=3, bad=0.0, shape=GroupShape(3, 1, spares))
    world.run(20.0)
    for body in world.current():
        body.die()
        if body.rank == 0:
            body.side.end()
    for body in world.current():
        world.later(world.dice.random() * 10, lambda body=body: world.born(body.rank, body))  # type: ignore[misc]
    world.run(35.0)
    states = sorted((body.epoch, body.state) for body in world.current())
    assert states == sorted([*[(2, "running")] * (3 - spares), *[(2, "ready")] * spares])


@pytest.mark.parametrize("seed", range(5))
def test_neither_the_network_nor_a_coordinator_that_forgets_disturbs_a_healthy_group(seed: int) -> None:
    world = World(seed, size=5, bad=0.5)
    world.run(300.0)
    assert world.settled() is None
    assert [order.what for order in world.ordered] == ["run"] or {o.epoch for o in world.ordered} == {1}
    for _ in range(5):
        world.forget()
        world.run(world.now + 40.0)
    assert {(body.epoch, body.state) for body in world.bodies} == {(1, "running")}


def test_the_world_is_bad_enough() -> None:
    """Restarts, verdicts, losses and forgotten epochs do come about in it."""
    worlds = [play(seed, KINDS["everything"]) for seed in range(40)]
    assert max(world.started for world in worlds) >= 4
    assert {end.code for world in worlds for end in world.verdicts} >= {93, 195, 197}
    assert any(world.sessions for world in worlds)
    assert any(world.replaced for world in worlds)
