"""Observation of the trainee from outside: its events, its pid, and the time of its death."""

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
from support.runs import wait_for, whole_lines

TRAINEE = Path(__file__).with_name("trainee.py")


class Line(NamedTuple):
    """`at`: CLOCK_MONOTONIC in s; `pid`: inside its namespace."""

    event: str
    at: float
    pid: int


def trainee(kind: str) -> list[str]:
    """The command line of the trainee."""
    return [sys.executable, str(TRAINEE), kind]


def apart(peer: Peer) -> Peer:
    """The program with its own /dev/shm, so that the beat file is removed if it is killed."""
    shell = ["sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]

    def arguments(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
        return [*shell, *peer.arguments(folder, command, ranks, options)]

    return peer._replace(arguments=arguments)


def lines(folder: Path, *events: str) -> list[Line]:
    """The lines of all starts so far; with `events` only those."""
    split = [line.split() for line in whole_lines(folder / "did")]
    return [Line(event, float(at), int(pid)) for event, at, pid in split if not events or event in events]


def until(run: Contained, event: str, number: int = 1, timeout: float = 60.0) -> Line:
    """Wait for the `number`th line of that event, and return it."""

    def look() -> list[Line]:
        found = lines(run.folder, event)
        assert len(found) >= number or run.process.poll() is None, f"ended without {event}: {run.output}"
        return found[number - 1 : number]

    found: list[Line] = wait_for(look, f"{event} x{number} of {lines(run.folder)[-3:]}; {run.output[-500:]}", timeout)
    return found[0]


def outside(run: Contained, pid: int) -> int:
    """The pid outside of the namespace of the process that has `pid` inside."""
    return outside_pid(pid, run.pid)


class Mortal:
    """A process whose end is measured with a resolution of a millisecond."""

    def __init__(self, pid: int) -> None:
        self.pid, self._fd = pid, os.pidfd_open(pid)

    def died(self, within: float) -> float | None:
        """The time of its end (CLOCK_MONOTONIC), or None if it lives for `within` s more."""
        ready = select.select([self._fd], [], [], within)[0]
        return time.monotonic() if ready else None

    def __enter__(self) -> Mortal:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)
