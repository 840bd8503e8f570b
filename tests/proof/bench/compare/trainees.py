"""The trainee as seen from outside: what it did, which process it is here, and when that one dies."""

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
    """With a /dev/shm of its own: the beats of one that is killed go with it."""
    shell = ["sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]

    def words(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
        return [*shell, *peer.words(folder, command, ranks, options)]

    return peer._replace(words=words)


def lines(folder: Path, *words: str) -> list[Line]:
    """What it did so far, of all starts; with words, only that."""
    try:
        text = (folder / "did").read_text()
    except FileNotFoundError:
        return []
    split = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [Line(word, float(at), int(pid)) for word, at, pid in split if not words or word in words]


def until(run: Contained, word: str, number: int = 1, timeout: float = 60.0) -> Line:
    """The `number`th line with that word, once it is there."""

    def look() -> list[Line]:
        found = lines(run.folder, word)
        assert len(found) >= number or run.process.poll() is None, f"ended without {word}: {run.said}"
        return found[number - 1 : number]

    found: list[Line] = wait_for(look, f"{word} x{number} of {lines(run.folder)[-3:]}; {run.said[-500:]}", timeout)
    return found[0]


def outside(run: Contained, pid: int) -> int:
    """What the namespace calls `pid`, as it is called here."""
    for candidate in run.living():
        if f"\t{pid}\n" in namespaced(candidate):
            return candidate
    raise AssertionError(f"no process {pid}: {run.said}")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def namespaced(pid: int) -> str:
    """The line NSpid of its status; nothing for one that is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
    return next(line for line in status.splitlines(keepends=True) if line.startswith("NSpid"))


class Mortal:
    """A process whose end is waited for, to the millisecond."""

    def __init__(self, pid: int) -> None:
        self.pid, self._fd = pid, os.pidfd_open(pid)

    def died(self, within: float) -> float | None:
        """When it did (CLOCK_MONOTONIC), unless it lives on for so many seconds."""
        ready = select.select([self._fd], [], [], within)[0]
        return time.monotonic() if ready else None

    def __enter__(self) -> Mortal:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)
