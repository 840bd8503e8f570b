"""A small job that hangs or works, and an evidence helper that investigates it, as PID 1 starts it."""

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.helper_process import DEADLINE, HelperProcess, Line
from support.runs import carrying, end_all, permitted, state_of, wait_for
from waitproof import stacks

NO_PTRACE = ("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace")
READY = "print('ready', flush=True)\n"
needs_spy = pytest.mark.skipif(stacks.program() is None, reason="py-spy is not installed")


def need_no_ptrace() -> None:
    if os.getuid() or not permitted(*NO_PTRACE):
        pytest.skip("capabilities cannot be given up here")


class Job:
    """A tree of processes with a beat folder of its own in their environment; `pid` is its root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{folder}/beats-{uuid.uuid4().hex}"
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int:
        return self.processes[0].pid

    def start(self, code: str, *arguments: str, **more: Any) -> int:
        """Start a program in Python and wait for its first line, `first_line`; returns its pid."""
        pid = self.begin(code, *arguments, **more)
        out, err = self.processes[-1].stdout, self.processes[-1].stderr
        assert out is not None
        assert err is not None
        self.first_line = out.readline()
        assert self.first_line, err.read().decode()
        return pid

    def start_asleep(self, code: str, *arguments: str, **more: Any) -> int:
        """The same, until all processes sleep."""
        pid = self.start(code, *arguments, **more)
        self.wait_asleep()
        return pid

    def begin(
        self,
        code: str,
        *arguments: str,
        prefix: Sequence[str] = (),
        python: str | Path = sys.executable,
        **variables: str,
    ) -> int:
        """`start` without waiting."""
        process = subprocess.Popen(
            [*prefix, str(python), "-c", code, *arguments],
            env=os.environ | {"FTRUN_BEAT_DIR": self.mark} | variables,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process.pid

    def members(self) -> list[int]:
        return carrying(f"FTRUN_BEAT_DIR={self.mark}")

    def wait_asleep(self) -> None:
        wait_for(lambda: all(state_of(pid) in "ST" for pid in self.members()), "the sleep of all processes")

    def _semaphores(self) -> set[int]:
        """The inodes of those that its processes have mapped."""
        lines = list[str]()
        for pid in self.members():
            with contextlib.suppress(OSError):
                lines += Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {int(line.split()[4]) for line in lines if "/dev/shm/" in line}

    def end(self) -> None:
        """A resource tracker removes the names of semaphores when it ends; here it is killed."""
        mapped = self._semaphores()
        end_all(self.members)
        for process in self.processes:
            process.kill()
            process.communicate()
        for path in Path("/dev/shm").glob("sem.mp-*") if mapped else ():
            with contextlib.suppress(FileNotFoundError):  # another test has ended
                if path.stat().st_ino in mapped:  # the maps have another name, which the C library has removed
                    path.unlink()


class Answer(NamedTuple):
    lines: list[Line]
    seconds: float  # until the last line

    @property
    def result(self) -> Line:
        assert self.lines, "no message"
        assert [line["event"] for line in self.lines[:-1]] == ["problem"] * (len(self.lines) - 1)
        assert self.lines[-1]["event"] == "reply"
        return self.lines[-1]

    @property
    def markdown(self) -> str:
        return Path(self.result["report"]).read_text()

    @property
    def document(self) -> Line:
        found: Line = json.loads(Path(self.result["report"]).with_suffix(".json").read_bytes())
        return found

    def process(self, pid: int) -> Line:
        return next(p for p in self.document["processes"] if p["pid"] == pid)

    @property
    def missing(self) -> dict[str, str]:
        return {line["what"]: line["why"] for line in self.document["missing"]}


class EvidenceHelper(HelperProcess):
    """A running helper."""

    def __init__(
        self, request: Line, prefix: Sequence[str] = (), python: str = sys.executable, **environment: str
    ) -> None:
        self.started = time.monotonic()
        asked, variables = json.dumps({"request": "evidence_request"} | request), os.environ | environment
        super().__init__("evidence", asked, prefix=prefix, python=python, silent=True, environment=variables)

    def answer(self) -> Answer:
        """Wait for its end."""
        last = 0.0
        while self.read():
            last = time.monotonic() - self.started
        assert self.process.wait(DEADLINE) == 0
        return Answer(self.lines, last)


def request(job: Job, **changed: Any) -> dict[str, Any]:
    """A request about the root of the job, whose timeout was given."""
    finding = {"rule": "step", "rank": 0, "age": 41.0, "limit": 30.0, "step": 7, "pid": job.pid}
    return {
        "run_dir": str(job.folder / "run"),
        "attempt": 2,
        "finding": finding | changed.pop("finding", {}),
        "root": job.pid,
        "excluded": [],
        "ranks": [],
        "now": time.monotonic(),
        "between": 0.5,
        "timeout": 25,
    } | changed


def ask(
    job: Job,
    prefix: Sequence[str] = (),
    python: str = sys.executable,
    environment: Mapping[str, str] = {},
    **changed: Any,
) -> Answer:
    with EvidenceHelper(request(job, **changed), prefix, python, **environment) as helper:
        return helper.answer()


def rank(number: int, pid: int, moved_ago: float = 41.0) -> dict[str, Any]:
    moved = time.monotonic() - moved_ago
    return {"rank": number, "pid": pid, "step": 7, "alive_at": moved, "moved_at": moved}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.end()
