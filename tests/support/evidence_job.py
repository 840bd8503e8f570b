"""A small job that hangs or works, and an evidence helper that is asked about it as PID 1 asks."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ftrun.helpers.evidence import stacks
from ftrun.host.helpers import CODE
from support.runs import HOUSE, alive, carrying, end_process, wait_for

PATHS = f"{HOUSE / 'supervisor'}\n{HOUSE / 'hooks'}"
NO_PTRACE = ("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace")
Line = dict[str, Any]
needs_spy = pytest.mark.skipif(stacks.program() is None, reason="py-spy is not installed")


class Job:
    """One tree of processes that carry a mark of their own; `pid` is its root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{folder}/beats-{uuid.uuid4().hex}"
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int:
        return self.processes[0].pid

    def start(self, code: str, *words: str, prefix: Sequence[str] = (), **more: Any) -> int:
        """A program in Python, until it prints its first line; what it has to say then is in `said`."""
        pid = self.begin(code, *words, prefix=prefix, **more)
        out, err = self.processes[-1].stdout, self.processes[-1].stderr
        assert out is not None
        assert err is not None
        self.first_line = out.readline()
        assert self.first_line, err.read().decode()
        return pid

    def begin(self, code: str, *words: str, prefix: Sequence[str] = (), **more: Any) -> int:
        """The same, which is not waited for."""
        environment = os.environ | {"FTRUN_BEAT_DIR": self.mark} | more
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", code, *words],
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process.pid

    def members(self) -> list[int]:
        return carrying(f"FTRUN_BEAT_DIR={self.mark}")

    def end(self) -> None:
        def none_left() -> bool:
            for pid in self.members():
                end_process(pid)
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
            return not any(alive(pid) for pid in self.members())

        wait_for(none_left, "the end of the job")
        for process in self.processes:
            process.communicate()


class Answer(NamedTuple):
    lines: list[Line]
    seconds: float  # until the last word
    folder: Path

    @property
    def result(self) -> Line:
        assert self.lines, "it said nothing"
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

    def stack(self, pid: int) -> str:
        return (Path(self.result["report"]).parent / "stacks" / f"{pid}.txt").read_text()

    @property
    def missing(self) -> dict[str, str]:
        return {line["what"]: line["why"] for line in self.document["missing"]}


class EvidenceHelper:
    """A helper under way."""

    def __init__(
        self, folder: Path, request: dict[str, Any], program: Sequence[str] = (sys.executable,), **environment: str
    ) -> None:
        self.folder, self.started = folder, time.monotonic()
        self.process = subprocess.Popen(
            [*program, "-I", "-c", CODE.format(name="evidence"), PATHS, json.dumps(request)],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def answer(self) -> Answer:
        """To its end; it complains of nothing on stderr."""
        out, err = self.process.stdout, self.process.stderr
        assert out is not None
        assert err is not None
        lines, last = [], 0.0
        for line in out:
            lines.append(json.loads(line))
            last = time.monotonic() - self.started
        told = err.read()
        assert self.process.wait(60) == 0
        assert not told, told.decode()
        return Answer(lines, last, self.folder)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def request(job: Job, **changed: Any) -> dict[str, Any]:
    """A question about the root of the job, by a learned limit."""
    finding = {"rule": "step", "rank": 0, "age": 41.0, "limit": 30.0, "step": 7, "pid": job.pid, "learned": True}
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
    job: Job, program: Sequence[str] = (sys.executable,), environment: dict[str, str] | None = None, **changed: Any
) -> Answer:
    asked = EvidenceHelper(job.folder, request(job, **changed), program, **(environment or {}))
    try:
        return asked.answer()
    finally:
        asked.close()


def rank(number: int, pid: int, moved_ago: float | None = 41.0, **more: Any) -> dict[str, Any]:
    moved = None if moved_ago is None else time.monotonic() - moved_ago
    known: dict[str, Any] = {
        "rank": number,
        "pid": pid,
        "step": 7,
        "alive_at": moved,
        "moved_at": moved,
        "sections": [],
    }
    return known | {"done": False, "present": True} | more


@contextmanager
def a_job(folder: Path) -> Iterator[Job]:
    job = Job(folder)
    try:
        yield job
    finally:
        job.end()
