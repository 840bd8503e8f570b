"""What a figure is, and what all figures need: a peer as the first process of a container of its own.

A figure is a module in this folder with `NAME` (`10-first-instruction`) and `measure(short: bool) -> Measured`; `short`
is as little as shows that it works.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from proof.bench.compare.peers import Peer
from proof.bench.compare.plain import by_plain
from support.measured import Measured
from support.runs import PID1, Record, alive, wait_for

# /dev/shm is its own, too: what is killed as a whole leaves nothing there.
CONTAINER = (*PID1, "sh", "-ec", 'mount -t tmpfs shm /dev/shm; exec "$@"', "sh")


class Figure(Protocol):
    NAME: str

    def measure(self, short: bool) -> Measured: ...


def made_by(name: str) -> str:
    """The command that makes this figure anew."""
    return f"bin/prove bench {name}"


class Contained:
    """A peer as PID 1 of a PID namespace, as in a container; `folder` is its own."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process, self.folder = process, folder
        self.pid = wait_for(self._first, "PID 1", 60)
        self._space = os.readlink(f"/proc/{self.pid}/ns/pid")

    def _first(self) -> int:
        """PID 1 as it is seen from here: what unshare started."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        children = task.read_text().split() if self.process.poll() is None else []
        assert self.process.returncode is None, f"ended with {self.process.returncode}: {self.said}"
        return int(children[0]) if children else 0

    @property
    def said(self) -> str:
        """stdout and stderr so far."""
        return (self.folder / "said").read_text(errors="replace")

    @property
    def records(self) -> list[Record]:
        """ftrun's."""
        import json

        try:
            text = (self.folder / "run" / "events.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def living(self) -> list[int]:
        """All processes in the namespace but zombies, PID 1 among them, as they are seen from here."""
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == self._space and alive(int(name)):
                    found.append(int(name))
        return found

    def signal(self, number: int) -> None:
        """To PID 1."""
        os.kill(self.pid, number)

    def wait(self, timeout: float = 90.0) -> int:
        """The exit code of PID 1; 128 + n for a signal."""
        code = self.process.wait(timeout)
        return code if code >= 0 else 128 - code


@contextlib.contextmanager
def contained(
    peer: Peer, *command: str, ranks: int = 1, options: Sequence[str] = (), **environment: str
) -> Iterator[Contained]:
    """`command` under `peer` as PID 1; nothing of it is left afterwards, whatever it did."""
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as name:
        folder = Path(name)
        words = by_plain(peer.command(folder, *command, ranks=ranks, options=options))
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(
                [*CONTAINER, *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=folder,
                env=settled() | {"TMPDIR": name} | environment,
                start_new_session=True,
            )
        try:
            yield Contained(process, folder)
        finally:
            end(process)


def end(unshare: subprocess.Popen[bytes]) -> None:
    """The container, and wait until nothing of it is left (--kill-child: PID 1 goes with unshare, the rest with it)."""
    first: list[str] = []
    with contextlib.suppress(OSError):
        first = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
    unshare.kill()
    unshare.wait()
    wait_for(lambda: not any(alive(int(pid)) for pid in first), "the end of the namespace")


def settled() -> dict[str, str]:
    """The environment without what would steer one of them, or slow down their Python."""
    ours = ("FTRUN_", "MA_", "SLURM_", "TORCHELASTIC_", "PYTHON")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | {"OMP_NUM_THREADS": "1"}
