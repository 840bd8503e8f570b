"""The proof of a deadlock against a simulation of every schedule: what is proved to stand still never moves again.

A stop is only continued by a process above it, as the proof assumes; all else may do what the kernel lets it.  So may
the outside, in any order: it uses, closes and returns descriptors that it has or was sent.
"""

import os
import random
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

import pytest

from support.short import quick
from support.waiting_worlds import State, made, made_with_fork, pid_of, tid_of, torn
from waitproof import families, proof, recognized
from waitproof.proof import Facts
from waitproof.recognized import Presumed
from waitproof.short_lived import Turnover, turnover
from waitproof.wakers import BY_CALL, BY_OBJECT, Reader

STATES: Final = 4000  # of one world; larger ones are left out
WORLDS: Final = int(os.environ.get("FTRUN_WORLDS", "400"))


class Outcome(NamedTuple):
    """`proved`: the proof says that nothing can end the wait; `stuck`: the simulation does, of the main threads that
    the proof was asked about; `wrong`: the threads that were proved to stand still and can move."""

    proved: bool
    stuck: bool
    wrong: tuple[str, ...] = ()


def moving(start: State) -> set[int] | None:
    """The threads that move in some schedule; None if there are too many states."""
    seen, waiting, moved = {start[1:]}, [start], set[int]()
    while waiting:
        for thread, state in waiting.pop().successors():
            if thread is not None:
                moved.add(thread)
            moved |= {n for n, at in enumerate(state.at) if at is None and start.at[n] is not None}
            if state[1:] not in seen:
                seen.add(state[1:])
                waiting.append(state)
        if len(seen) > STATES:
            return None
    return moved


def tried(seed: int, making: Callable[[random.Random], State] = made) -> Outcome | None:
    chance, tear = random.Random(seed), random.Random(seed)
    state = making(chance)
    runs = [0] * len(state.at)
    before, states = (state, state, tuple(runs)), [state]
    for number in range(chance.randint(0, 12)):
        following = list(state.successors())
        if not following:
            break
        if number % 3 == 0:
            before = tear.choice(states[-4:]), state, tuple(runs)
        thread, state = chance.choice(following)
        states.append(state)
        if thread is not None:
            runs[thread] += 1
    if chance.random() < 0.7:
        before = tear.choice(states[-4:]), state, tuple(runs)
    living = [n for n, life in enumerate(state.life) if life == "alive"]
    if not living or (moved := moving(state)) is None:
        return None
    lasting = [n for n in living if before[0].life[n] == "alive"]
    of_ranks = chance.sample(lasting, chance.randint(0, len(lasting)))
    facts = Facts(pid_of(0), {pid_of(n): n for n in of_ranks}, tuple(pid_of(n) for n in of_ranks))
    world, stacks = torn(tear.choice(states[-4:]), state, tuple(runs))
    found = proof.prove(torn(*before)[0], world, stacks, facts)
    threads = {(pid_of(state.plan.programs[n][0]), tid_of(state.plan, n)): n for n in range(len(state.at))}
    mains = [n for (pid, tid), n in threads.items() if pid == tid and state.life[state.plan.programs[n][0]] == "alive"]
    asked = [[n] for n in mains if state.plan.programs[n][0] in of_ranks] if of_ranks else [mains]
    stuck = any(not moved & set(group) for group in asked)
    if found.open_reason is not None:
        return Outcome(False, stuck)
    wrong = [n for node in found.followed if (n := threads.get(node)) in moved]
    return Outcome(
        True, stuck, tuple(f"seed {seed}: {state.op(n)} of {tid_of(state.plan, n)}" for n in wrong if n is not None)
    )


def outcomes(worlds: int) -> Iterator[Outcome]:
    """Of random worlds; for every two, one of a process that is forked."""
    for seed in range(worlds):
        for making in (made, made_with_fork)[: 1 + (seed % 2 == 0)]:
            if (found := tried(seed, making)) is not None:
                yield found


def test_what_is_proved_never_moves_in_any_schedule_and_much_of_what_is_stuck_is_proved(
    record_property: Callable[[str, object], None],
) -> None:
    found = list(outcomes(WORLDS))
    assert [one.wrong for one in found if one.wrong] == []
    proved, stuck = sum(one.proved for one in found), sum(one.stuck for one in found)
    record_property("proved", f"{proved} of {stuck} in {len(found)} worlds")
    assert all(one.stuck for one in found if one.proved)
    assert proved >= 0.4 * stuck > 0.05 * len(found), f"{proved} of {stuck} are proved, in {len(found)} worlds"


def without(*_: Any) -> set[int]:
    """Nobody may end the wait."""
    return set()


def blind(original: Any, **changed: Any) -> Any:
    """The same function with fields of the world that are empty."""

    def call(self: Any, *arguments: Any) -> Any:
        world = self._world
        self._world = world._replace(**changed)
        try:
            return original(self, *arguments)
        finally:
            self._world = world

    return call


def overlooking(*arguments: Any) -> Turnover:
    """Processes that have just started are not looked at."""
    found = turnover(*arguments)
    kept = {pid: process for pid, process in found.world.processes.items() if pid not in found.started}
    return found._replace(world=found.world._replace(processes=kept, holders=_of(found, kept)))


def holding_nothing(*arguments: Any) -> Turnover:
    """Processes that have just started have nothing open."""
    found = turnover(*arguments)
    return found._replace(world=found.world._replace(holders=_of(found, found.world.processes.keys() - found.started)))


def _of(found: Turnover, pids: Collection[int]) -> dict[str, dict[int, str]]:
    held = found.world.holders.items()
    return {key: {pid: mode for pid, mode in holders.items() if pid in pids} for key, holders in held}


BUGS: Final[dict[str, tuple[Any, str, Any]]] = {
    "the other end of a pipe": (BY_OBJECT, "pipe", without),
    "other processes with a shared lock": (BY_CALL, "shared futex", without),
    "the child that is awaited": (BY_CALL, "child", without),
    "the holder of a file lock": (BY_CALL, "lock", without),
    "an event descriptor's other holders": (BY_OBJECT, "eventfd", without),
    "the other end of a socket": (BY_OBJECT, "socket", without),
    "what a signal handler may do": (Reader, "_signals", lambda *_: set()),
    "pipes outside the job": (BY_OBJECT, "pipe", blind(Reader._pipe, outside={})),
    "sockets outside the job": (BY_OBJECT, "socket", blind(Reader._socket, outside={})),
    "shared locks outside the job": (BY_CALL, "shared futex", blind(Reader._shared_lock, outside={})),
    "descriptors that a process of the job is about to receive": (
        Reader,
        "_descriptor",
        blind(Reader._descriptor, receiving=set()),
    ),
    "descriptors that a process outside is about to receive": (
        Reader,
        "_descriptor",
        blind(Reader._descriptor, doubts={}),
    ),
    "processes that have just started": (proof, "turnover", overlooking),
    "what a process that has just started has open": (proof, "turnover", holding_nothing),
    "that a timer ends": (recognized, "presumed", lambda *_: Presumed()),
}


# Of these a world that shows them is among the first hundreds; the others take seconds.
SOON: Final = (
    "the other end of a pipe",
    "the other end of a socket",
    "what a signal handler may do",
    "pipes outside the job",
    "processes that have just started",
)


@pytest.mark.parametrize("what", quick(BUGS, SOON))
def test_a_proof_that_overlooks_something_is_caught(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, bug = BUGS[what]
    if isinstance(where, dict):  # a rule of the table
        assert name in where
        monkeypatch.setitem(where, name, bug)
    else:
        monkeypatch.setattr(where, name, bug)
    assert any(one.wrong for one in outcomes(20 * WORLDS)), "nothing was wrong"


@pytest.mark.slow
def test_a_proof_that_overlooks_who_may_continue_a_stopped_process_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "_above", lambda *_: iter(()))
    monkeypatch.setattr(families, "pausers", lambda *_: {})
    assert any(one.wrong for one in outcomes(20 * WORLDS))


@pytest.mark.slow
def test_a_proof_that_forgets_the_other_threads_of_a_process_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Reader.of

    def forgetful(self: Reader, pid: int, thread: Any) -> Any:
        found = of(self, pid, thread)
        return found._replace(pids=found.pids - {pid})

    monkeypatch.setattr(Reader, "of", forgetful)
    assert any(one.wrong for one in outcomes(20 * WORLDS))
