"""The beat file as the contract describes it, made and read without the code under test."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

MAGIC = 0x4E55525446000002
SIZE = (512 + 1024 * 80) * 8
FLAGS = 1 << 62 | 1 << 63
NO_LOOK = 2**63 - 1
HOUSE = Path(__file__).resolve().parents[2]
NAMES = (
    *("magic", "pid", "start_ticks", "rank", "claimed_at", "alive_at", "moved_at", "step", "credit", "flags"),
    *("checkpoint_at", "checkpoint_step", "sequence", "depth", "intervals", "usual", "longest", "slowest_start"),
    "broken_at",
)

Slot = dict[str, int]
Section = tuple[str, int, int]


class BeatDir:
    """A folder as the supervisor makes it, with an ear at the bell."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "beats").write_bytes(struct.pack("=QQ", MAGIC, NO_LOOK).ljust(SIZE, b"\0"))
        os.mkfifo(folder / "bell")
        self.bell = os.open(folder / "bell", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self.bell)

    def rings(self) -> int:
        """How often the bell rang since the last time."""
        try:
            return len(os.read(self.bell, 65536))
        except BlockingIOError:
            return 0

    def plan_look(self, at: int) -> None:
        with (self.folder / "beats").open("r+b") as file:
            file.seek(8)
            file.write(struct.pack("=Q", at))

    def run(self, code: str, python: str = sys.executable, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program with the hooks as `ft` and this module as `beat_file`; it may fail."""
        return subprocess.run(
            [python, "-c", f"import ftrun_hooks as ft\n{code}"],
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=600,
        )

    def output(self, code: str, python: str = sys.executable, **env: str) -> str:
        """What such a program prints, which ends well and without a word on stderr."""
        ran = self.run(code, python, **env)
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    def start(self, code: str, **env: str) -> subprocess.Popen[bytes]:
        """The same, without waiting for its end."""
        words = [sys.executable, "-c", f"import ftrun_hooks as ft\n{code}"]
        return subprocess.Popen(words, env=self.environment(**env))

    def environment(self, **env: str) -> dict[str, str]:
        path = os.pathsep.join([str(HOUSE / "hooks"), str(HOUSE / "tests")])
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
        return {**kept, "PYTHONPATH": path, "FTRUN_BEAT_DIR": str(self.folder), **env}

    def slot(self, rank: int = 0) -> Slot:
        return slot(rank, self.folder)

    def sections(self, rank: int = 0) -> list[Section]:
        return sections(rank, self.folder)


def slot(rank: int = 0, folder: Path | None = None) -> Slot:
    """The first words of the slot, by name; without a folder, of the beat dir of this process.  `source`: which
    framework gave its heartbeats, in the same word as the flags."""
    found = dict(zip(NAMES, struct.unpack_from(f"={len(NAMES)}Q", _bytes(rank, folder)), strict=True))
    return {**found, "flags": found["flags"] & 0xFF, "source": found["flags"] >> 8}


def sections(rank: int = 0, folder: Path | None = None) -> list[Section]:
    """Name, start and timeout of all entries that are not empty, whatever the depth says."""
    raw = _bytes(rank, folder)
    entries = [struct.unpack_from("=QQ48s", raw, (32 + 8 * index) * 8) for index in range(6)]
    return [(name.rstrip(b"\0").decode(), started, timeout & ~FLAGS) for started, timeout, name in entries if started]


def broken(rank: int = 0, folder: Path | None = None) -> str:
    """The name of the section that an exception closed last."""
    return _bytes(rank, folder)[19 * 8 : 25 * 8].rstrip(b"\0").decode()


def _bytes(rank: int, folder: Path | None) -> bytes:
    path = (folder or Path(os.environ["FTRUN_BEAT_DIR"])) / "beats"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as words:
        start = (512 + (rank % 1024) * 80) * 8
        return words[start : start + 640]
