"""The ledger in which the programs of a group record what they do, and a small one: `group_work.py FOLDER [options]`.

`FOLDER` is shared by all.  Each process appends lines to `FOLDER/ledger` and holds a lock until it ends.  So at least
one process detects two epochs that run at the same time, without a clock.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hooks"))

import ftrun_hooks as ft


class PlannedFailure(NamedTuple):
    """`KIND:RANK:STEP[:always]`: once, or in each epoch that comes to that step.  `KIND` is hang, crash, kill (by
    SIGKILL), fail (an error that no restart can cure), or exit, which is a success."""

    kind: str
    rank: int
    step: int
    always: bool

    @classmethod
    def parse(cls, text: str) -> PlannedFailure:
        kind, rank, step, *more = text.split(":")
        return cls(kind, int(rank), int(step), more == ["always"])


class Ledger:
    """The lines of one process have `time` (CLOCK_MONOTONIC, s), `rank`, `epoch`, `pid` (in its namespace), `what`;
    those of a start also `member`, which differs from `rank` where a group has fewer members or spares."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        starts = os.environ.get("MA_PROC_START_CNT", "1")
        self.epoch = int(os.environ.get("FTRUN_EPOCH", starts))  # without a group, its own starts
        self._file = os.open(folder / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        alive = folder / "alive"
        alive.mkdir(exist_ok=True)
        # Lock first, then check: of two processes that start at once, the later one detects the other.
        self._lock = os.open(alive / f"{self.epoch}-{rank}-{time.monotonic_ns()}", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        reason, member = os.environ.get("FTRUN_RESTART_REASON", ""), int(os.environ["RANK"])
        self.add("start", starts=int(starts), reason=reason, member=member, size=int(os.environ.get("NNODES", "0")))
        for path in alive.iterdir():
            if path.name.split("-")[0] != str(self.epoch) and _is_locked(path):
                self.add("overlap", other=path.name)

    def add(self, what: str, **more: Any) -> None:
        line = {"time": time.monotonic(), "rank": self.rank, "epoch": self.epoch, "pid": os.getpid(), "what": what}
        os.write(self._file, (json.dumps(line | more) + "\n").encode())

    def step(self, step: int) -> None:
        """Send the heartbeat of this step; rank 0 also writes the step to a file."""
        ft.beat(step)
        if self.rank == 0:
            file = os.open(self.folder / "step", os.O_WRONLY | os.O_CREAT, 0o666)
            os.pwrite(file, b"%9d\n" % step, 0)
            os.close(file)

    def fail_as_planned(self, planned: list[PlannedFailure], step: int) -> None:
        """Fail as planned for this rank and step."""
        for one in planned:
            if one.rank != self.rank or one.step != step or not (one.always or self._first(one)):
                continue
            self.add(one.kind, step=step)
            match one.kind:
                case "hang":
                    threading.Event().wait()
                case "fail":
                    ft.fail("as planned", recoverable=False)
                    sys.exit(1)
                case "crash":
                    raise RuntimeError("as planned")
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    sys.exit(0)
                case _:
                    raise ValueError(one.kind)

    def _first(self, one: PlannedFailure) -> bool:
        try:
            os.close(os.open(self.folder / f"{one.kind}-{one.rank}-{one.step}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Barrier:
    """All ranks of an epoch proceed step by step, as in a training: one that stops holds all others."""

    def __init__(self, ledger: Ledger) -> None:
        self._rank, self._size = ledger.rank, int(os.environ.get("NNODES") or os.environ["WORLD_SIZE"])
        self._file = os.open(ledger.folder / f"steps-{ledger.epoch}", os.O_RDWR | os.O_CREAT, 0o666)

    def wait(self, step: int) -> None:
        os.pwrite(self._file, b"%8d" % step, 8 * self._rank)
        while True:
            seen = os.pread(self._file, 8 * self._size, 0).ljust(8 * self._size)
            if all(int(seen[at : at + 8].strip(b"\0 ") or 0) >= step for at in range(0, len(seen), 8)):
                return
            time.sleep(0.005)


def _is_locked(path: Path) -> bool:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


class Book:
    """The ledger, as a test reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def lines(self) -> list[dict[str, Any]]:
        try:
            text = (self.folder / "ledger").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def named(self, *what: str, epoch: int | None = None) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["what"] in what and epoch in (None, line["epoch"])]

    def ranks(self, what: str, epoch: int | None = None) -> list[int]:
        return sorted(line["rank"] for line in self.named(what, epoch=epoch))

    @property
    def epochs(self) -> list[int]:
        return sorted({line["epoch"] for line in self.named("start")})

    @property
    def step(self) -> int:
        """The last step of rank 0."""
        try:
            return int((self.folder / "step").read_text() or 0)
        except FileNotFoundError:
            return 0

    def wrong(self) -> Iterator[str]:
        """The violations so far."""
        for line in self.named("overlap"):
            yield f"two epochs ran at the same time: {line}"
        seen: set[tuple[int, int]] = set()
        for line in self.named("start"):
            if (line["rank"], line["epoch"]) in seen:
                yield f"rank {line['rank']} started twice in epoch {line['epoch']}"
            seen.add((line["rank"], line["epoch"]))


def options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-time", type=float, default=0.05, help="s")
    parser.add_argument("--every", type=int, default=5, help="steps from checkpoint to checkpoint")
    parser.add_argument("--failure", type=PlannedFailure.parse, action="append", default=[])
    return parser


def main() -> None:
    """Send heartbeats in step; rank 0 saves the step.  With `FOLDER/enough` the training ends after the next step."""
    given = options(__doc__).parse_args()
    ledger = Ledger(given.folder, int(os.environ.get("GROUP_RANK") or os.environ["RANK"]))
    kept, last = given.folder / "kept", given.folder / "last"
    step = _number(kept, 0)
    barrier = Barrier(ledger)
    while step < _number(last, given.steps):
        step += 1
        ledger.fail_as_planned(given.failure, step)
        time.sleep(given.step_time)
        if ledger.rank == 0 and not last.exists() and (given.folder / "enough").exists():
            _keep(last, min(step + 1, given.steps))  # all ranks read it in time: they wait for this rank in this step
        barrier.wait(step)
        ledger.step(step)
        if step % given.every == 0 and ledger.rank == 0:
            _keep(kept, step)
            ft.checkpoint(step)
    ledger.add("finished", step=step)


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return otherwise


def _keep(path: Path, number: int) -> None:
    path.with_suffix(".tmp").write_text(str(number))
    path.with_suffix(".tmp").rename(path)


if __name__ == "__main__":
    main()
