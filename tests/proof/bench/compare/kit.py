"""What all figures need: a peer as the first process of a container of its own.

A figure is a module in this folder with `NAME` (`10-first-instruction`) and `measure(short: bool) -> Measured`; `short`
takes as few samples as show that it works.
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
from support.runs import PID1, Run, alive, children, wait_for

# /dev/shm is its own, too: what is killed as a whole leaves nothing there.
CONTAINER = (*PID1, "sh", "-ec", 'mount -t tmpfs shm /dev/shm; exec "$@"', "sh")


class Figure(Protocol):
    NAME: str

    def measure(self, short: bool) -> Measured: ...


def made_by(name: str) -> str:
    """The command that measures this figure again."""
    return f"bin/prove bench {name}"


class Contained(Run):
    """A peer as PID 1 of a PID namespace, as in a container; `folder` is its own."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        super().__init__(process, folder / "run", folder / "output", folder / "output")
        self.folder = folder
        self._pid: int = wait_for(self._first, "PID 1", 60)
        self._space = os.readlink(f"/proc/{self.pid}/ns/pid")

    def _first(self) -> int:
        """PID 1 as it is seen from here: what unshare started."""
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


@contextlib.contextmanager
def contained(
    peer: Peer, *command: str, ranks: int = 1, options: Sequence[str] = (), **environment: str
) -> Iterator[Contained]:
    """`command` under `peer` as PID 1; all of its processes are ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as name:
        folder = Path(name)
        words = by_plain(peer.command(folder, *command, ranks=ranks, options=options))
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                [*CONTAINER, *words],
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


def end(unshare: subprocess.Popen[bytes]) -> None:
    """The container, and wait until nothing of it is left (--kill-child: PID 1 goes with unshare, the rest with it)."""
    first = children(unshare.pid)
    unshare.kill()
    unshare.wait()
    wait_for(lambda: not any(map(alive, first)), "the end of the namespace")


def settled() -> dict[str, str]:
    """The environment without variables that would change a peer, or slow down its Python."""
    ours = ("FTRUN_", "MA_", "SLURM_", "TORCHELASTIC_", "PYTHON")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | {"OMP_NUM_THREADS": "1"}
