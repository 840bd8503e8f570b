"""Shared code of the figures: a program under comparison as the first process of a container of its own.

A figure is a module in this folder with `NAME` (`10-first-instruction`) and `measure(short: bool) -> Measured`; `short`
takes only as many samples as a test of the figure needs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from proof.bench.compare.peers import Peer
from proof.bench.compare.plain import by_plain
from support.measured import Measured
from support.runs import PID1, Run, alive, children, wait_for

# The container has its own /dev/shm, so that nothing remains there when it is killed.
CONTAINER = (*PID1, "sh", "-ec", 'mount -t tmpfs shm /dev/shm; exec "$@"', "sh")


class Figure(Protocol):
    NAME: str

    def measure(self, short: bool) -> Measured: ...


def made_by(name: str) -> str:
    """The command that measures this figure again."""
    return f"bin/prove bench {name}"


class Contained(Run):
    """A program as PID 1 of a PID namespace, as in a container; `folder` is its working directory."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        super().__init__(process, folder / "run", folder / "output", folder / "output")
        self.folder = folder
        self._pid: int = wait_for(self._first, "PID 1", 60)
        self._space = os.readlink(f"/proc/{self.pid}/ns/pid")

    def _first(self) -> int:
        """The pid, outside of the namespace, of PID 1, which unshare has started."""
        first = children(self.process.pid) if self.process.poll() is None else []
        assert self.process.returncode is None, f"ended with {self.process.returncode}: {self.output}"
        return first[0] if first else 0

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def output(self) -> str:
        """stdout and stderr so far."""
        return self.stdout

    def living(self) -> list[int]:
        """The pids, outside of the namespace, of all its processes except zombies; PID 1 is included."""
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == self._space and alive(int(name)):
                    found.append(int(name))
        return found

    def signal(self, number: int) -> None:
        """Send a signal to PID 1."""
        os.kill(self.pid, number)


@contextlib.contextmanager
def contained(
    peer: Peer, *command: str, ranks: int = 1, options: Sequence[str] = (), **environment: str
) -> Iterator[Contained]:
    """`command` under `peer` as PID 1; all processes are ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as name:
        folder = Path(name)
        program = by_plain(peer.command(folder, *command, ranks=ranks, options=options))
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                [*CONTAINER, *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=settled() | {"TMPDIR": name} | environment,
                start_new_session=True,
            )
        try:
            yield Contained(process, folder)
        finally:
            end(process)


class Launched:
    """A launcher in `folder`, and the lines that its processes write to a FIFO there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fifo, self.content = folder, folder / "lines", b""
        os.mkfifo(self.fifo)
        # Open for both directions, so that it does not end while no process has it open.
        self._reader = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str] = {}, **more: Any) -> None:
        nothing = subprocess.DEVNULL
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            arguments, stdin=nothing, stdout=nothing, stderr=nothing, cwd=self.folder,
            env=settled() | {"TMPDIR": str(self.folder)} | dict(environment), start_new_session=True, **more,
        )  # fmt: skip

    def read(self, seconds: float) -> bool:
        """Whether anything was written within that time."""
        ready = bool(select.select([self._reader], [], [], seconds)[0])
        if ready:
            self.content += os.read(self._reader, 1 << 16)
        return ready

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            os.close(self._reader)


def end(unshare: subprocess.Popen[bytes]) -> None:
    """End the container, and wait for the end of its processes (--kill-child: all of them die with unshare)."""
    first = children(unshare.pid)
    unshare.kill()
    unshare.wait()
    wait_for(lambda: not any(map(alive, first)), "the end of the namespace")


def settled() -> dict[str, str]:
    """The environment without variables that would change a program, or slow down its Python."""
    ours = ("FTRUN_", "MA_", "SLURM_", "TORCHELASTIC_", "PYTHON")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | {"OMP_NUM_THREADS": "1"}
