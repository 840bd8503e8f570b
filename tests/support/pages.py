"""The page, served in the process of the test or by a real `ftctl serve`."""

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

from ftctl.page.app import Page, PageServer
from ftctl.verbs.serve import listening_socket
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
        """The events as they come, until the server ends the stream."""
        fields: dict[str, str] = {}
        for line in self._answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
                fields = {}

    def until(self, wanted: Callable[[Event], object]) -> list[Event]:
        """The events up to the first that is wanted."""
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
    """The real program; by default on any free port."""
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
    made = PageServer(page.application(), page.feed)
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
