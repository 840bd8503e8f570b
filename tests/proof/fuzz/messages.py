"""The targets that take what comes over a socket or a pipe: orders, messages of other nodes, lines of helpers."""

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from ftrun.config import group_config, option_values
from ftrun.core.group import waits as group
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job, Running
from ftrun.core.machine.values import Attempt, Ledger
from ftrun.core.ranks import table
from ftrun.helpers.messenger.coordinator_link import CoordinatorLink, sender
from ftrun.helpers.messenger.known_lives import KnownLives
from ftrun.helpers.messenger.member_link import MemberLink
from ftrun.helpers.messenger.operator_channel import OperatorChannel
from ftrun.host.helpers import HelperLine, Helpers
from ftrun.host.output_pipes import OutputPipes, RankOutput
from ftrun.host.tree import Tree
from ftrun.host.work_dir import WorkDir
from ftrun.messages import group_view, group_waits, messenger, operator, peers, ranks, state
from ftrun.messages.codec import Malformed
from ftrun.pid1.clients.base import Context
from ftrun.pid1.clients.registry import TABLE, Clients
from ftrun.pid1.rank_recovery import RankChannel
from proof.fuzz.kit import NOW, Quiet, folder, one_line, pieces, policy


def control_message(content: bytes) -> None:
    for load in (operator.load_request, operator.load_reply):
        try:
            load(content)
        except operator.RequestRefused as error:
            one_line(error, 200)


def channel(content: bytes) -> None:
    """Frames of the control channel, as its messenger takes them."""
    found = _channel()
    found._pending.clear()
    found._receive([b"peer", *pieces(content, content.count(b"\0") % 5 + 1)], time.monotonic())


@cache
def _channel() -> OperatorChannel:
    import zmq

    before = os.getcwd()
    os.chdir(folder("channel"))
    try:
        return OperatorChannel(zmq.Context.instance(), Quiet(messenger.EVENTS))
    finally:
        os.chdir(before)


def peer_message(content: bytes) -> None:
    loads: tuple[Callable[[bytes], object], ...] = (
        peers.load_report,
        peers.load_order,
        peers.load_pulse,
        peers.load_ack,
        peers.load_time,
        lambda found: group_view.load_row(found, 1),
        lambda found: group_view.load(group_view.GroupView, found),
        lambda found: group_view.load(group_view.FileRequest, found),
        lambda found: group_view.load(group_view.FilePart, found),
        group_waits.load_answer,
        lambda found: peers.load_hello(found, "1"),
    )
    for load in loads:
        try:
            found = load(content)
        except Malformed as error:
            one_line(error)
        else:
            assert not isinstance(found, float) or found >= 0
    peers.load_why(content)
    sender(content)


ADDRESS: Final = peers.MemberAddress(4, 0, "127.0.0.1:9", None, 600.0, 10.0, 300.0, "", "life", "node", "boot")


def waits_of_members(content: bytes) -> None:
    """What two members say that their processes wait for, as rank 0 compares it; two waves of the same answers."""
    found = {}
    for number, piece in enumerate(pieces(content, 2)):
        try:
            found[number] = group_waits.load_waits(piece, number, 2)
        except Malformed as error:
            one_line(error)
    waves = group.Waves(next(iter(found.values())).epoch if found else 0)
    for _ in range(2):
        for waits in found.values():
            waves = group.take(waves, waits._replace(wave=group.wave_name(waves, "x")), "x", {})
    for number in found:
        answer = group.answer(waves, "x", number)
        assert group_waits.load_answer(group_waits.dump(answer)).wave == answer.wave
    assert waves.deadlock is None or len(found) == 2


def rank_0(content: bytes) -> None:
    """What a member sends, as rank 0 takes it: hello, report, pulse and time."""
    hub, frames, now = _hub(), pieces(content, 4), time.monotonic()
    hub._peers.clear()
    peer = hub._admit(frames[0])
    hub._receive_report(peer, frames[1:], now)
    hub._pulses_at = 0.0
    if hub._own_report is None:
        json.dumps(hub._coordinator.order._asdict())


@cache
def _hub() -> CoordinatorLink:
    return CoordinatorLink(ADDRESS, str(folder("beats")), Quiet(messenger.EVENTS))


def member(content: bytes) -> None:
    """What rank 0 answers, as a member takes it."""
    _member()._receive(pieces(content, 1 + content.count(b"\0") % 5), time.monotonic())


@cache
def _member() -> MemberLink:
    return MemberLink(ADDRESS._replace(rank=1), str(folder("beats")), Quiet(messenger.EVENTS), KnownLives(True))


class UnstartedHelpers(Helpers):
    """Helpers that are never started; `lines` are their messages."""

    def __init__(self) -> None:
        super().__init__(select.poll(), -1)
        self.lines: list[tuple[str, HelperLine]] = []

    def add(self, name: str, *arguments: str, **more: Any) -> None:
        pass

    def supervise(self, now: float) -> list[int]:
        return []

    def is_running(self, name: str) -> bool:
        return True

    def read_lines(self, ready: set[int], now: float) -> list[tuple[str, HelperLine]]:
        found, self.lines = self.lines, []
        return found


NAMES: Final = tuple(dict.fromkeys(entry.helper for entry in TABLE))


def every_client() -> tuple[UnstartedHelpers, Clients]:
    """Those of all helpers, and what stands for the helpers."""
    helpers = UnstartedHelpers()
    work_dir = WorkDir("/nonexistent", "/nonexistent", ("keep", "/nonexistent", "/nonexistent", "-"))
    options = {"state-dir": "/nonexistent", "probe": "ascend", "reset-file": "/nonexistent"}
    settings = option_values.settings(options, {"FTRUN_PROGRESS": "/nonexistent"})
    tree, group = Tree(b"FTRUN_BEAT_DIR=/nonexistent"), group_config.Group(4, 1, "127.0.0.1:9", None, 600.0, "", "")
    clients = Clients(
        Context(settings, policy(), helpers, tree, work_dir, "/nonexistent", OutputPipes(RankOutput()), group)
    )
    for name in NAMES:
        clients.client(name)
    return helpers, clients


def line_of_a_helper(content: bytes) -> None:
    """One that sends nonsense costs a record and nothing else.  The first byte says which."""
    helpers, clients = every_client()
    helpers.lines = [(NAMES[content[0] % len(NAMES)], content[1:])] * 2 if content else []
    job = Job(Running(Attempt(1, 1, NOW - 5), deadline=NOW + 5), ledger=Ledger(start_cnt=1))
    for event in clients.receive(set(), NOW):
        job, _ = decide(job, event, policy())
        state.load_state(state.dump_state(job.ledger, {}))
    clients.drain_records()


class NoTree(Tree):
    """Every process is one of local rank 0 or 1."""

    def __init__(self) -> None:
        super().__init__(b"FTRUN_BEAT_DIR=/nonexistent")

    def is_below(self, pid: int, local_rank: int) -> bool:
        return local_rank in (0, 1)


def rank_packets(content: bytes) -> None:
    """What a rank sends over the control socket, as PID 1 takes it: packets, cut at zero bytes, between the hello of
    this rank and that of another one."""
    path = folder("ranks") / "ranks.sock"
    poll = select.poll()
    channel = RankChannel(str(path), poll, NoTree())
    peers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    try:
        for local_rank, peer in enumerate(peers):
            peer.connect(str(path))
            packets = [b""] if local_rank else pieces(content, content.count(b"\0") % 5 + 1)
            for packet in (ranks.FROM_RANK.dump(table.SaidHello(local_rank)), *packets):
                with contextlib.suppress(OSError):  # too large for a packet
                    peer.send(packet, socket.MSG_DONTWAIT)
        members = tuple(table.RankMember(number, number) for number in range(2))
        held = Job(Running(Attempt(1, 1, NOW - 5, rounds=table.Rounds(members)), deadline=NOW + 5))
        for report in channel.receive(None):
            held, effects = decide(held, ev.RankReported(NOW, report), policy())
            for effect in effects:
                if isinstance(effect, do.FenceRank | do.BeginRound | do.ReleaseSnapshot):
                    channel.send(effect)
        for problem in channel.problems:
            one_line(ValueError(problem), 1000)
    finally:
        for peer in peers:
            peer.close()
        channel.close()


def clean() -> None:
    """What has sockets is closed."""
    for made in (_hub, _member):
        if made.cache_info().currsize:
            made().close(False)
        made.cache_clear()
    if _channel.cache_info().currsize and (found := _channel().socket) is not None:
        found.close()
    _channel.cache_clear()
