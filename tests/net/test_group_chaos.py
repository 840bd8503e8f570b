"""Eight ranks that train in eight containers, and random faults of one of them or of the network.

    REPEATS=50 SEED=7 pytest -m slow tests/net/test_group_chaos.py -s

`CHAOS_SECONDS=120` begins no further run after two minutes, as CI does.
In each run either all members restart in one epoch and finish with the same result, or all end with one verdict.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.group_runs import TRAIN, Group
from support.hosts import Hosts, refusal
from support.runs import wait_for

SIZE = 8
REPEATS = int(os.environ.get("REPEATS", "50"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "inf"))
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
STEPS, WAIT, SILENCE = 100, 20.0, 15.0
RECOVERY = 120.0  # s from the fault to a successful end; most of it is the import of torch, eight times on few cores
LATE = 15.0  # s that a loaded machine may add to a deadline
OPTIONS = ("--hang-timeout", "10s", "--start-timeout", "60s", "--peer-timeout", f"{SILENCE:.0f}s")


class Case(NamedTuple):
    """`moment`: a step, or seconds after the first start as a negative number.  `lasting`: the duration in s."""

    kind: str
    rank: int
    moment: float
    lasting: float
    silent: bool

    def __str__(self) -> str:
        when = f"at step {self.moment:.0f}" if self.moment > 0 else f"{-self.moment:.1f} s after the first start"
        return f"{self.kind} of rank {self.rank} {when}, {self.lasting:.1f} s{', silent' if self.silent else ''}"


Fault = Callable[[Group, Case], None]


def hang(group: Group, case: Case) -> None:
    wait_for(lambda: group.book.named("hang"), "the hang")


def kill_command(group: Group, case: Case) -> None:
    os.kill(group.rank(case.rank).command, signal.SIGKILL)


def kill_ftrun(group: Group, case: Case) -> None:
    """The container is started again, in place or anew."""
    group.rank(case.rank).kill()
    time.sleep(case.lasting)
    if case.silent:
        group.start(case.rank, again=True)
    else:
        group.start(case.rank, MA_SCHEDULE_CNT="2")


def lose_ftrun(group: Group, case: Case) -> None:
    group.gone.add(case.rank)
    group.rank(case.rank).kill()


def kill_messenger(group: Group, case: Case) -> None:
    os.kill(group.rank(case.rank).messenger, signal.SIGKILL)


def cut_for_a_while(group: Group, case: Case) -> None:
    cut_permanently(group, case)
    time.sleep(5)
    group.hosts.hosts[case.rank].restore()


def cut_permanently(group: Group, case: Case) -> None:
    group.hosts.hosts[case.rank].cut(case.silent)


def delay_and_kill(group: Group, case: Case) -> None:
    group.proxy.delay(0.2)
    time.sleep(case.lasting / 5)
    kill_command(group, case)


def stall(group: Group, case: Case) -> None:
    group.proxy.stall()
    time.sleep(2 * case.lasting)
    group.proxy.flow()


def stall_permanently(group: Group, case: Case) -> None:
    group.proxy.stall()


def cut_connections(group: Group, case: Case) -> None:
    for _ in range(4):
        group.proxy.cut()
        time.sleep(case.lasting / 5)


class Kind(NamedTuple):
    fault: Fault
    code: int  # of all members
    epochs: tuple[int, ...]  # at most
    zero: bool | None = None  # True: only rank 0; False: any other


KINDS = {
    "hang": Kind(hang, 0, (1, 2)),
    "kill of the command": Kind(kill_command, 0, (1, 2)),
    "kill of ftrun": Kind(kill_ftrun, 0, (1, 2), zero=False),
    "kill of rank 0's ftrun": Kind(kill_ftrun, 0, (1, 2), zero=True),
    "loss of ftrun": Kind(lose_ftrun, 195, (1,), zero=False),
    "loss of rank 0's ftrun": Kind(lose_ftrun, 195, (1,), zero=True),
    "kill of the messenger": Kind(kill_messenger, 0, (1,)),
    "kill of rank 0's messenger": Kind(kill_messenger, 0, (1,), zero=True),
    "link cut for 5 s": Kind(cut_for_a_while, 0, (1, 2)),
    "permanently cut link": Kind(cut_permanently, 195, (1,)),
    "200 ms and a kill of the command": Kind(delay_and_kill, 0, (1, 2)),
    "stalled connections": Kind(stall, 0, (1,)),
    "permanently stalled connections": Kind(stall_permanently, 195, (1,)),
    "cut connections": Kind(cut_connections, 0, (1,)),
}


def cases(seed: int) -> Iterator[Case]:
    """All kinds in turn; everything else is random."""
    chance = random.Random(seed)
    while True:
        for name, kind in KINDS.items():
            rank = 0 if kind.zero else chance.randrange(1 if kind.zero is False else 0, SIZE)
            moment = chance.uniform(-10, 0) if name != "hang" and chance.random() < 0.25 else chance.randint(3, 70)
            yield Case(name, rank, moment, chance.uniform(0.2, 4), chance.random() < 0.5)


def run_case(case: Case, folder: Path) -> tuple[list[str], str]:
    """The violations, and the outcome in a line."""
    kind = KINDS[case.kind]
    here = Hosts(folder, SIZE)
    try:
        proxy = here.proxy()
        failure = ("--failure", f"hang:{case.rank}:{case.moment}") if case.kind == "hang" else ()
        arguments = ("--steps", str(STEPS), *failure)
        group = Group(here, *arguments, program=TRAIN, options=OPTIONS, wait=f"{WAIT:.0f}s", proxy=proxy)
        began = time.monotonic()
        group.begin()
        try:
            if case.moment > 0 and case.kind != "hang":
                group.until_step(int(case.moment))
            elif case.moment <= 0:
                wait_for(lambda: group.book.named("start") or time.monotonic() > began + 60, "a start")
                time.sleep(-case.moment)
            kind.fault(group, case)
        except AssertionError as problem:
            return [f"the fault was not injected: {problem}"], group.log()
        then = time.monotonic()
        group.ended(RECOVERY if kind.code == 0 else SILENCE + WAIT + LATE)
        wrong, epochs = group.wrong(), tuple(group.book.epochs)
        after = f"{time.monotonic() - then:.1f} s after it, {time.monotonic() - began:.1f} s in all"
        if not wrong and group.codes[0] != kind.code:
            wrong.append(f"all ended with {group.codes[0]}, not {kind.code}")
        if epochs not in (kind.epochs, kind.epochs[:1]):
            wrong.append(f"epochs {epochs}")
        codes = "" if wrong else f"{group.codes[0]} for all, "
        return wrong, f"{codes}epochs {epochs}, {after}" + (f"\n{group.log()}" if wrong else "")
    finally:
        here.close()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(4 * 3600)
def test_all_finish_or_all_end_with_one_verdict(tmp_path: Path) -> None:
    if why := refusal():
        pytest.skip(f"no hosts in network namespaces: {why}")
    print(f"\nSEED={SEED}", flush=True)
    violations = []
    only = os.environ.get("KIND", "")
    chosen = (case for case in cases(SEED) if only in case.kind)
    until = time.monotonic() + SECONDS
    for number in range(REPEATS):
        if time.monotonic() >= until:
            break
        case = next(chosen)
        folder = tmp_path / f"{number}"
        wrong, outcome = run_case(case, folder)
        print(f"{number}: {case}: {'; '.join(wrong) or 'as expected'}; {outcome.splitlines()[0]}", flush=True)
        if wrong:
            violations.append(f"{number}: {case} (SEED={SEED}): {wrong}\n{outcome}")
            (tmp_path / f"{number}.txt").write_text(violations[-1])
        else:
            shutil.rmtree(folder)
    assert not violations, f"{len(violations)} of {REPEATS}\n" + "\n\n".join(violations)
