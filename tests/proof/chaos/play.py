"""Run one job with the faults of its plan, in their order, and return its outcome."""

import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from proof.chaos.faults import Missed, Scene, inject, wait_requests
from proof.chaos.plan import Fault, Injected, Job, Outcome, Record, Run
from proof.chaos.world import World, world

LOOK = 0.004  # s
AGAIN = 0.03  # s
PATIENCE = 2.5  # s that a fault waits for its record, after which it is injected anyway; and for its target
DEADLINE = 150.0  # s for a job; most take five
RUNS = 5


class Stopped(Exception):
    """The program was asked to end."""


class Undo(NamedTuple):
    at: float
    which: int  # of those that struck
    call: Callable[[], object]


class Tail:
    """Reads the records while they are written."""

    def __init__(self, made: World) -> None:
        self._world, self.records, self.unread = made, list[Record](), 0
        self._file, self._at, self._rest = 0, 0, b""

    def read(self) -> None:
        try:
            path = self._world.run_dir / "events.jsonl"
            found = path.stat()
            if found.st_ino != self._file:  # a new one, with a run dir of its own or in place of what is on a slow disk
                self._file, self._at, self._rest = found.st_ino, 0, b""
            if found.st_size <= self._at:
                return
            with path.open("rb") as stream:
                stream.seek(self._at)
                content = stream.read()
        except OSError:
            return
        self._at += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            try:
                record = json.loads(line)
                self.records.append(record if isinstance(record, dict) else {})
            except ValueError:
                self.unread += bool(line)


class Player:
    def __init__(self, job: Job, made: World, stop: threading.Event) -> None:
        self.job, self.world, self._stop = job, made, stop
        self.tail = Tail(made)
        self.runs: list[Run] = []
        self.injected: list[Injected] = []
        self.requests: list[subprocess.Popen[bytes]] = []
        self._undo: list[Undo] = []
        self._queue = list(job.faults)
        self._seen = 0  # records that the next fault does not wait for
        self._since = self._now = time.monotonic()
        self._due: float | None = None
        self._again = 0.0

    def play(self) -> None:
        until = time.monotonic() + DEADLINE
        while len(self.runs) < RUNS:
            run = self._run(until)
            self.runs.append(run)
            if run.refused:
                self.finish()  # an outer scheduler would try again later
            elif run.code is None or not run.killed:
                return

    def _run(self, until: float) -> Run:
        """One ftrun to its end."""
        self.tail.read()
        first, late, number = len(self.tail.records), 0.0, len(self.runs)
        process = self.world.start()
        self._now = time.monotonic()
        while True:
            now = time.monotonic()
            late, self._now = max(late, now - self._now - LOOK), now
            if self._stop.is_set():
                raise Stopped
            if process.poll() is not None or now > until:
                break
            self.tail.read()
            self._undo_due(now)
            self._inject_due(now, number, first)
            time.sleep(LOOK)
        output = (self.world.folder / f"output-{number}").read_text(errors="replace")
        code = _status(process.returncode, output)
        killed = code == 137 and any(s.fault.kind == "ftrun killed" and s.run == number for s in self.injected)
        self.tail.read()
        return Run(tuple(self.tail.records[first:]), code, killed, self.world.decisions, output, late)

    def _inject_due(self, now: float, number: int, first: int) -> None:
        if not self._queue:
            return
        fault = self._queue[0]
        if self._due is None:
            fresh = self.tail.records[self._seen :]
            if fault.on and not any(r.get("event") == fault.on for r in fresh) and now < self._since + PATIENCE:
                return
            self._due = (now if fault.on else self._since) + fault.after
        if now < max(self._due, self._again) or len(self.tail.records) <= first:
            return
        done = self._inject(fault)
        if done is None and now < self._due + PATIENCE:
            self._again = now + AGAIN
            return
        self._queue.pop(0)
        self._due, self._since, self._seen = None, now, len(self.tail.records)
        if done is None:
            return
        pid, undo = done
        ahead = self.world.uptime(number)
        attempt = next((r["attempt"] for r in reversed(self.tail.records) if "attempt" in r), 0)
        self.injected.append(Injected(fault, now + ahead, number, attempt, pid))
        if undo is not None:
            self._undo.append(Undo(now + fault.lasting, len(self.injected) - 1, undo))

    def _inject(self, fault: Fault) -> tuple[int, Callable[[], object] | None] | None:
        """None: its target does not exist."""
        try:
            return inject(fault, Scene(self.world, self._command(), self.requests))
        except Missed:
            return None

    def _command(self) -> int | None:
        """The pid of the start under way; None before and after."""
        for record in reversed(self.tail.records):
            if record.get("event") in ("started", "restart", "exited", "ended"):
                return None
            if record.get("event") == "spawned":
                return self.world.outside(record["pid"])
        return None

    def _undo_due(self, now: float, all_of_them: bool = False) -> None:
        for undo in [undo for undo in self._undo if all_of_them or undo.at <= now]:
            self._undo.remove(undo)
            undo.call()
            ahead = self.world.uptime(len(self.runs))
            self.injected[undo.which] = self.injected[undo.which]._replace(until=now + ahead)

    def finish(self) -> None:
        """Undo all faults that still last."""
        self._undo_due(time.monotonic(), True)


def play(job: Job, folder: Path, stop: threading.Event) -> Outcome:
    """Run it; raises Stopped if `stop` was set meanwhile."""
    began = time.monotonic()
    with world(job, folder) as made:
        player = Player(job, made, stop)
        try:
            player.play()
        finally:
            player.finish()
            orders = wait_requests(player.requests)
        ended = all(run.code is not None for run in player.runs)
        left = made.left() if ended else []
        copied = not ended or made.copied()
        outcome = Outcome(
            job,
            tuple(player.runs),
            tuple(player.injected),
            tuple(_lines(folder / "attempts")),
            tuple(left),
            tuple(made.beat_folders()),
            _json(folder / "verdict"),
            tuple(orders),
            copied,
            player.tail.unread,
            time.monotonic() - began,
        )
        if not ended:
            _keep(made, folder)
        return outcome


def _status(code: int | None, output: str) -> int | None:
    """As in a shell.  An `unshare` whose child was killed fails to end itself by the same signal."""
    if code == 1 and output.endswith("unshare: sigprocmask unblock failed: Invalid argument\n"):
        return 137
    return 128 - code if code is not None and code < 0 else code


def _keep(made: World, folder: Path) -> None:
    """Save the stacks of what hangs."""
    with (folder / "hanging").open("w") as stream:
        for process in made.processes():
            wchan = (_read(Path(f"/proc/{process.pid}/wchan")) or b"").decode()
            words = (_read(Path(f"/proc/{process.pid}/cmdline")) or b"").replace(b"\0", b" ").decode(errors="replace")
            stream.write(f"{process.pid} {process.what} {wchan} {words[:300]}\n")
        if ftrun := made.ftrun():
            stacks = subprocess.run(
                ["py-spy", "dump", "--pid", str(ftrun)], capture_output=True, text=True, check=False
            )
            stream.write(stacks.stdout + stacks.stderr)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in (_read(path) or b"").splitlines()]


def _json(path: Path) -> Any:
    try:
        return json.loads(_read(path) or b"null")
    except ValueError:
        return None
