"""The messenger with real sockets: operator requests are forwarded and answered; invalid messages do no harm."""

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from ftrun.messages import operator
from support.beat_file import BeatDir
from support.helper_process import DEADLINE, HelperProcess

SECOND = 1000  # ms


class Messenger(HelperProcess):
    def __init__(self, run_dir: Path, beat_dir: Path, before: str = "") -> None:
        self.run_dir, self.beat_dir = run_dir, beat_dir
        super().__init__("messenger", str(run_dir), str(beat_dir), before=before)
        self.context = zmq.Context()

    def __exit__(self, *rest: object) -> None:
        self.context.destroy(linger=0)
        super().__exit__(*rest)

    def client(self, kind: int = zmq.DEALER) -> "zmq.Socket[bytes]":
        client: zmq.Socket[bytes] = self.context.socket(kind)
        client.connect(f"ipc://{self.run_dir}/{operator.SOCKET}")
        return client

    def order(self, client: "zmq.Socket[bytes]", verb: str, **more: Any) -> None:
        client.send(json.dumps({"schema": 1, "id": "q", "verb": verb, **more}).encode())

    def record(self, event: str, **fields: Any) -> None:
        with open(self.run_dir / "events.jsonl", "ab") as stream:
            stream.write(json.dumps({"schema": 1, "event": event, **fields}).encode() + b"\n")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    run_dir, beat_dir = tmp_path / "run", tmp_path / "beats"
    run_dir.mkdir()
    beat_dir.mkdir()
    (run_dir / "events.jsonl").write_bytes(b'{"schema": 1, "event": "started"}\n')
    return run_dir, beat_dir


@pytest.fixture
def messenger(folders: tuple[Path, Path]) -> Iterator[Messenger]:
    with Messenger(*folders) as started:
        yield started


def answer(client: "zmq.Socket[bytes]") -> dict[str, Any]:
    assert client.poll(int(DEADLINE * SECOND)), "no answer"
    found: dict[str, Any] = json.loads(client.recv_multipart()[-1])
    return found


def test_replies_reach_the_client_that_sent_the_request(messenger: Messenger) -> None:
    clients = [messenger.client() for _ in range(3)] + [messenger.client(zmq.REQ)]
    for number, client in enumerate(clients):
        client.send(json.dumps({"schema": 1, "id": str(number), "verb": "restart"}).encode())
    orders = [messenger.event("operator_request")["id"] for _ in clients]
    assert len(set(orders)) == len(clients)
    for number in reversed(orders):
        messenger.ask(ask="answer_operator", id=number, ok=True, why="done")
    assert [answer(client)["id"] for client in clients] == ["0", "1", "2", "3"]


def test_sockets_are_for_this_user_and_the_memory_is_limited(messenger: Messenger) -> None:
    answered(messenger)
    for name in (operator.SOCKET, operator.RECORDS):
        found = (messenger.run_dir / name).stat().st_mode
        assert stat.S_ISSOCK(found)
        assert stat.S_IMODE(found) == 0o600
    limits = Path(f"/proc/{messenger.process.pid}/limits").read_text().splitlines()
    (soft,) = [line.split()[3] for line in limits if line.startswith("Max data size")]
    assert soft == str(96 << 20)  # clients must not use up the memory of the job
    assert messenger.end() == 0


def answered(messenger: Messenger) -> None:
    """The messenger responds."""
    client = messenger.client()
    messenger.order(client, "ping")
    assert answer(client)["ok"]
    client.close(linger=0)


def test_garbage_partial_messages_and_other_versions_do_no_harm(messenger: Messenger) -> None:
    answered(messenger)
    raw = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    try:
        for number, one in enumerate(raw):
            one.connect(str(messenger.run_dir / operator.SOCKET))
            # An incomplete ZMTP greeting, one followed by garbage, and no greeting.
            one.sendall(
                [b"\xff\0\0\0\0\0\0\0\1\x7f", b"\xff" * 10 + b"\3" + bytes(53) + b"\4\x26" * 50, b"GET /"][number % 3]
            )
        client = messenger.client()
        for content in (b"", b"{", b"[1]", b"\xff" * 3000, b'{"schema": 9, "id": "old", "verb": "stop"}'):
            client.send(content)
            assert answer(client)["ok"] is False
        client.send_multipart([b"a", b"b", b"c", b"d"])
        assert answer(client)["ok"] is False
        client.send(b"x" * 100_000)  # over the limit, so the connection is closed
        answered(messenger)
    finally:
        for one in raw:
            one.close()
    assert not [line for line in messenger.lines if line["event"] == "operator_request"]


def test_a_flood_of_requests_affects_only_its_sender(messenger: Messenger) -> None:
    flood, other = messenger.client(), messenger.client()
    flood.sndhwm = 0
    for _ in range(2000):
        messenger.order(flood, "restart")
    refused = 0
    while refused < 1000:
        assert flood.poll(int(DEADLINE * SECOND)), f"{refused} refused"
        found = json.loads(flood.recv())
        refused += found["why"] == "too many requests"
    messenger.order(other, "ping")
    assert answer(other)["ok"]
    messenger.read(0.1)
    assert len([line for line in messenger.lines if line["event"] == "operator_request"]) <= 16


def test_a_request_without_a_decision_gets_an_error_reply(folders: tuple[Path, Path]) -> None:
    before = "import ftrun.helpers.messenger.operator_channel as c; c.REPLY_TIMEOUT = 0.05"
    with Messenger(*folders, before=before) as messenger:
        client = messenger.client()
        messenger.order(client, "restart")
        found = answer(client)
        assert (found["ok"], found["why"]) == (False, "ftrun has not replied in time")


def test_records_are_published_as_they_are_written(messenger: Messenger) -> None:
    answered(messenger)
    stream: zmq.Socket[bytes] = messenger.context.socket(zmq.SUB)
    stream.connect(f"ipc://{messenger.run_dir}/{operator.RECORDS}")
    stream.subscribe(b"hang")
    found: list[list[bytes]] = []
    number = 0
    while not found:  # a subscription takes a moment to arrive
        messenger.record("progress", step=number)
        messenger.record("hang", step=number)
        number += 1
        if stream.poll(100):
            found.append(stream.recv_multipart())
    assert found[0][0] == b"hang"
    assert json.loads(found[0][1])["event"] == "hang"


def test_a_client_that_writes_to_the_record_socket_is_disconnected(messenger: Messenger) -> None:
    answered(messenger)
    client: zmq.Socket[bytes] = messenger.context.socket(zmq.XSUB)
    watch = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    client.connect(f"ipc://{messenger.run_dir}/{operator.RECORDS}")
    client.send(b"x" * (operator.LIMIT + 1))
    assert watch.poll(int(DEADLINE * SECOND)), "the connection remained open"


def test_the_progress_of_training_is_recorded(folders: tuple[Path, Path]) -> None:
    beats = BeatDir(folders[0].parent / "shm")
    before = "import ftrun.helpers.messenger.steps as s; s.PERIOD = 0.01"
    with contextlib.closing(beats), Messenger(folders[0], beats.folder, before) as messenger:
        for rank, step in ((0, 7), (1, 5)):
            beats.run(f"ft.beat({step})", RANK=str(rank)).check_returncode()
        messenger.ask(ask="attempt_number", number=2)
        path = messenger.run_dir / "steps.jsonl"
        while not (path.exists() and path.read_bytes().endswith(b"\n")):
            answered(messenger)
        sample = json.loads(path.read_text().splitlines()[0])
        assert (sample["attempt"], sample["low"], sample["high"], sample["ranks"]) == (2, 5, 7, 2)
        os.truncate(messenger.beat_dir / "beats", 100)  # by the command
        answered(messenger)
        assert messenger.end() == 0


def test_a_long_path_and_a_stale_socket_are_handled(tmp_path: Path) -> None:
    run_dir = tmp_path / ("d" * 120)
    run_dir.mkdir()
    (run_dir / "events.jsonl").touch()
    here = os.open(run_dir, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(f"/proc/self/fd/{here}/{operator.SOCKET}")
        with Messenger(run_dir, tmp_path) as messenger, messenger.context.socket(zmq.DEALER) as client:
            path = f"/proc/self/fd/{here}/{operator.SOCKET}"
            client.linger = 0
            client.connect(f"ipc://{path}")  # zmq retries until the socket is created
            messenger.order(client, "ping")
            assert answer(client)["ok"]
    finally:
        os.close(here)
