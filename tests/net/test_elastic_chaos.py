"""Groups that go on with fewer members, or have spares, and random faults of their containers and processes.

    REPEATS=100 SEED=7 pytest -m slow tests/net/test_elastic_chaos.py -s

In each run all members that are left finish together; no two epochs are at work at once, and no member starts twice in
an epoch.
"""

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from support.group_runs import Group
from support.hosts import Container, Hosts, refusal
from support.runs import wait_for

REPEATS = int(os.environ.get("REPEATS", "100"))
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
SHORT = 1122  # the faults of the one run in the gate are always the same
OPTIONS = ("--hang-timeout", "20s", "--peer-timeout", "20s")
WAIT = "6s"
KINDS = ("loss", "loss", "return", "return", "command", "messenger", "zero", "flap")


class Shape(NamedTuple):
    hosts: int
    least: int
    spares: int

    @property
    def options(self) -> tuple[str, ...]:
        warm = ("--standby", "1") if self.spares and self.hosts > 3 else ()
        return (*OPTIONS, "--spares", str(self.spares), *warm)


SHAPES = (Shape(3, 2, 0), Shape(4, 3, 1), Shape(4, 2, 1), Shape(4, 2, 0), Shape(3, 1, 1))


def members_of(group: Group) -> set[int]:
    return {one.rank for one in group.hosts.last if not one.ended}


def is_settled(member: Container) -> bool:
    """Whether it has ended, works, or waits as a spare: one that comes when all have ended would wait in vain."""
    return member.ended or bool(member.named("spawned")) or "spare" in {one["what"] for one in member.named("group")}


def strike(group: Group, shape: Shape, dice: random.Random, kind: str) -> str:
    """One fault.  A loss leaves as many members as are needed, and so does a member that is lost again and again: that
    may take longer than the group waits."""
    others = sorted(members_of(group) - {0})
    chosen = dice.choice(others) if others else 0
    if kind == "loss" and len(others) + 1 > shape.least:
        group.gone.add(chosen)
        group.rank(chosen).kill()
    elif (kind == "return" and others) or (kind == "flap" and len(others) + 1 > shape.least):
        for _ in range(1 if kind == "return" else 3):
            group.rank(chosen).kill()
            time.sleep(dice.uniform(0, 1.5))
            group.start(chosen, MA_SCHEDULE_CNT="2")
            time.sleep(dice.uniform(0, 3) if kind == "flap" else 0)
    elif kind == "zero":
        group.rank(0).kill()
        time.sleep(dice.uniform(0, 2))
        group.start(0, MA_SCHEDULE_CNT="2")
    elif kind == "messenger":
        if pid := group.rank(chosen).helper("messenger"):
            os.kill(pid, signal.SIGKILL)
    elif kind == "command":
        working = [one for one in group.hosts.last if not one.ended and one.named("spawned")]
        if working:
            victim = dice.choice(working)
            os.kill(victim.command, signal.SIGKILL)
            return f"command of member {victim.rank}"
    return f"{kind} of member {0 if kind == 'zero' else chosen}"


def play(seed: int, folder: Path) -> tuple[list[str], str]:
    """The violations, and what happened."""
    dice = random.Random(seed)
    shape = dice.choice(SHAPES)
    here, did = Hosts(folder, shape.hosts), [f"{shape}"]
    try:
        arguments = ("--steps", "1000000", "--step-time", "0.02")
        size = f"{shape.least}:{shape.hosts}"
        group = Group(here, *arguments, wait=WAIT, shape=size, options=shape.options)
        group.begin()
        group.until_started(1, nodes=shape.hosts - shape.spares)
        try:
            for _ in range(dice.choice([1, 2, 3])):
                time.sleep(dice.uniform(0, 4))
                did.append(strike(group, shape, dice, dice.choice(KINDS)))
            wait_for(lambda: all(map(is_settled, group.hosts.last)), "all work or are spares", 150)
            before = group.book.step
            wait_for(lambda: group.book.step > before + 20 or not members_of(group), "training goes on", 150)
            group.finish()
        except AssertionError as problem:
            return [f"{problem}"], f"{did}\n{group.log()}"
        group.ended(90)
        wrong = group.wrong()
        if not wrong and group.codes[0] != 0:
            wrong.append(f"all ended with {group.codes[0]}")
        return wrong, f"{did}, epochs {group.book.epochs}" + (f"\n{group.log()}" if wrong else "")
    finally:
        here.close()


def judge(repeats: int, folder: Path, seed: int = SEED) -> None:
    if why := refusal():
        pytest.skip(f"no hosts in network namespaces: {why}")
    print(f"\nSEED={seed}", flush=True)
    violations = []
    for number in range(repeats):
        run = folder / f"{number}"
        wrong, outcome = play(seed + number, run)
        print(f"{number}: {'; '.join(wrong) or 'right'}; {outcome.splitlines()[0]}", flush=True)
        if wrong:
            violations.append(f"SEED={seed + number}: {wrong}\n{outcome}")
            (folder / f"{number}.txt").write_text(violations[-1])
        shutil.rmtree(run, ignore_errors=True)
    assert not violations, f"{len(violations)} of {repeats}\n" + "\n\n".join(violations)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_the_rest_goes_on_whatever_is_lost(tmp_path: Path) -> None:
    judge(REPEATS, tmp_path)


def test_the_rest_goes_on_in_one_run(tmp_path: Path) -> None:
    judge(1, tmp_path, seed=SHORT)
