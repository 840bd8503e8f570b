"""The control socket of the ranks: what arrives malformed, or from a process that is no rank, changes nothing."""

import errno
import json
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

from ftrun.core.machine.effects import BeginRound, FenceRank
from ftrun.core.machine.values import Ledger
from ftrun.core.ranks.table import (
    AskedRetry,
    FunctionFinished,
    HeldSnapshot,
    LeftRound,
    RankReport,
    SaidHello,
    SnapshotRestored,
)
from ftrun.host.tree import Tree
from ftrun.messages.ranks import LARGEST
from ftrun.pid1.exit_cause import RankProcesses
from ftrun.pid1.rank_launching import RankLauncher
from ftrun.pid1.rank_recovery import RankChannel, RankRecovery

HELLO = {"type": "said_hello", "local_rank": 1, "held": [{"step": 3, "shard": "a"}]}
FINISHED = {"type": "function_finished", "local_rank": 1, "round": 1}


class Family(Tree):
    """A tree in which this process is local rank 1."""

    def __init__(self) -> None:
        super().__init__(b"FTRUN_BEAT_DIR=/nowhere")

    def is_below(self, pid: int, local_rank: int) -> bool:
        return local_rank == 1


class Channel:
    def __init__(self, path: str) -> None:
        self.poll = select.poll()
        self.path, self.channel = path, RankChannel(path, self.poll, Family())

    def connect(self, *packets: object) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(60)
        peer.connect(self.path)
        for packet in packets:
            peer.send(packet if isinstance(packet, bytes) else json.dumps(packet).encode())
        return peer

    def receive(self) -> list[RankReport]:
        """All reports, until nothing is readable any more."""
        found: list[RankReport] = []
        while ready := {fd for fd, _ in self.poll.poll(0)}:
            found += self.channel.receive(ready)
        return found


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    made = Channel(str(tmp_path / "ranks.sock"))
    yield made
    made.channel.close()
    assert not (tmp_path / "ranks.sock").exists()


def test_each_message_is_a_report_of_its_rank(channel: Channel) -> None:
    retry = {"type": "asked_retry", "local_rank": 1, "round": 1, "why": "w", "collective": True}
    left = {"type": "left_round", "local_rank": 1, "round": 1, "held": [{"step": 5}, {"step": -1}], "problem": None}
    restored = {"type": "snapshot_restored", "local_rank": 1, "round": 2}
    with channel.connect(HELLO, retry, left, restored, {**FINISHED, "round": 2}):
        assert channel.receive() == [
            SaidHello(1, (HeldSnapshot(3, "a"),)),
            AskedRetry(1, 1, "w", True),
            LeftRound(1, 1, (HeldSnapshot(5),)),
            SnapshotRestored(1, 2),
            FunctionFinished(1, 2),
        ]
    assert channel.receive() == []


def test_what_a_process_sent_before_it_ended_arrives_although_it_never_read_its_fence(channel: Channel) -> None:
    peer = channel.connect(HELLO)
    assert channel.receive() == [SaidHello(1, (HeldSnapshot(3, "a"),))]
    channel.channel.send(FenceRank(1, 1, "why"))
    peer.send(json.dumps(FINISHED).encode())
    peer.close()
    assert channel.receive() == [FunctionFinished(1, 1)]
    assert channel.channel.problems == []


@pytest.mark.parametrize(
    "packet",
    [
        b"\xff{",
        b"[]",
        b'{"type": "kill"}',
        {**HELLO, "held": [{"step": "x"}]},
        {**HELLO, "local_rank": 0},  # it belongs to rank 1
        FINISHED,  # before it said hello
        {**HELLO, "held": [{"step": n, "shard": "x" * 40} for n in range(LARGEST // 40)]},
    ],
)
def test_a_connection_that_sends_anything_else_is_closed_with_one_problem(channel: Channel, packet: object) -> None:
    with channel.connect(packet, HELLO) as peer:
        assert channel.receive() == []
        assert len(channel.channel.problems) == 1
        with suppress(ConnectionResetError):  # with packets that nobody has read
            assert peer.recv(1) == b""


def test_a_later_connection_of_a_rank_takes_the_place_of_the_one_before(channel: Channel) -> None:
    with channel.connect(HELLO) as first, channel.connect(HELLO) as second:
        assert len(channel.receive()) == 2
        for peer in (first, second):
            with suppress(BrokenPipeError, ConnectionResetError):
                peer.send(json.dumps(FINISHED).encode())
        assert channel.receive() == [FunctionFinished(1, 1)]
    assert channel.channel.problems == []


def test_a_rank_speaks_for_itself_alone(channel: Channel) -> None:
    with channel.connect(HELLO, {**FINISHED, "local_rank": 0}):
        assert channel.receive() == [SaidHello(1, (HeldSnapshot(3, "a"),))]
    assert channel.channel.problems == [
        "a connection to the control socket of the ranks was closed: a message of local rank 0, which has not said "
        "hello here"
    ]


def test_a_rank_that_has_closed_its_end_disturbs_nobody(channel: Channel) -> None:
    channel.connect(HELLO).close()
    assert channel.receive() == [SaidHello(1, (HeldSnapshot(3, "a"),))]
    channel.channel.send(FenceRank(1, 1, "why"))
    assert channel.receive() == []


def test_a_round_for_which_no_port_is_free_has_that_of_the_round_before() -> None:
    launcher, problems = mock.Mock(spec=RankLauncher), list[str]()
    launcher.begin_round.side_effect = OSError(errno.EMFILE, "Too many open files")
    launcher.round_variables.return_value = {"MASTER_PORT": "7"}
    policy, processes = mock.Mock(recover=frozenset(["retry"])), RankProcesses()
    recovery = RankRecovery(mock.Mock(), policy, select.poll(), launcher, processes, mock.Mock(), problems.append)
    assert recovery.perform(BeginRound(0, 2, None, "retry"), Ledger()) == []
    assert problems == ["no port for round 2, which gets that of the round before: Too many open files"]
