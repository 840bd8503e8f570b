"""Run one job of ranks with the faults of its plan, and return its outcome."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from proof.chaos.play import Stopped
from proof.chaos.rank_plan import PLATFORM, SHM_FULL, Outer, RankJob, RankOutcome, Record
from support.runs import FTRUN, HOUSE, MOUNTS, alive, carrying, children, helpers, words

LOOK = 0.004  # s
PATIENCE = 20.0  # s that a fault waits for its record; then it does not happen
DEADLINE = 150.0  # s for a job; most take five
DYING = 30.0  # s for what has a SIGKILL
LASTS = 1.5  # s that a fault is in reset.json; ftrun reads it twice a second
ENTRY = {
    "memory fault": {"Status": "unrecovered", "ErrorCodeHex": "80E01801", "Policy": "restart"},
    "platform asks for a retry": {"Status": "unrecovered", "ErrorCodeHex": "80CA8000", "Policy": "restart_request"},
    "platform asks for a new process": {"Status": "fault"},
}
WORK = str(HOUSE / "tests" / "proof" / "chaos" / "rank_work.py")


def play(job: RankJob, folder: Path, stop: threading.Event) -> RankOutcome:
    """Run it; raises Stopped if `stop` was set meanwhile.  Nothing of it runs afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return _Player(job, folder, stop).play()


class _Player:
    def __init__(self, job: RankJob, folder: Path, stop: threading.Event) -> None:
        self.job, self.folder, self._stop = job, folder, stop
        self.mark = f"CHAOS={uuid.uuid4().hex}"
        self.struck: list[Record] = []
        self._queue = list(job.outer)
        self._stopped: dict[int, int] = {}  # the pid of each rank that was stopped from outside
        self._seen = 0  # records that the next fault does not wait for
        self._due: float | None = None
        self._since = time.monotonic()
        self._cured: float | None = None  # when the fault in reset.json is over

    def play(self) -> RankOutcome:
        began = time.monotonic()
        process = self._start()
        try:
            while process.poll() is None and time.monotonic() < began + DEADLINE:
                if self._stop.is_set():
                    raise Stopped
                if self._cured is not None and time.monotonic() >= self._cured:
                    self._report()
                elif self._queue and self._cured is None:
                    self._strike(process.pid)
                self._continue_done()
                time.sleep(LOOK if self._queue else 10 * LOOK)
            code = process.poll()
            left = self._left(process.pid) if code is not None else []
        finally:
            self._end(process)
        final = [_read(self.folder / f"final-{rank}") for rank in range(self.job.ranks)]
        return RankOutcome(
            self.job,
            code if code is None or code >= 0 else 128 - code,
            tuple(self._records()),
            (*self.struck, *_lines(self.folder / "struck")),
            tuple(_lines(self.folder / "steps")),
            tuple(_lines(self.folder / "rounds")),
            tuple(int(one) if one else None for one in final),
            json.loads(_read(self.folder / "verdict") or "null"),
            tuple(left),
            (_read(self.folder / "output") or ""),
            time.monotonic() - began,
        )

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [*FTRUN, "--run-dir", str(self.folder / "run"), "--termination-log", str(self.folder / "verdict")]
        for name, text in self.job.options:
            command += [f"--{name}={text.format(self.folder)}" if text else f"--{name}"]
        if any(fault.kind in PLATFORM for fault in self.job.outer):
            command += ["--reset-file", str(self.folder / "reset.json")]
        command += ["--", sys.executable, WORK, str(self.folder), json.dumps(self.job.plan())]
        if any(fault.kind == SHM_FULL for fault in self.job.outer):
            mount = 'mount -t tmpfs -o size=4m shm /dev/shm; exec "$@"'
            command = [*MOUNTS, "sh", "-ec", mount, "sh", *command]
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "SLURM_", "PYTHON"))}
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                env=plain | dict([self.mark.split("=")]),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _records(self) -> list[Record]:
        return _lines(self.folder / "run" / "events.jsonl")

    def _strike(self, ftrun: int) -> None:
        """Inject the next fault from outside, if its moment has come."""
        fault, now = self._queue[0], time.monotonic()
        if self._due is None:
            fresh = self._records()[self._seen :]
            if any(record["event"] == fault.on for record in fresh):
                self._due = now + fault.after
            elif now > self._since + PATIENCE:
                self._next()
            return
        if now < self._due:
            return
        if fault.kind in PLATFORM:
            self._report(fault)
            self._next()
            return
        if fault.kind == SHM_FULL:
            _fill(Path(f"/proc/{ftrun}/root/dev/shm/ballast"))
            self.struck.append({"mono": now, "kind": fault.kind})
        for pid in self._targets(fault, ftrun):
            try:
                os.kill(pid, signal.SIGSTOP if fault.kind == "rank stopped" else signal.SIGKILL)
            except ProcessLookupError:
                pass
            else:
                self.struck.append({"mono": now, "kind": fault.kind, "rank": fault.rank, "pid": pid})
                if fault.kind == "rank stopped":
                    self._stopped[fault.rank] = pid
        self._next()

    def _continue_done(self) -> None:
        """A rank whose training is over is not watched, so one that was stopped after that has to be continued."""
        for rank, pid in list(self._stopped.items()):
            if (self.folder / f"over-{rank}").exists():
                del self._stopped[rank]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _report(self, fault: Outer | None = None) -> None:
        """The platform reports this fault; None: that it is over."""
        entries = [] if fault is None else [{"RankId": fault.rank, "LogicId": fault.rank} | ENTRY[fault.kind]]
        one = fault is not None and fault.kind == "platform asks for a new process"
        beside = self.folder / "reset.json.new"
        beside.write_text(json.dumps({"RankList": entries, "RestartFaultProcess": one}))
        beside.replace(self.folder / "reset.json")
        self._cured = None if fault is None else time.monotonic() + LASTS
        if fault is not None:
            self.struck.append({"mono": time.monotonic(), "kind": fault.kind, "rank": fault.rank})

    def _next(self) -> None:
        self._queue.pop(0)
        self._due, self._since, self._seen = None, time.monotonic(), len(self._records())

    def _targets(self, fault: Outer, ftrun: int) -> list[int]:
        """The living processes that this fault is for."""
        ranks = [int(_read(self.folder / f"pid-{rank}") or 0) for rank in range(self.job.ranks)]
        if fault.kind == "helper killed":
            found = [pid for _, pid in sorted(helpers(ftrun).items())]
            chosen = found[fault.rank % len(found) :][:1] if found else []
        elif fault.kind == "standby killed":
            chosen = [pid for pid in children(ftrun) if WORK in words(pid) and pid not in ranks][:1]
        elif "rank" in fault.kind:
            both = fault.rank, (fault.rank + 1) % self.job.ranks
            chosen = [ranks[rank] for rank in (both if fault.kind == "two ranks killed" else both[:1])]
            chosen = [pid for pid in chosen if pid and WORK in words(pid)]
        else:
            chosen = []
        return [pid for pid in chosen if alive(pid)]

    def _left(self, ftrun: int) -> list[str]:
        until = time.monotonic() + DYING
        while (found := self._found(ftrun)) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    def _found(self, ftrun: int) -> list[str]:
        left = [f"process {pid} {words(pid)[:200]}" for pid in carrying(self.mark)]
        return left + [str(path) for path in _beat_folders(ftrun)]

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        until = time.monotonic() + DYING
        while time.monotonic() < until:
            living = ([process.pid] if process.poll() is None else []) + carrying(self.mark)
            if not living:
                break
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        process.wait()
        for path in _beat_folders(process.pid):
            shutil.rmtree(path, ignore_errors=True)


def _beat_folders(ftrun: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"ftrun-beats-*-{ftrun}-*"))


def _fill(path: Path) -> None:
    """Until no space is left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _lines(path: Path) -> list[Record]:
    text = _read(path) or ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
