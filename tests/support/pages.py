"""The page, served from here with what a test makes up, or by a real `ftctl serve`."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ftrun.cli.verbs.serve import listening_socket
from ftrun.views.page.app import Page, Server
from ftrun.views.snapshot import DeviceNow, Incident, Limit, RankNow, Snapshot
from support.runs import HOUSE

FTCTL = (sys.executable, str(HOUSE / "bin" / "ftctl"))


class Served:
    """A page at `url`; `host` is 127.0.0.1."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = int(url.rstrip("/").rpartition(":")[2])

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        with connection.getresponse() as answer:
            found = answer.status, answer.read().decode()
        connection.close()
        return found

    def stream(self, path: str = "/events", **headers: str) -> Stream:
        return Stream(self.port, path, {name.replace("_", "-"): value for name, value in headers.items()})


class Event(NamedTuple):
    name: str
    data: Any
    id: str


class Stream:
    """One client of `/events`."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", path, headers=headers)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def events(self) -> Iterator[Event]:
        """As they come, until the server ends it."""
        fields: dict[str, str] = {}
        for line in self._answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
                fields = {}

    def until(self, wanted: Callable[[Event], object]) -> list[Event]:
        """All up to the first that is wanted."""
        found = []
        for event in self.events():
            found.append(event)
            if wanted(event):
                return found
        raise AssertionError(f"the stream ended: {found}")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@contextmanager
def ftctl_serve(run_dir: Path, *words: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], Served]]:
    """The real program; by itself on a port of its own."""
    process = subprocess.Popen(
        [*FTCTL, "serve", "--run-dir", str(run_dir), "--port", str(port), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, process.communicate()
        yield process, Served(url)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def serving(page: Page) -> Iterator[Served]:
    """From this process, in a thread."""
    listening = listening_socket(socket.AF_INET, "127.0.0.1", 0)
    made = Server(page.application(), page.feed)
    thread = threading.Thread(target=made.run, args=([listening],))
    thread.start()
    try:
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}/")
    finally:
        made.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def empty(folder: Path) -> Path:
    """A run dir in which nothing has happened yet."""
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").touch()
    return folder


def ranks(number: int, silent: int) -> tuple[RankNow, ...]:
    """All of them step; that one has been silent for most of its limit."""
    return tuple(
        RankNow(
            rank=rank,
            pid=4000 + rank,
            state="moving",
            step=812 - (rank == silent),
            moved=31.0 if rank == silent else 0.1 + rank % 7 / 10,
            alive=0.1,
            section="evaluation" if rank % 97 == 5 else None,
            rule="step",
            age=31.0 if rank == silent else 0.1 + rank % 7 / 10,
            limit=38.0,
            step_time=0.42,
        )
        for rank in range(number)
    )


def snapshot(run_dir: Path, number: int = 8, **changed: Any) -> Snapshot:
    """A run of so many ranks, of which one is about to be a suspect."""
    found = ranks(number, silent=3)
    shown = Snapshot(
        run_dir=str(run_dir),
        alive=True,
        phase="running",
        attempt=2,
        reason="hang",
        command=("torchrun", "--standalone", "--nproc-per-node", str(number), "train.py"),
        version="0.1.0",
        pid=4000,
        began="2026-11-21T10:00:00.000Z",
        wall=7380.0,
        up=812.0,
        counts={"hang": 1, "fault": 0, "failure": 0},
        left={"hang": 2, "fault": 3, "failure": 0},
        restarts={"hang": 1},
        step=812,
        best_step=812,
        step_time=0.42,
        checkpoint="/checkpoints/step-800",
        checkpoint_step=800,
        checkpoint_age=34.0,
        ranks=found,
        slowest=found[3],
        stalest=found[3],
        limits=(Limit("hang", 38.0, "learned: 99% of silences below 0.9s"), Limit("start", 3600.0, "default")),
        deadline=7.0,
        next="Rank 3 will be suspected in 7s: 31s without a step (timeout 38s, learned).",
        devices=tuple(DeviceNow(f"GPU-{n}", "NVIDIA H100", 97.0, 71 << 30, 80 << 30, 640.0, 1.2) for n in range(8)),
        trouble=Incident("2026-11-21T11:49:08.000Z", 1, "hang", "rank 3 stopped at step 790, 41s ago (limit 38s)"),
        lost={"hang": 41.0, "redone": 12.5, "startup": 30.0},
        goodput=0.9887,
    )
    return shown._replace(**changed)
