"""A run dir that a test writes, without an ftrun."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ftrun.core.machine.values import Ledger
from ftrun.core.rules.liveness import Limits
from ftrun.host import procfs
from ftrun.messages import records
from ftrun.messages.state import dump_state
from ftrun_hooks import layout as at

NS = 1_000_000_000
Content = dict[str, Any]


class MadeRun:
    """`folder` is the run dir; the ftrun in it is this process, until `gone`.  `close` removes the beat folder."""

    def __init__(self, folder: Path, memory: Path = Path("/dev/shm")) -> None:
        self.folder = folder
        self.now = math.floor(time.monotonic() * 512) / 512  # exact in nanoseconds, too: times are compared
        self.beats = memory / f"ftrun-beats-test-{os.getpid()}-{os.urandom(4).hex()}"
        self.beats.mkdir()
        self._slots = bytearray(at.FILE_BYTES)
        struct.pack_into("=QQ", self._slots, 0, at.MAGIC, at.NO_LOOK)
        folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(start_cnt=1, best_step=7, last_step=7)
        me = procfs.stat(os.getpid())
        assert me is not None
        self.run: Content = {"version": "0.1.0", "pid": me.pid, "pid_start": me.start, "boot": _boot(), "part": ""}
        self.run |= {"began": "2026-01-02T03:04:05.000Z", "mono": self.now - 60, "command": ["train"]}
        self.run |= {"max_restarts": 3, "restart_on": ["fault", "hang"], "grace": 10.0, "stop_grace": None}
        self.limits = Limits(100.0, None, None, idle=1800.0)
        self.run["sources"] = {"hang-timeout": "option", "start-timeout": "default", "idle-timeout": "default"}
        self.attempt: Content = {"number": 1, "pid": me.pid, "spawned_at": self.now - 50, "moved": True}
        self.attempt |= {"stopped_at": None, "aways": []}
        self.attempt |= {"idle_since": None, "idle_raised": 0.0, "accelerator": False}
        self.status: Content = {"phase": "running", "stage": None, "deadline": None, "want": {"want": "keep"}}
        self.status |= {"held": None, "paused": None, "finding": None}
        self.rest: Content = {"beat_dir": str(self.beats), "pid": me.pid, "pid_start": me.start, "ended": False}
        self.lines: list[bytes] = []

    def rank(self, rank: int, moved: float | None = 1.0, step: int | None = 7, **words: int) -> None:
        """It moved so many seconds ago.  `words`: of the slot, by the names of the layout."""
        start, ago = at.slot_of(rank), int(self.now * NS) - int((moved or 0.0) * NS)
        content = {at.MAGIC_WORD: at.MAGIC, at.PID: os.getpid(), at.START_TICKS: self.run["pid_start"], at.RANK: rank}
        content |= {at.CLAIMED_AT: int((self.now - 50) * NS), at.MOVED_AT: 0 if moved is None else ago}
        content |= {at.STEP: 0 if step is None else step + 1}
        content |= {getattr(at, name): value for name, value in words.items()}
        for word, value in content.items():
            struct.pack_into("=Q", self._slots, (start + word) * at.WORD, value)

    def section(self, rank: int, name: str, began: float, timeout: float) -> None:
        """The rank began that section so long ago; `timeout` in seconds."""
        start = at.slot_of(rank)
        struct.pack_into("=Q", self._slots, (start + at.DEPTH) * at.WORD, 1)
        entry = (int((self.now - began) * NS), int(timeout * NS), name.encode())
        struct.pack_into("=QQ48s", self._slots, (start + at.SECTION_TABLE) * at.WORD, *entry)

    def record(self, event: str, attempt: int = 1, ago: float = 0.0, **fields: object) -> None:
        stamp = time.time_ns() - int(ago * NS)
        text = records.timestamp(stamp, time.gmtime(stamp // NS))
        self.lines.append(records.line(text, self.now - ago, event, attempt, fields.items()))

    def write(self) -> str:
        """Write all files; the path of the run dir."""
        (self.beats / at.BEATS).write_bytes(self._slots)
        (self.beats / at.TOUCH).touch()
        os.utime(self.beats / at.TOUCH, (time.time() - 1000, time.time() - 1000))
        (self.folder / "events.jsonl").write_bytes(b"".join(self.lines))
        run, status = self.run | {"limits": self.limits._asdict()}, {"attempt": self.attempt} | self.status
        self.write_state({**self.rest, "run": run, "now": status})
        return str(self.folder)

    def write_state(self, rest: Content) -> None:
        (self.folder / "state.json").write_bytes(dump_state(self.ledger, rest))

    def samples(self, each: Iterable[tuple[float, int, int]], attempt: int = 1) -> None:
        """`steps.jsonl`: how long ago, lowest, highest."""
        lines = [
            json.dumps({"mono": self.now - ago, "attempt": attempt, "low": low, "high": high, "ranks": 1})
            for ago, low, high in each
        ]
        (self.folder / "steps.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def gone(self) -> None:
        """The ftrun is gone: its pid belongs to another process."""
        self.run["pid_start"] += 1

    def close(self) -> None:
        shutil.rmtree(self.beats, ignore_errors=True)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
