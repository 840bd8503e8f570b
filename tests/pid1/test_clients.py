"""What PID 1 makes of what its helpers say: each message is understood, and a malformed one is one problem."""

import importlib.util
import json
from typing import Any, Final

import pytest

from ftrun.core.machine import events as ev
from ftrun.host.helpers import Line
from ftrun.messages.codec import Protocol
from ftrun.pid1.clients.base import REFUSALS, Client
from ftrun.pid1.clients.registry import TABLE, Entry, load
from proof.fuzz import kit, messages, seeds

HELPERS: Final = sorted({entry.helper for entry in TABLE})
MALFORMED: Final = {
    b"": "not JSON",
    b"{": "not JSON",
    b"\xff": "not JSON",
    b"[" * 30_000: "not JSON",
    b"[]": "not an object with `event`",
    b'{"event": 5}': "not an object with `event`",
    b'{"event": "unheard"}': "unknown message 'unheard'",
    b'{"event": "problem"}': "message 'problem': `what` is missing",
    b'{"event": "problem", "what": 5}': "message 'problem': `what`: not a text",
    b'{"event": "problem", "what": "w", "more": 5}': "message 'problem': unknown field 'more'",
}


class World:
    """The clients of all helpers, of which none is started."""

    def __init__(self) -> None:
        self.helpers, self.clients = messages.every_client()

    def receive(self, name: str, *lines: Line) -> list[ev.Event]:
        self.helpers.words = [(name, line) for line in lines]
        return self.clients.receive(set(), kit.NOW)

    def problems(self) -> list[tuple[object, str]]:
        records = [dict(fields) for name, fields, _ in self.clients.drain_records() if name == "problem"]
        return [(record["helper"], str(record["what"])) for record in records]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("line", MALFORMED, ids=range(len(MALFORMED)))
@pytest.mark.parametrize("name", HELPERS)
def test_a_malformed_message_is_one_problem_that_names_the_helper(world: World, name: str, line: bytes) -> None:
    assert world.receive(name, line, line) == []
    assert world.problems() == [(name, f"malformed message: {MALFORMED[line]}")]


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.client)
def test_an_entry_names_a_program_that_exists(entry: Entry) -> None:
    assert load(entry).name == entry.helper
    assert importlib.util.find_spec(f"ftrun.helpers.{entry.helper}.__main__") is not None


@pytest.mark.parametrize("name", HELPERS)
def test_a_message_with_a_field_of_another_type_is_a_problem(name: str) -> None:
    """And nothing else: no event, and no exception."""
    for line in seeds.LINES[name]:
        found = json.loads(line)
        for field in found.keys() - {"event"}:
            world = World()
            assert world.receive(name, json.dumps(found | {field: {"no": ["such", "thing"]}}).encode()) == []
            ((helper, what),) = world.problems()
            assert (helper, f"`{field}`" in what) == (name, True), what


def test_a_helper_that_says_nothing_else_does_not_fill_the_records(world: World) -> None:
    world.receive("checkpoint_watcher", *(b'{"event": "%d"}' % number for number in range(5 * REFUSALS)))
    assert len(world.problems()) == REFUSALS


@pytest.mark.parametrize("name", HELPERS)
def test_every_message_is_understood(world: World, name: str) -> None:
    for line in seeds.LINES[name]:
        world.receive(name, line)
        assert not [what for _, what in world.problems() if "malformed" in what]
    world.receive(name, None)


@pytest.mark.parametrize("name", HELPERS)
def test_what_helpers_say_of_themselves_is_a_problem(world: World, name: str) -> None:
    world.receive(name, b'{"event": "problem", "what": "w"}')
    assert world.problems() == [(name, "w")]


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.client)
def test_an_entry_has_a_client_that_speaks_a_protocol(entry: Entry) -> None:
    client: type[Client[Any]] = load(entry)
    assert client.name == entry.helper
    assert isinstance(client.events, Protocol)
