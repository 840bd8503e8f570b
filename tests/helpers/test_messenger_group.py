"""The messengers of a group as real processes on loopback, with CURVE; the test acts as their PID 1s."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from ftrun import __version__
from ftrun.core.group.messages import GroupEnd, GroupOrder, MemberReport, NodeFailure, ReportedState, Starter
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.messenger import connections, transport
from ftrun.messages import messenger, peers
from ftrun.messages.codec import EXACT
from support.beat_file import BeatDir
from support.helper_process import DEADLINE, HelperProcess
from support.ports import free_port
from support.runs import wait_for
from support.short import quick

FAST = "import ftrun.messages.peers as p, ftrun.helpers.messenger.transport as t; p.PERIOD = t.RETRY = 0.1"
SILENCE = 15.0  # s; of another member that counts as its loss
OLDER = "import ftrun; ftrun.__version__ = '0.0.1'"


class Node(HelperProcess):
    """A messenger, with the methods by which the test acts as its PID 1."""

    def __init__(self, beats: Path, before: str, address: peers.MemberAddress, prefix: Sequence[str] = ()) -> None:
        self.address, self.seq, self.ran = address, 0, 0
        run_dir = beats.parent / f"run{address.rank}-{address.life}"
        run_dir.mkdir(exist_ok=True)
        (run_dir / "events.jsonl").touch()
        super().__init__(
            "messenger", str(run_dir), str(beats), json.dumps(address._asdict()), before=before, prefix=prefix
        )

    def report(self, state: ReportedState, epoch: int = 0, **more: Any) -> None:
        self.seq += 1
        address, self.ran = self.address, max(self.ran, epoch) if state == "running" else self.ran
        more.setdefault("ran", self.ran)
        report = MemberReport(address.rank, address.life, self.seq, address.node, address.boot, epoch, state, **more)
        self.ask(ask="changed_report", report=EXACT.plain(report))

    def ordered(self, what: str, epoch: int | None = None) -> GroupOrder:
        line = self.event("changed_order", lambda found: found["order"]["what"] == what
                          and epoch in (None, found["order"]["epoch"]))  # fmt: skip
        return EXACT.value(GroupOrder, line["order"])

    def problem(self, what: str) -> str:
        """The problem that contains this text."""
        return str(self.event("problem", lambda line: what in line["what"])["what"])

    def contact(self) -> None:
        """Wait for a new contact with rank 0."""
        self.read(0.0)
        self._unseen = len(self.lines)
        self.event("contact")


class Group:
    def __init__(self, folder: Path, size: int, stack: contextlib.ExitStack) -> None:
        self.folder, self.size, self.stack = folder, size, stack
        self.secret = folder / "secret"
        self.secret.write_text("a secret of more than sixteen bytes\n")
        self.port = free_port()

    def node(self, rank: int, before: str = "", prefix: Sequence[str] = (), **more: Any) -> Node:
        fields: dict[str, Any] = {
            "size": self.size, "rank": rank, "endpoint": f"127.0.0.1:{self.port}", "secret": str(self.secret),
            "wait": 60.0, "drain": 1.0, "heal": 1.0, "job": "job", "life": f"life{rank}", "node": f"node{rank}",
            "boot": "boot", "silence": SILENCE,
        }  # fmt: skip
        beats = self.folder / f"beats{rank}"
        return self.stack.enter_context(Node(beats, f"{FAST}\n{before}", peers.MemberAddress(**fields | more), prefix))

    def nodes(self, before: str = "", **more: Any) -> list[Node]:
        return [self.node(rank, before, **more) for rank in range(self.size)]

    def running(self, before: str = "", **more: Any) -> list[Node]:
        nodes = self.nodes(before, **more)
        start(nodes)
        return nodes

    def stranger(self, secret: Path | None = None) -> "zmq.Socket[bytes]":
        """A client that knows the secret, but is no messenger."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.stack.callback(context.destroy, linger=0)
        client = context.socket(zmq.DEALER)
        address = peers.MemberAddress(2, 1, "", str(secret or self.secret), 1.0, 1.0, 1.0, "", "", "", "")
        transport.secure(client, address, False)
        client.connect(f"tcp://127.0.0.1:{self.port}")
        return client


def start(nodes: list[Node]) -> None:
    for node in nodes:
        node.report("ready")
    for node in reversed(nodes):  # member 0 starts last
        assert node.ordered("run").epoch == 1
        node.report("running", 1)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], Group]]:
    with contextlib.ExitStack() as stack:
        yield lambda size: Group(tmp_path, size, stack)


def test_all_start_together_and_stop_together(make: Callable[[int], Group]) -> None:
    group = make(3)
    nodes = [group.node(2), group.node(1)]
    for node in nodes:
        node.report("ready")
        node.read(0.5)
        assert not node.lines, "member 0 has not joined"
    nodes = [group.node(0), *reversed(nodes)]
    start(nodes)
    nodes[2].report(
        "ending", 1, failure=NodeFailure("failure", "it ended with 1"), end=GroupEnd(1, "command-failed", "so")
    )
    for node in nodes[:2]:
        order = node.ordered("stop", 1)
        assert (order.node, "it ended with 1" in order.why) == ("node2", True)
        node.report("ready", 1)
    for node in nodes:
        order = node.ordered("end")
        assert order.end is not None
        assert (order.end.code, order.end.node) == (1, "node2")


def test_the_rank_that_stopped_first_is_found_across_all_nodes(make: Callable[[int], Group]) -> None:
    group = make(3)
    for rank, step in ((0, 9), (1, 9), (2, 5)):
        with contextlib.closing(BeatDir(group.folder / f"beats{rank}")) as beats:
            beats.run(f"import os; ft.beat({step}); os._exit(0)", RANK=str(rank)).check_returncode()
    nodes = group.running()
    for node in nodes[1:]:
        for _ in range(2):  # a heartbeat with a pulse of this epoch
            node.contact()
    nodes[1].report("stopping", 1, failure=NodeFailure("hang", "rank 1 is silent", rank=1, step=9))
    for node in (nodes[0], nodes[2]):
        node.ordered("stop")
        node.report("ready", 1)
    nodes[1].report("ready", 1, failure=NodeFailure("hang", "rank 1 is silent", rank=1, step=9))
    order = nodes[1].ordered("run", 2)
    assert (order.cause, order.node, order.rank, order.step) == ("hang", "node2", 2, 5)


def test_a_killed_member_is_detected_at_once_and_may_rejoin(make: Callable[[int], Group]) -> None:
    group = make(3)
    nodes = group.running()
    nodes[1].process.kill()
    order = nodes[2].ordered("stop", 1)
    assert "member 1 (node1) is lost: its connection was closed" in order.why
    lost = nodes[0].event("node_lost")
    assert (lost["rank"], lost["node"], lost["why"]) == (1, "node1", order.why)
    assert (lost["wait"]["members"], lost["wait"]["then"], lost["wait"]["code"]) == ([1], "end", 195)
    for node in (nodes[0], nodes[2]):
        node.report("ready", 1)
    back = group.node(1, life="another")
    back.report("ready")
    back.ordered("stop")
    back.report("ready", 1)
    for node in (nodes[2], back, nodes[0]):
        assert node.ordered("run").epoch == 2
        node.report("running", 2)


def asked(life: socket.socket, times: int) -> None:
    """Wait for so many questions of rank 0."""
    for _ in range(times):
        life.accept()[0].close()


def asked_from_now_on(life: socket.socket, times: int) -> None:
    life.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            life.accept()[0].close()
    life.settimeout(DEADLINE)
    asked(life, times)


# Until the signal a short stop counts as a suspension, and afterwards none does, as a busy machine makes stops, too.
# `known` in the run dir shows that the member knows who is at work.
OBSERVED = """
import signal, sys
import ftrun.helpers.messenger.known_lives as k
t.LATE = 0.5
def patient(*_):
    for name in ("member_link", "coordinator_link", "group_link"):
        if (found := sys.modules.get("ftrun.helpers.messenger." + name)) is not None:
            found.LATE = 600.0
signal.signal(signal.SIGUSR1, patient)
def ordered(self, *what, before=k.KnownLives.ordered):
    before(self, *what)
    if self._known[1]:
        open("known", "w").close()
k.KnownLives.ordered = ordered
"""


@pytest.mark.parametrize("how", quick(["", "told", "suspended"]))
def test_members_that_are_lost_together_with_member_0_start_when_their_ports_are_closed(
    make: Callable[[int], Group], how: str
) -> None:
    """`told`: the one that is left may have told the lost member 0 that it has stopped: another epoch may run.
    `suspended`: it was, before."""
    group = make(3)

    def starts_nothing(contacts: int) -> bool:
        for _ in range(contacts):
            nodes[2].contact()
        orders = [line["order"] for line in nodes[2].lines if line["event"] == "changed_order"]
        return all(order["epoch"] <= 1 for order in orders)

    with contextlib.ExitStack() as stack:
        signs = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [sign.getsockname()[1] for sign in signs]
        nodes = [group.node(rank, OBSERVED, port=port, contained=True) for rank, port in enumerate([*ports, 0])]
        start(nodes)
        for node in nodes[: 3 if how != "suspended" else 2]:
            os.kill(node.process.pid, signal.SIGUSR1)
        found = nodes[2].event("changed_order", lambda line: line["order"]["starter"]["port"])["order"]["starter"]
        starter = {"starter": Starter(**found)}
        nodes[2].report("running", 1, **starter)
        known = group.folder / "run2-life2" / "known"
        wait_for(known.exists, "that rank 0 has told who is at work")
        if how == "suspended":
            os.kill(nodes[2].process.pid, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(nodes[2].process.pid, signal.SIGCONT)
            nodes[2].contact()
            os.kill(nodes[2].process.pid, signal.SIGUSR1)
            nodes[2].contact()
            nodes[2].contact()  # after the answer to a message that it sent then
            known.unlink()
            wait_for(known.exists, "that rank 0 has told it again")
        if how == "told":
            nodes[2].report("ready", 1, **starter)
            nodes[1].ordered("stop", 1)
        nodes[1].process.kill()
        nodes[0].process.kill()
        wait_for(lambda: nodes[0].process.poll() is not None, "the end of member 0")
        nodes[2].report("ready", 1, **starter)
        again = [group.node(rank, life=f"again{rank}", boot="another") for rank in range(2)]
        for node in again:
            node.report("ready")
            node.ordered("stop", 1)
            node.report("ready", 1)
        assert starts_nothing(1)
        signs[1].close()
        asked_from_now_on(signs[0], 2)
        assert starts_nothing(1), "the earlier member 0 may live"
    if how == "told":
        assert starts_nothing(2)
    else:
        assert nodes[2].ordered("run", 2).starter.life == "again0"  # type: ignore[union-attr]


def test_a_spare_replaces_at_once_a_container_whose_messenger_says_that_its_ftrun_has_died(
    make: Callable[[int], Group],
) -> None:
    nodes = make(3).nodes(spares=1, contained=True)
    for node in nodes:
        node.report("ready")
    for node in reversed(nodes):  # member 0 starts last
        node.ordered("run", 1)
        node.report("ready" if node is nodes[2] else "running", 1)
    assert nodes[1].end() == 0
    assert "member 1 (node1) is lost: its ftrun has died" in nodes[0].ordered("stop", 1).why
    nodes[0].report("ready", 1)
    assert nodes[2].ordered("run", 2).places == ((0, 1), (2, 1))
    nodes[2].report("running", 2)
    assert nodes[0].ordered("run", 2).places == ((0, 1), (2, 1))


@pytest.fixture
def life() -> Iterator[socket.socket]:
    """The port that shows that the PID 1s live, which the test stands for (host.ports.LifeSign)."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as made:
        made.settimeout(DEADLINE)
        yield made


def test_a_new_messenger_of_a_member_or_of_rank_0_disturbs_nobody(
    make: Callable[[int], Group], life: socket.socket
) -> None:
    """Also on a crowded machine, where its start takes longer than a member may be away that shows no life."""
    crowded = "import ftrun.helpers.messenger.coordinator_link as h; h.RECONNECT, h.RESTARTING = 0.2, 60.0"
    group, fields = make(3), {"port": life.getsockname()[1], "silence": DEADLINE}
    nodes = group.running(crowded, **fields)
    asked(life, 2)
    for rank in (1, 0):  # a new rank 0 recovers its state from the members
        nodes[rank].process.kill()
        if rank:
            asked(life, 10)  # for about a second
        again = group.node(rank, crowded, **fields)
        again.seq = nodes[rank].seq - 1
        again.report("running", 1)
        assert again.ordered("run").epoch == 1
        nodes[rank] = again
        for node in nodes:
            node.contact()
            assert not [line for line in node.lines if line["event"] == "rank_zero_silent"]
            assert not [line for line in node.lines if line.get("order", {}).get("what") == "stop"]


def test_a_member_that_lives_without_a_messenger_is_lost_in_the_end(
    make: Callable[[int], Group], life: socket.socket
) -> None:
    brief = "import ftrun.helpers.messenger.coordinator_link as h; h.RECONNECT, h.RESTARTING = 0.2, 1.0"
    nodes = make(2).running(brief, port=life.getsockname()[1])
    asked(life, 1)
    nodes[1].process.kill()
    asked(life, 3)
    assert "member 1 (node1) is lost: its connection was closed" in nodes[0].ordered("stop", 1).why


def test_a_frozen_rank_0_is_lost_to_its_members_and_reports_no_member_as_lost(make: Callable[[int], Group]) -> None:
    nodes = make(2).running(silence=3.0)
    nodes[1].contact()
    nodes[0].process.send_signal(signal.SIGSTOP)
    assert "there was no reply from rank 0 (127.0.0.1:" in nodes[1].event("rank_zero_silent")["why"]
    nodes[0].process.send_signal(signal.SIGCONT)
    nodes[1].contact()
    nodes[0].contact()
    events = [line["event"] for line in nodes[1].lines]
    silent = events.index("rank_zero_silent") + 1
    assert "rank_zero_silent" not in events[silent : events.index("contact", silent)]
    assert not nodes[0].problems


def test_a_member_that_never_reaches_rank_0_is_cut_off_after_a_timeout(make: Callable[[int], Group]) -> None:
    group = make(2)
    for endpoint in (f"127.0.0.1:{group.port}", "rank0.nowhere.invalid:29470"):  # a name may resolve later
        node = group.node(1, endpoint=endpoint, wait=1.0)
        node.report("ready")
        assert node.event("rank_zero_silent")["why"] == f"rank 0 ({endpoint}) was not reached within 1s"
        assert not node.problems


OWN_HOSTS = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']


def test_rank_0_may_join_late_and_return_at_another_address(make: Callable[[int], Group]) -> None:
    """Its machine disappears without closing the connection, which stays open."""
    group = make(2)
    hosts = group.folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    if subprocess.run([*OWN_HOSTS, hosts, "true"], capture_output=True).returncode:
        pytest.skip("no right to have an own /etc/hosts")
    hurry = "import ftrun.helpers.messenger.member_link as m; m.REPLY_TIMEOUT = 2.0"
    member = group.node(1, hurry, [*OWN_HOSTS, str(hosts)], endpoint=f"rank0.test:{group.port}")
    member.report("ready")
    first = group.node(0)
    first.report("ready")
    member.read(0.5)
    assert not member.lines
    hosts.write_text("127.0.0.1 localhost rank0.test\n")
    assert member.ordered("run").epoch == 1
    member.report("running", 1)
    member.contact()
    first.process.send_signal(signal.SIGSTOP)
    second = group.node(0, endpoint=f"127.0.0.2:{group.port}", life="second")
    hosts.write_text("127.0.0.1 localhost\n127.0.0.2 rank0.test\n")
    second.report("ready")
    assert second.ordered("stop").epoch == 1
    member.ordered("stop")
    assert not member.problems


def test_a_member_without_a_secret_is_told_that_the_group_has_one(make: Callable[[int], Group]) -> None:
    group = make(2)
    group.node(0).report("ready")
    without = group.node(1, secret=None)
    without.report("ready")
    assert "has a secret, and this node has none" in without.problem("rank 0")


def test_a_member_that_can_never_join_is_refused_finally_unless_the_group_lacks_one(
    make: Callable[[int], Group],
) -> None:
    """Where the group gives up, all nodes are scheduled again, perhaps with one version.  Nobody is disturbed."""
    group, number = make(2), itertools.count()

    def refused(before: str = OLDER, size: int = 2) -> object:
        node = group.node(1, before, life=f"refused{next(number)}", size=size)
        node.report("ready")
        return node.event("node_refused")["final"]

    nodes = [group.node(0)]
    nodes[0].report("ready")
    assert (refused("", 5), refused()) == (True, True)
    nodes.append(group.node(1))
    start(nodes)
    assert (refused("", 5), refused()) == (True, True)
    for node in nodes:
        node.contact()
        assert not [line for line in node.lines if line.get("order", {}).get("what") in ("stop", "end")]
    nodes[1].process.kill()
    nodes[0].ordered("stop", 1)
    assert refused() is False, "it lacks a member"


@pytest.mark.parametrize("mended", quick([False, True]))
def test_a_group_that_does_not_form_names_the_node_whose_options_do_not_fit(
    make: Callable[[int], Group], mended: bool
) -> None:
    """`mended`: it has come again with those of the others, and only member 2 is missing."""
    group = make(3)
    zero = group.node(0, wait=15.0)
    zero.report("ready")
    misfit = group.node(1, life="other", size=5)
    misfit.report("ready")
    zero.problem("member 1 (node1) was refused")
    misfit.process.kill()  # it has ended with 2
    if mended:
        group.node(1).report("ready")
    why = "it is in a group of 5, and rank 0 in one of 3"
    assert (f"; member 1 (node1) was refused: {why}" in zero.ordered("end").why) is not mended


def test_a_group_that_ends_refuses_no_node_finally(make: Callable[[int], Group]) -> None:
    """It may belong to an earlier schedule, and the refused node to the next."""
    group = make(2)
    nodes = group.running()
    nodes[0].report("leaving", 1)
    refused_node = group.node(1, life="other", size=5)
    refused_node.report("ready")
    assert refused_node.event("node_refused")["final"] is False


HURRY = "import ftrun.helpers.messenger.handshakes as g; g.CERTAIN = 0.5"


@pytest.mark.parametrize("other", [True, False])
def test_a_wrong_secret_is_final_once_rank_0_has_refused_every_handshake_for_long(
    make: Callable[[int], Group], other: bool
) -> None:
    """Likewise a node with a secret if rank 0 has none.  Members with the right secret are not disturbed."""
    group = make(2)
    known = str(group.secret) if other else None
    zero = group.node(0, secret=known)
    zero.report("ready")
    wrong = group.folder / "wrong"
    wrong.write_text("not the secret that the others have")
    refused_node = group.node(1, HURRY, life="other", secret=str(wrong))
    refused_node.report("ready")
    refused = refused_node.event("node_refused")
    assert refused["final"] is True
    what = f"has a different secret from this node, or another server listens there: {wrong}"
    what = what if other else "has no secret, and this node has one"
    assert refused["why"].startswith(f"it {what} (it has refused")
    assert any(what in problem for problem in refused_node.problems)
    if other:  # the connection may be closed before its address is read
        zero.problem(" was refused: it has a different secret from this group")
    refused_node.report("left", end=GroupEnd(2, "usage", "it does not fit", cut=True))
    refused_node.event("leave_confirmed")  # no other member has to confirm it
    nodes = [zero, group.node(1, secret=known)]
    nodes[1].report("ready")
    start(nodes)


def test_a_secret_that_is_replaced_before_joining_is_used(make: Callable[[int], Group]) -> None:
    group = make(2)
    zero = group.node(0)
    zero.report("ready")
    mine = group.folder / "mine"
    mine.write_text("not the secret that the others have")
    late = group.node(1, secret=str(mine))
    late.report("ready")
    late.problem("has a different secret from this node")
    mine.with_suffix(".new").write_bytes(group.secret.read_bytes())
    mine.with_suffix(".new").rename(mine)  # as platforms replace it
    assert late.ordered("run").epoch == 1
    assert not [line for line in late.lines if line["event"] == "node_refused"]


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)


def test_a_lost_handshake_is_not_taken_for_a_wrong_secret(make: Callable[[int], Group]) -> None:
    """The listener sends the greeting of rank 0 and nothing more; then it closes each connection without a greeting."""
    group = make(2)
    held: list[socket.socket] = []
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", group.port))
        listener.listen()
        listener.settimeout(DEADLINE)
        member = group.node(1, f"{HURRY}; import ftrun.helpers.messenger.member_link as m; m.HANDSHAKE = 200")
        member.report("ready")
        while not member.problems:
            held.append(listener.accept()[0])
            held[-1].sendall(GREETING)
            member.read(0.0)
        assert member.problems == [f"rank 0 at 127.0.0.1:{group.port} accepts connections, but does not reply"]
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            listener.accept()[0].close()
    for one in held:
        one.close()
    member.read(0.0)
    assert not [line for line in member.lines if line["event"] == "node_refused"]


STEPPING = """
import itertools, time
for step in itertools.count(1):
    ft.beat(step)
    time.sleep(0.02)
"""


def test_a_frozen_member_is_lost_once_training_stops_and_learns_that(make: Callable[[int], Group]) -> None:
    """Only this network may have failed.  Once training stops as well, the member counts as lost."""
    group = make(2)
    silence = 3.0
    nodes = group.running(silence=silence)
    nodes[1].contact()
    with contextlib.closing(BeatDir(group.folder / "beats0")) as beats, beats.start(STEPPING, RANK="0") as command:
        try:
            wait_for(lambda: beats.slot()["step"] > 0, "its first step")
            nodes[1].process.send_signal(signal.SIGSTOP)
            time.sleep(silence + 1.5)  # no event shows that nothing happens
            nodes[0].read(0.0)
            assert not [line for line in nodes[0].lines if line.get("order", {}).get("what") == "stop"]
        finally:
            command.kill()
        assert "no message arrived from it for" in nodes[0].ordered("stop", 1).why
    nodes[1].process.send_signal(signal.SIGCONT)
    assert nodes[1].ordered("stop").epoch == 1, "it learns that it was lost"


def test_garbage_and_floods_do_not_disturb_the_group(make: Callable[[int], Group]) -> None:
    group = make(2)
    nodes = group.running()
    raw = [socket.create_connection(("127.0.0.1", group.port)) for _ in range(9)]
    for number, one in enumerate(raw):
        one.sendall([b"\xff\0\0\0\0\0\0\0\1\x7f", b"\xff" * 10 + b"\3" + bytes(53) + b"\4\x26" * 50, b"GET /" * 99,
                     b""][number % 4])  # fmt: skip
    client = group.stranger()
    for frames in (
        [b""],
        [b"{"] * 4,
        [b"[1]", b"", b"", b""],
        [b"\xff" * 9000] * 4,
        [b"x"] * 99,
        [b"", b"", b"", b"9" * 99],
    ):
        client.send_multipart(frames)
        assert client.poll(int(DEADLINE * 1000)), frames
        assert client.recv_multipart()[0] == peers.REFUSED
    client.send(b"x" * (peers.LIMIT + 1))  # over the limit, so the connection is closed
    hello = peers.dump(peers.MemberHello(__version__, "job", 2, 1, "life1", "node1"))
    flood = group.stranger()
    flood.sndhwm = 0
    for _ in range(10_000):
        flood.send_multipart([hello, b"{", b"{", b"1"])
    for node in nodes:
        node.contact()
        node.contact()
    for one in raw:
        one.close()
    assert not [line for node in nodes for line in node.lines if line["event"] in ("rank_zero_silent", "node_refused")]
    assert all(node.process.poll() is None for node in nodes)
    assert len(nodes[0].problems) < 10


def test_an_invalid_secret_is_reported_in_one_line_and_retried(make: Callable[[int], Group]) -> None:
    group = make(2)
    good = group.secret.read_bytes()
    group.secret.write_bytes(b"short")
    nodes = group.nodes()
    for node in nodes:
        assert "it has 5 bytes; a secret has 16 to 65,536" in node.problem("--group-secret-file")
        node.read(0.3)
    (group.folder / "good").write_bytes(good)
    (group.folder / "good").rename(group.secret)  # atomically
    start(nodes)
    assert [len(node.problems) for node in nodes] == [1, 1]


def test_a_group_without_a_secret_stays_within_this_machine(make: Callable[[int], Group]) -> None:
    group = make(2)
    for rank in (0, 1):
        node = group.node(rank, secret=None, endpoint=f"0.0.0.0:{group.port}", life="far")
        assert "without a secret" in node.problem("loopback")
    start([group.node(rank, secret=None, endpoint=f"localhost:{group.port}") for rank in (0, 1)])


def test_a_port_in_use_is_reported_once_and_retried(make: Callable[[int], Group]) -> None:
    group = make(2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", group.port))
        other.listen()
        nodes = group.nodes()
        problem = nodes[0].problem("no node can join")
        assert "Address already in use" in problem
        assert problem.endswith("another process listens there, perhaps a second ftrun of member 0")
        nodes[0].read(0.5)  # it tries again meanwhile
    start(nodes)
    assert len(nodes[0].problems) == 1


def test_the_last_report_of_a_member_is_received(make: Callable[[int], Group]) -> None:
    nodes = make(2).running()
    end = GroupEnd(0, "succeeded", "", asked=False)
    for node in nodes:
        node.report("done", 1, end=end)
    for node in nodes:
        assert node.ordered("end").end == GroupEnd(0, "succeeded", "all members have succeeded")
    nodes[0].report("left", 1, end=end)
    nodes[0].contact()
    assert not [line for line in nodes[0].lines if line["event"] == "leave_confirmed"], "it has to wait for the others"
    nodes[1].report("left", 1, end=end)
    nodes[1].event("leave_confirmed")
    assert nodes[1].end() == 0
    nodes[0].event("leave_confirmed")
    assert nodes[0].end() == 0
    assert not nodes[1].problems


def succeed(nodes: list[Node], **more: Any) -> GroupEnd:
    """End the group with the success of all commands."""
    end = GroupEnd(0, "succeeded", "", asked=False)
    for node in nodes:
        node.report("done", 1, end=end, **more)
    for node in nodes:
        node.ordered("end")
    return end


def test_a_new_messenger_of_rank_0_waits_for_a_spare_that_has_not_reconnected_when_all_have_succeeded(
    make: Callable[[int], Group],
) -> None:
    """A spare that does not hear of the end ends with 195, although the job has succeeded."""
    group = make(3)
    nodes = group.nodes(spares=1)
    for node in nodes:
        node.report("ready")
    places = {"places": nodes[2].ordered("run", 1).places}
    nodes[2].report("ready", 1, **places)
    for node in (nodes[1], nodes[0]):  # member 0 starts last
        node.ordered("run", 1)
        node.report("running", 1, **places)
    nodes[2].process.send_signal(signal.SIGSTOP)
    nodes[0].process.kill()
    patient = "import ftrun.helpers.messenger.coordinator_link as h; h.LEAVING = h.RECONNECT = 60.0; h.FLUSH = 0.0"
    again = group.node(0, patient, spares=1)
    again.seq = nodes[0].seq
    end = succeed([again, nodes[1]], **places)
    for node in (again, nodes[1]):
        node.report("left", 1, end=end, **places)
    nodes[1].event("leave_confirmed")
    again.contact()
    again.contact()
    assert not [line for line in again.lines if line["event"] == "leave_confirmed"], (
        "the spare does not know of the end"
    )
    nodes[2].process.send_signal(signal.SIGCONT)
    assert nodes[2].ordered("end").end == GroupEnd(0, "succeeded", "all members have succeeded")
    nodes[2].report("left", 1, end=end, **places)
    again.event("leave_confirmed")


def test_rank_0_does_not_wait_forever_for_the_members(make: Callable[[int], Group]) -> None:
    nodes = make(2).running("import ftrun.helpers.messenger.coordinator_link as h; h.LEAVING = 1.0")
    nodes[0].report("left", 1, end=GroupEnd(143, "stopped", "", asked=True))
    nodes[0].event("leave_confirmed")
    assert nodes[1].ordered("end").end is not None


def test_a_messenger_that_has_sent_left_may_be_killed_at_once(make: Callable[[int], Group]) -> None:
    nodes = make(4).running("import ftrun.helpers.messenger.member_link as m; m.LEAVING = 50.0")
    end = succeed(nodes)
    for node in nodes:
        node.report("left", 1, end=end)
    nodes[0].event("leave_confirmed")
    nodes[0].process.kill()
    for node in nodes[1:]:
        node.event("leave_confirmed")


def test_no_member_waits_for_a_frozen_rank_0_once_the_group_has_ended(make: Callable[[int], Group]) -> None:
    nodes = make(2).running("import ftrun.helpers.messenger.member_link as m; m.LEAVING = 1.0")
    end = succeed(nodes)
    nodes[0].process.send_signal(signal.SIGSTOP)
    nodes[1].report("left", 1, end=end)
    nodes[1].event("leave_confirmed")
    assert [line["event"] for line in nodes[1].lines].count("leave_confirmed") == 1
    assert not nodes[1].problems


def test_a_rank_0_with_earlier_contact_is_not_suspected_of_a_wrong_secret(make: Callable[[int], Group]) -> None:
    """A proxy in front of it accepts every connection, and closes it."""
    group = make(2)
    nodes = group.running()
    nodes[0].process.kill()
    nodes[0].process.wait()
    with socket.socket() as proxy:
        proxy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        proxy.bind(("127.0.0.1", group.port))
        proxy.listen()
        for _ in range(6):
            proxy.accept()[0].close()
    nodes[1].read(0.2)
    assert not nodes[1].problems


def limits(node: Node, name: str) -> list[str]:
    lines = Path(f"/proc/{node.process.pid}/limits").read_text().splitlines()
    return next(line.split()[-3:-1] for line in lines if line.startswith(name))


def test_limits_grow_with_the_group_and_a_shortfall_is_named(make: Callable[[int], Group]) -> None:
    group = make(300)
    before = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1000))"
    node = group.node(0, before)
    node.report("ready")
    node.contact()
    assert limits(node, "Max open files") == ["728", "1000"]
    assert limits(node, "Max data size")[0] == str((96 << 20) + 300 * (160 << 10))
    assert not node.problems
    node.process.kill()
    short = group.node(0, before.replace("1000", "200"))
    assert "needs 364 open files for a group of 300, but its limit is 200" in short.problem("open files")
    assert limits(short, "Max open files")[0] == "200"


FEW = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 80))"


def test_strangers_cannot_keep_members_out(make: Callable[[int], Group]) -> None:
    """Rank 0 keeps descriptors for itself, does not spin, and closes no connection of a member."""
    group = make(2)
    nodes = [group.node(0, FEW)]
    nodes[0].report("ready")
    nodes[0].contact()
    raw = [socket.create_connection(("127.0.0.1", group.port)) for _ in range(200)]
    assert "are in use" in nodes[0].problem("connections")
    nodes.append(group.node(1))
    start(nodes)
    for _ in range(3):
        raw += [socket.create_connection(("127.0.0.1", group.port)) for _ in range(100)]
        for node in nodes:
            node.contact()
    again = group.node(1, life="again")
    again.report("ready")
    assert "is there already" in again.event("node_refused")["why"]
    assert not [
        line for node in nodes for line in node.lines if line["event"] == "rank_zero_silent" or "lost" in str(line)
    ]
    spent = used(nodes[0])
    nodes[0].read(0.5)
    assert used(nodes[0]) - spent < 0.25
    for one in raw:
        one.close()


def used(node: Node) -> float:
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_only_the_intended_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor may belong to another connection by then."""
    with contextlib.ExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.destroy, linger=0)
        monkeypatch.setattr(connections, "connection_limit", lambda size, lines: 1)
        ours = connections.MemberConnections(context.socket(zmq.ROUTER), 2, ProtocolLines(messenger.EVENTS))
        monkeypatch.setattr(ours, "_lines", SimpleNamespace(problem=lambda what: None))
        pairs = [socket.socketpair() for _ in range(3)]
        for pair in pairs:
            stack.enter_context(pair[0])
            stack.enter_context(pair[1])
        inodes = [os.fstat(pair[0].fileno()).st_ino for pair in pairs]
        member, stranger, reused = (pair[0].fileno() for pair in pairs)
        ours.open = {
            member: connections.Connection("a", inodes[0]),
            reused: connections.Connection("b", inodes[1]),  # a new connection has its descriptor
            stranger: connections.Connection("c", inodes[1]),
        }
        for _ in range(2):
            ours.make_room({member})
        pairs[1][1].settimeout(DEADLINE)
        assert pairs[1][1].recv(1) == b""
        for pair in (pairs[0], pairs[2]):
            pair[0].send(b"x")
            assert pair[1].recv(1) == b"x"
        os.close(ours._pin)
