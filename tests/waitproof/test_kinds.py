"""The table of the kinds of waits is complete, and each kind is in one row."""

from collections import Counter
from types import SimpleNamespace

from waitproof import calls, wakers
from waitproof.describe import UNKNOWN, Describer
from waitproof.recognized import Gives
from waitproof.wakers import KINDS
from waitproof.world import OBJECTS, WaitingThread

OF_FUTEX = ("futex", "shared futex")
OF_LOCK = ("lock", "handed lock")


def test_each_system_call_in_which_a_thread_can_wait_is_in_one_row() -> None:
    found = Counter(name for kind in KINDS for name in kind.calls)
    wanted = {call.kind for machine in ("x86_64", "aarch64") for call in calls.table(machine).values()}
    assert found == Counter({*wanted, *OF_FUTEX, *OF_LOCK})
    for call in calls.table("x86_64").values():
        for shared in ("", "map:1"):
            assert wakers.kind_of(WaitingThread(1, call, shared=shared)) in found


def test_each_object_that_a_descriptor_stands_for_is_in_one_row() -> None:
    assert Counter(name for kind in KINDS for name in kind.objects) == Counter(OBJECTS)


def test_each_set_of_threads_of_the_own_process_is_in_one_row() -> None:
    own = set(Gives) - {Gives.CONNECTION}  # which other processes wait for
    assert Counter(gives for kind in KINDS for gives in kind.own) == Counter(own)


def test_each_row_says_who_can_end_the_wait_and_why() -> None:
    assert all(kind.waits and kind.ends and kind.why for kind in KINDS)


def test_each_wait_has_words() -> None:
    """But for a device, and for what is left of System V, of which there is nothing to say but the call."""
    unnamed = set[str]()
    for call in calls.table("x86_64").values():
        process = SimpleNamespace(fds={}, threads=(WaitingThread(1, call, state="S"),), ends=())
        world = SimpleNamespace(processes={1: process}, locks={}, sockets={})
        text = Describer(world, {}, {}, {}).does(1, 1)  # type: ignore[arg-type]
        if f"system call {call.name}" in text or UNKNOWN in text:
            unnamed.add(call.kind)
    assert unnamed == {"device", "other"}
