"""The trainee as seen from outside: its progress, its pid, and the time of its death."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from proof.bench.compare.kit import Contained
from proof.bench.compare.peers import Peer
from support.runs import outside as outside_pid
from support.runs import wait_for

TRAINEE = Path(__file__).with_name("trainee.py")


class Line(NamedTuple):
    """`at`: CLOCK_MONOTONIC in s; `pid`: as the trainee sees it."""

    word: str
    at: float
    pid: int


def trainee(what: str) -> list[str]:
    """The command."""
    return [sys.executable, str(TRAINEE), what]


def apart(peer: Peer) -> Peer:
    """With its own /dev/shm, so that the beat file of a killed one is removed with it."""
    shell = ["sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]

    def words(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
        return [*shell, *peer.words(folder, command, ranks, options)]

    return peer._replace(words=words)


def lines(folder: Path, *words: str) -> list[Line]:
    """Its lines so far, of all starts; with `words` only those."""
    try:
        text = (folder / "did").read_text()
    except FileNotFoundError:
        return []
    split = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [Line(word, float(at), int(pid)) for word, at, pid in split if not words or word in words]


def until(run: Contained, word: str, number: int = 1, timeout: float = 60.0) -> Line:
    """The `number`th line with that word, once it is written."""

    def look() -> list[Line]:
        found = lines(run.folder, word)
        assert len(found) >= number or run.process.poll() is None, f"ended without {word}: {run.output}"
        return found[number - 1 : number]

    found: list[Line] = wait_for(look, f"{word} x{number} of {lines(run.folder)[-3:]}; {run.output[-500:]}", timeout)
    return found[0]


def outside(run: Contained, pid: int) -> int:
    """The pid out here of the process that the namespace calls `pid`."""
    return outside_pid(pid, run.pid)


class Mortal:
    """A process whose end is measured, to the millisecond."""

    def __init__(self, pid: int) -> None:
        self.pid, self._fd = pid, os.pidfd_open(pid)

    def died(self, within: float) -> float | None:
        """The time of its end (CLOCK_MONOTONIC), or None after so many seconds."""
        ready = select.select([self._fd], [], [], within)[0]
        return time.monotonic() if ready else None

    def __enter__(self) -> Mortal:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)
