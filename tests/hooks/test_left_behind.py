"""What a round leaves behind in the process of a rank, and the wait for the store of the next one."""

import gc
import importlib
import socket
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun_hooks import _recover, _torch_adapter
from ftrun_hooks._recover import Leftovers, Rendezvous


class State:
    """One that only a reference cycle keeps, once nothing else refers to it."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        self.itself, self.connection = self, connection


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each collection that `Leftovers` makes; Python makes none by itself."""
    made: list[int] = []

    def collect() -> None:
        made.append(gc.collect())

    monkeypatch.setattr(_recover, "gc", SimpleNamespace(collect=collect))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))
    gc.collect()
    gc.disable()
    yield made
    gc.enable()


def test_a_round_that_leaves_nothing_needs_no_collection(collections: list[int]) -> None:
    left = Leftovers()
    for _ in range(3):
        left.begin()
        with socket.socket():
            pass
        state = SimpleNamespace()
        left.watch([state, 1, "text", {}])
        del state
        left.collect()
    assert not collections


def test_a_socket_of_the_round_is_closed_by_a_collection(collections: list[int]) -> None:
    left = Leftovers()
    left.begin()
    state = State(socket.socket())
    alive = weakref.ref(state)
    del state
    left.collect()
    assert alive() is None
    left.begin()
    left.collect()
    assert len(collections) == 1


def test_what_is_in_use_elsewhere_costs_one_collection(collections: list[int]) -> None:
    left, state, connection = Leftovers(), SimpleNamespace(), None
    for _ in range(3):
        left.begin()
        connection = connection or socket.socket()
        left.watch([state])
        left.collect()
    assert connection is not None
    connection.close()
    assert len(collections) == 1


def test_memory_of_a_device_that_remains_is_collected_once(
    collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter([100 << 20, 1000 << 20, 950 << 20, 1000 << 20])  # the third after the collection
    monkeypatch.setattr(_torch_adapter, "allocated", lambda: {0: next(sizes)})
    left = Leftovers()
    made = []
    for _ in range(3):
        left.begin()
        left.collect()
        made.append(len(collections))
    assert made == [0, 1, 1]


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """Rank 1 of a round whose store does not listen yet, and that socket."""
    store = socket.socket()
    store.bind(("127.0.0.1", 0))
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.getsockname()[1]), "RANK": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_torch_adapter, "store_port", lambda: store.getsockname()[1])
    return store


def never() -> bool:
    return False


def test_a_rank_waits_until_the_store_listens(rank: socket.socket) -> None:
    meeting, asked = Rendezvous(), []
    meeting.note()

    def is_over() -> bool:
        asked.append(1)
        if len(asked) == 3:
            rank.listen()
        return False

    with rank:
        meeting.wait(is_over)
    assert len(asked) == 3  # it was refused twice


def test_a_rank_that_waited_in_vain_waits_never_again(rank: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def is_over() -> bool:
        asked.append(1)
        return False

    with rank:
        meeting = Rendezvous()
        meeting.note()
        monkeypatch.setattr("ftrun_hooks._recover.LONGEST_WAIT", 0.05)
        meeting.wait(is_over)
        before = len(asked)
        meeting.wait(is_over)
    assert len(asked) == before > 1


def test_a_round_that_ends_ends_the_wait(rank: socket.socket) -> None:
    asked: list[int] = []

    def is_over() -> bool:
        asked.append(1)
        return len(asked) > 2

    with rank:
        meeting = Rendezvous()
        meeting.note()
        meeting.wait(is_over)
        assert len(asked) == 4  # and once more for the result
        meeting.wait(is_over)
        assert len(asked) == 6  # that was not in vain


@pytest.mark.parametrize(
    "variables", [{"RANK": "0"}, {"MASTER_ADDR": "a-name.invalid"}, {"MASTER_PORT": "1"}, {"MASTER_PORT": "no port"}]
)
def test_a_rank_does_not_wait_for_another_store(
    rank: socket.socket, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """Rank 0 serves it; a name may take any time; the last round has met elsewhere."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with rank:
        meeting = Rendezvous()
        meeting.note()
        meeting.wait(pytest.fail)
        Rendezvous().wait(pytest.fail)  # and none before a round has met


@pytest.mark.slow
@pytest.mark.torch
def test_the_port_of_torchs_store_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed: Any = importlib.import_module("torch.distributed")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert _torch_adapter.store_port() is None
    distributed.init_process_group("gloo")
    try:
        assert _torch_adapter.store_port() == port
    finally:
        assert _torch_adapter.end_groups() is None
    assert _torch_adapter.store_port() is None


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("end", [_torch_adapter.end_groups, _torch_adapter.forget_ended_groups])
def test_a_group_that_the_function_has_destroyed_is_no_default_any_more(
    end: Callable[[], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    functional: Any = importlib.import_module("torch.distributed.nn.functional")
    distributed: Any = sys.modules["torch.distributed"]
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    # As where the module is loaded while there is a group.
    monkeypatch.setattr(functional.all_gather, "__defaults__", (distributed.group.WORLD,))
    held = weakref.ref(distributed.group.WORLD)
    distributed.destroy_process_group()
    assert held() is not None
    assert end() is None
    assert held() is None
    assert functional.all_gather.__defaults__ == (None,)
