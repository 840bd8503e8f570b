"""PID 1's side of the helpers: each message is understood, and a malformed one is recorded as one problem."""

import importlib.util
import json
import os
import signal
import subprocess
import time
from types import SimpleNamespace
from typing import Any, Final

import pytest

from ftrun.config.group_config import Group
from ftrun.core.group.messages import GroupOrder, MemberReport
from ftrun.core.machine import events as ev
from ftrun.core.rules.policy import Policy
from ftrun.host.helpers import HelperLine
from ftrun.host.reaper import ChildChange
from ftrun.messages import messenger
from ftrun.messages import probe as probe_messages
from ftrun.messages.codec import Protocol
from ftrun.pid1.clients.base import REFUSALS
from ftrun.pid1.clients.messenger import GroupMessengerClient
from ftrun.pid1.clients.probe import ProbeClient
from ftrun.pid1.clients.registry import TABLE, HelperEntry
from proof.fuzz import kit, messages, seeds
from support.runs import HOUSE

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


class Clients:
    """The clients of all helpers; no helper is started."""

    def __init__(self) -> None:
        self.helpers, self.clients = messages.every_client()

    def receive(self, name: str, *lines: HelperLine) -> list[ev.Event]:
        self.helpers.lines = [(name, line) for line in lines]
        return self.clients.receive(set(), kit.NOW)

    def problems(self) -> list[tuple[object, str]]:
        records = [dict(fields) for name, fields, _ in self.clients.drain_records() if name == "problem"]
        return [(record["helper"], str(record["what"])) for record in records]


@pytest.fixture
def clients() -> Clients:
    return Clients()


@pytest.mark.parametrize("name", HELPERS)
def test_a_malformed_message_is_one_problem_that_names_the_helper(clients: Clients, name: str) -> None:
    for line in MALFORMED:
        assert clients.receive(name, line, line) == []
    assert clients.problems() == [(name, f"malformed message: {what}") for what in dict.fromkeys(MALFORMED.values())]
    assert clients.receive(name, b'{"event": "problem", "what": "w"}') == []
    assert clients.problems() == [(name, "w")]
    ends = b'{"event": "problem", "what": "unexpected error: no thread"}'  # each time that it is started
    assert clients.receive(name, ends, ends) == []
    assert clients.problems() == [(name, "unexpected error: no thread")]


def test_of_a_helper_that_has_ended_nothing_is_kept(clients: Clients) -> None:
    """A helper that dies again and again would let PID 1 grow for as long as the job runs."""
    tree, sizes = clients.clients._tree, set()
    for _ in range(3):
        helper = subprocess.Popen(["sleep", "600"])
        tree.exclude(helper.pid)
        assert helper.pid not in [process.pid for process in tree.members()]
        helper.kill()
        helper.wait()
        clients.clients.child_changed(ChildChange(helper.pid, os.CLD_KILLED, signal.SIGKILL), kit.NOW)
        sizes.add(len(tree._excluded))
    assert len(sizes) == 1


@pytest.mark.parametrize("name", HELPERS)
def test_every_message_is_understood_and_a_field_of_another_type_is_a_problem(clients: Clients, name: str) -> None:
    for line in seeds.LINES[name]:
        clients.receive(name, line)
        assert not [what for _, what in clients.problems() if "malformed" in what]
        found = json.loads(line)
        for field in found.keys() - {"event"}:
            fresh = Clients()
            assert fresh.receive(name, json.dumps(found | {field: {"no": ["such", "thing"]}}).encode()) == []
            ((helper, what),) = fresh.problems()
            assert (helper, f"`{field}`" in what) == (name, True), what
    clients.receive(name, None)


def test_a_helper_that_sends_only_malformed_messages_does_not_fill_the_records(clients: Clients) -> None:
    clients.receive("checkpoint_watcher", *(b'{"event": "%d"}' % number for number in range(5 * REFUSALS)))
    assert len(clients.problems()) == REFUSALS


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.client)
def test_an_entry_names_a_program_and_a_client_with_a_protocol(entry: HelperEntry) -> None:
    client = entry.load()
    assert client.name == entry.helper
    assert isinstance(client.events, Protocol)
    assert importlib.util.find_spec(f"ftrun.helpers.{entry.helper}.program") is not None


def group_messenger() -> GroupMessengerClient:
    group = Group(2, 1, "127.0.0.1:29470", None, 600.0, "job", "options")
    helpers, work_dir = SimpleNamespace(add=lambda *arguments, **more: None), SimpleNamespace(path="/run-dir")
    unset = SimpleNamespace(state_dir=None, log_dir=None)
    context: Any = SimpleNamespace(
        settings=unset,
        policy=Policy(),
        group=group,
        helpers=helpers,
        work_dir=work_dir,
        beat_dir="/beats",
        records=[],
        life="life",
        buried=None,
    )
    return GroupMessengerClient(context)


def test_a_coordinator_whose_lease_ends_stops_its_ranks_also_if_its_messenger_says_nothing() -> None:
    client, began = group_messenger(), time.monotonic()
    client.handle(messenger.Contact(0.0), began)
    client.handle(messenger.Tenure(began + 20.0), began)
    assert client.deadline is not None
    assert client.deadline > began + 20.0  # nothing runs here
    client._sent = MemberReport(0, "life", 1, "node", "boot", 3, "running")
    assert client.deadline == began + 20.0
    assert client.settle(began + 19.0) == []
    (event,) = client.settle(began + 20.5)
    assert isinstance(event, ev.GroupOrderReceived)
    assert (event.order.what, event.order.epoch) == ("stop", 3)
    assert client.settle(began + 21.0) == []
    client.handle(messenger.Tenure(None), began + 22.0)
    assert client.settle(began + 50.0) == []
    client.handle(messenger.Tenure(began + 60.0), began + 50.0)
    assert client.settle(began + 100.0) == []  # it was suspended, and may renew its lease
    client.handle(messenger.Tenure(0.0), began + 100.1)
    assert client.settle(began + 100.1) != []


def test_a_former_coordinator_works_on_by_the_order_of_the_one_that_has_taken_its_lease() -> None:
    """Its ranks had stopped before, so that nothing was left to stop when it heard of that."""
    client, now = group_messenger(), time.monotonic()
    client.handle(messenger.Contact(0.0), now)
    ready = client._sent = MemberReport(0, "life", 1, "node", "boot", 3, "ready")
    client.handle(messenger.Tenure(0.0), now)
    client.handle(messenger.ChangedOrder(GroupOrder(4, "run")), now)
    client._sent = ready._replace(epoch=4, state="running")
    assert client.settle(now) == []
    client.handle(messenger.Tenure(0.0), now)
    client.handle(messenger.ChangedOrder(GroupOrder(4, "run")), now)
    assert [type(event) for event in client.settle(now)] == [ev.GroupOrderReceived]


@pytest.mark.parametrize("answered", [False, True])
def test_a_member_that_was_suspended_for_longer_than_its_lease_has_seconds_to_make_contact(answered: bool) -> None:
    """The whole job may have been suspended, rank 0 included."""
    client, began = group_messenger(), time.monotonic()
    client.handle(messenger.Contact(0.0), began)
    resumed = began + 1000.0
    assert client.settle(resumed) == []
    client.handle(messenger.RankZeroSilent("no reply"), resumed + 5.0)
    if answered:
        client.handle(messenger.Contact(0.0), resumed + 6.0)
        assert client.settle(resumed + 50.0) == []
        return
    until = client.deadline
    assert until is not None
    assert resumed + 5.0 < until < resumed + 15.0
    assert [type(event) for event in client.settle(until)] == [ev.CoordinatorLost]


def test_a_lease_ends_in_time_where_nothing_was_suspended() -> None:
    client, began = group_messenger(), time.monotonic()
    client.handle(messenger.Contact(0.0), began)
    assert [type(event) for event in client.settle(client.deadline or 0.0)] == [ev.CoordinatorSilent]
    assert [type(event) for event in client.settle(client.deadline or 0.0)] == [ev.CoordinatorLost]


@pytest.mark.parametrize("joined", [False, True])
def test_a_final_refusal_ends_only_a_member_that_has_never_joined(joined: bool) -> None:
    """A new rank 0 with another version or secret does not end the members of a running group."""
    client = group_messenger()
    if joined:
        client.handle(messenger.Contact(0.0), time.monotonic())
    events = client.handle(messenger.NodeRefused("it has another secret than this node", True), time.monotonic())
    assert [isinstance(event, ev.CoordinatorLost) for event in events] == ([] if joined else [True])
    assert [record for record, _, _ in client.context.records] == ["problem"]


@pytest.mark.parametrize("number", [0, 1])
def test_devices_are_checked_after_an_attempt_that_ends_before_their_first_report(number: int) -> None:
    """The first check, before the start, has said that there are devices; a report takes a driver seconds at times."""
    sent: list[bytes] = []
    helpers = SimpleNamespace(
        add=lambda *arguments, **more: None, is_running=lambda name: True, send=lambda name, line: sent.append(line)
    )
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(min_devices=None, probe=None, fault_table=None),
        policy=Policy(checks_devices=True, limits=Policy().limits._replace(device_timeout=60.0)),
        helpers=helpers,
        work_dir=SimpleNamespace(path="/run-dir"),
        idle_period=10.0,
        devices=(),
        ledger=None,
        command=77,
    )
    client = ProbeClient(context)
    device = probe_messages.Device("nvidia", "GPU-0", 0, "H100", memory_used=600 << 20, health="ok", visible="GPU-0")
    client.handle(probe_messages.Present((device,) * number), 1.0)
    client.on_spawning()
    at_once = client.release([77], 2.0)
    assert [isinstance(event, ev.DevicesReleased) for event in at_once] == [True] * (1 - number)
    assert [json.loads(line)["used"] for line in sent] == [{"GPU-0": 600 << 20}] * number


def test_each_helper_has_an_entry() -> None:
    """Without one nothing starts it."""
    folder = HOUSE / "supervisor" / "ftrun" / "helpers"
    assert [*HELPERS] == sorted(path.parent.name for path in folder.glob("*/program.py"))
