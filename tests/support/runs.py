"""ftrun as a user starts it, for tests that look at its records, its processes and what it leaves behind."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from support.left_behind import remove_recorded

HOUSE = Path(__file__).resolve().parents[2]
FTRUN = (sys.executable, str(HOUSE / "bin" / "ftrun"))
FTCTL = (sys.executable, str(HOUSE / "bin" / "ftctl"))
FTHANG = (sys.executable, str(HOUSE / "bin" / "fthang"))
TREE = (sys.executable, str(HOUSE / "tests" / "support" / "trees.py"))
DEADLINE = 90.0  # s; never waited for in full unless something is broken
DYING = 30.0  # s that a process with a SIGKILL may need to be gone on a busy machine
PID1 = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
MOUNTS = ("unshare", "--mount", "--propagation", "private")
START_LINE = re.compile(
    r"^(?:\[ftrun\] (?P<text>phase \S+ )?attempt \d+ started; run dir .+; watched: .+"
    r'|\{"time": .+"level": "info".+"message": "(?P<json>phase \S+ )?attempt \d+ started; run dir .+\})\n',
    re.MULTILINE,
)
Record = dict[str, Any]
Mode = Literal["subreaper", "pid1"]


# What reading raises while something is not there yet: files, processes and connections (OSError), files that are being
# written (ValueError, as half a JSON), and fields, records or lines that are still missing (KeyError, IndexError).
NOT_YET = (OSError, ValueError, LookupError)


def wait_for(condition: Callable[[], Any], what: str = "the condition", timeout: float = DEADLINE) -> Any:
    """The first true value of `condition`.  An error of what it reads is a wait too, and the last one is shown at the
    deadline; an error of the test itself (AttributeError, TypeError) and a failed assertion are raised at once."""
    until, pause = time.monotonic() + timeout, 0.002
    while True:
        last: Exception | None = None
        try:
            if found := condition():
                return found
        except NOT_YET as error:
            last = error
        if time.monotonic() >= until:
            why = "" if last is None else f"; the last look at it: {type(last).__name__}: {last}"
            raise AssertionError(f"not within {timeout:.0f} s: {what}{why}") from last
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)


def without_start_line(stderr: str) -> str:
    """Without the line that ftrun writes when it has executed the command (core/machine/notices.py), as text or as
    JSON: the first one, or the first of each phase."""
    seen: set[str] = set()

    def first(line: re.Match[str]) -> str:
        phase = line["text"] or line["json"] or ""
        again = phase in seen
        seen.add(phase)
        return line[0] if again else ""

    return START_LINE.sub(first, stderr)


def whole_lines(path: Path) -> list[str]:
    """Those of a file to which somebody writes; none where it is not there."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def objects(path: Path) -> list[dict[str, Any]]:
    """One in each of its whole lines, as JSON."""
    return [json.loads(line) for line in whole_lines(path)]


def number_in(path: Path) -> int:
    """The number that a program writes into this file, once it has."""
    return int(wait_for(lambda: path.read_text().strip(), f"{path.name} to be written"))


@functools.cache
def permitted(*words: str) -> bool:
    """Whether this machine permits that."""
    try:
        return subprocess.run([*words, "true"], capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


def need_pid1() -> None:
    if not permitted(*PID1):
        pytest.skip("unshare --pid --fork --mount-proc is not permitted here")


def need_mounts() -> None:
    if not permitted(*MOUNTS):
        pytest.skip("unshare --mount is not permitted here")


def python(code: str, *words: str) -> list[str]:
    """A small program in Python, with the hooks as `ft`."""
    head = f"import sys; sys.path.insert(0, {str(HOUSE / 'hooks')!r}); import ftrun_hooks as ft\n"
    return [sys.executable, "-c", head + code, *words]


def patched(statements: str) -> tuple[str, ...]:
    """ftrun as a program that first executes these statements, which change one of its modules."""
    paths = [str(HOUSE / folder) for folder in ("supervisor", "hooks")]
    code = f"import sys\nsys.path[:0] = {paths}\n{statements}\nfrom ftrun.cli.run import main\nmain()\n"
    return sys.executable, "-c", code


def state_of(pid: int) -> str:
    """The letter of /proc/<pid>/stat; nothing for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z", "X")


def status(pid: int) -> dict[str, str]:
    """/proc/<pid>/status; empty for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    return [d for child in children(pid) for d in (child, *descendants(child))]


def outside(pid: int, within: int) -> int:
    """The pid out here of the process that the namespace of `within` calls `pid`."""
    for candidate in (within, *descendants(within)):
        if status(candidate).get("NSpid", "").split()[-1:] == [str(pid)]:
            return candidate
    raise AssertionError(f"no process {pid} below {within}")


def carrying(entry: str) -> list[int]:
    """Living processes that were executed with this entry in their environment."""
    wanted, found = entry.encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
                environment = file.read()
        except OSError:
            continue
        # Every test looks at all processes at its end, so what costs more comes last.
        if environment and wanted in environment and wanted in environment.split(b"\0") and alive(int(name)):
            found.append(int(name))
    return found


def end_process(pid: int) -> None:
    """SIGKILL for a process that may have ended meanwhile; a test whose point is the kill itself calls `os.kill`."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_all(living: Callable[[], Iterable[int]]) -> None:
    """Until there is none of them any more."""

    def none_left() -> bool:
        for pid in living():
            end_process(pid)
        return not living()

    wait_for(none_left, "that nothing of the test runs")


def words(pid: int) -> str:
    """The command line; nothing for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def helpers(ftrun: int) -> dict[str, int]:
    """The pids of the helpers that live below the ftrun with this pid, by their names."""
    named = [(words(child).partition("from ftrun.helpers.")[2].partition(".")[0], child) for child in children(ftrun)]
    return {name: child for name, child in named if name and alive(child)}


def ftctl(*words: str, prefix: Sequence[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """To its end, without the variables of an ftrun around the tests."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("FTRUN_")}
    command = [*prefix, *FTCTL, *words]
    return subprocess.run(command, capture_output=True, text=True, env=plain | environment, timeout=180)


class Run:
    """One ftrun that was started."""

    def __init__(self, process: subprocess.Popen[bytes], run_dir: Path, stdout: Path, stderr: Path) -> None:
        self.process, self.run_dir, self._stdout, self._stderr = process, run_dir, stdout, stderr

    def wait(self, timeout: float = DEADLINE) -> int:
        """128 + n for a signal, as a shell says it."""
        code = self.process.wait(timeout)
        return code if code >= 0 else 128 - code

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill_ftrun(self) -> None:
        """And wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """Without the start line, so that a test compares what the command and ftrun wrote besides it."""
        return without_start_line(self.whole_stderr)

    @property
    def whole_stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    @property
    def records(self) -> list[Record]:
        """All whole lines of events.jsonl, those of earlier runs on this run dir included."""
        return objects(self.run_dir / "events.jsonl")

    def named(self, *events: str, **fields: object) -> list[Record]:
        """Those of these names whose fields have these values."""
        found = [record for record in self.records if record["event"] in events]
        return [one for one in found if all(one.get(name) == value for name, value in fields.items())]

    @property
    def order(self) -> list[str]:
        return [record["event"] for record in self.records]

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "state.json").read_bytes())
        return found

    def until(self, event: str, number: int = 1, **fields: object) -> Record:
        """The `number`th such record, once it is written."""

        def look() -> list[Record]:
            found = self.named(event, **fields)
            assert len(found) >= number or self.process.poll() is None, f"ended without {event}: {self.log()}"
            return found if len(found) >= number else []

        found: list[Record] = wait_for(look, f"{event} {fields or ''} x{number}: {self.order}")
        return found[number - 1]

    def helper(self, name: str) -> int:
        """The pid of this helper of ftrun's; 0 if it does not run."""
        return helpers(self.pid).get(name, 0)

    def ftctl(self, verb: str, *words: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        return ftctl(verb, "--run-dir", str(self.run_dir), *words, prefix=prefix)

    def told(self, verb: str, *words: str) -> str:
        """What a request to ftctl that succeeds prints."""
        done = self.ftctl(verb, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self) -> str:
        return f"code {self.process.poll()}\n{self.stderr}\n{self.stdout[-800:]}\n{self.order}"


def stop_inside(run: Run) -> None:
    """End the ftrun in the namespace of `PID1` with SIGTERM; killing the `unshare` around it would kill ftrun."""
    (pid,) = children(run.pid)
    os.kill(pid, signal.SIGTERM)
    run.wait()


class Runs:
    """Starts ftrun in a folder of its own; `end` ends all of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.marker = f"TEST_RUN={uuid.uuid4().hex}"
        self.stdin = subprocess.DEVNULL
        self.started: list[Run] = []
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "SLURM_"))}
        self.environment |= dict([self.marker.split("=")])

    def start(
        self,
        *words: str,
        prefix: Sequence[str] = (),
        program: Sequence[str] = FTRUN,
        run_dir: Path | None = None,
        **environment: str,
    ) -> Run:
        run_dir = run_dir or self.run_dir
        number = len(self.started)
        stdout, stderr = self.folder / f"stdout-{number}", self.folder / f"stderr-{number}"
        log = self.folder / "termination-log"
        options = ["--run-dir", str(run_dir), "--termination-log", str(log)]
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                [*prefix, *program, *options, *words],
                env=self.environment | environment,
                cwd=self.folder,
                stdin=self.stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.started.append(Run(process, run_dir, stdout, stderr))
        return self.started[-1]

    def run(self, *words: str, **more: Any) -> Run:
        """To its end."""
        run = self.start(*words, **more)
        run.wait()
        return run

    def spawned(self, *words: str, **more: Any) -> Run:
        """Until it has executed the command."""
        run = self.start(*words, **more)
        run.until("spawned")
        return run

    def ends(self, code: int, *words: str, **more: Any) -> Run:
        """To its end, which is with this code."""
        run = self.run(*words, **more)
        assert run.wait() == code, run.log()
        return run

    @property
    def verdict(self) -> dict[str, Any]:
        content = (self.folder / "termination-log").read_bytes()
        assert len(content) <= 4096
        found: dict[str, Any] = json.loads(content)
        return found

    def mounted(self, script: str) -> list[str]:
        """A prefix: what follows it runs in a mount namespace of its own, after `script`."""
        return [*MOUNTS, "sh", "-ec", f'{script}\nexec "$@"', "sh"]

    def living(self) -> list[int]:
        return carrying(self.marker)

    def left(self) -> list[str]:
        """What is left of those that ended by themselves: processes and beat folders."""
        ended = [run for run in self.started if run.process.poll() not in (None, -signal.SIGKILL)]
        left = [f"process {pid}" for pid in self.living()] if len(ended) == len(self.started) else []
        return left + [str(path) for run in ended for path in Path("/dev/shm").glob(f"ftrun-beats-*-{run.pid}-*")]

    def end(self) -> None:
        for run in self.started:
            if run.process.poll() is None:
                run.process.kill()
            run.process.wait(DEADLINE)

        sessions = {run.pid for run in self.started}

        def none_left() -> bool:
            for pid in self.living():
                end_process(pid)
                # The whole group at one instant: a storm of forks is faster than any list of its processes.
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(pid) in sessions:
                        os.killpg(os.getpgid(pid), signal.SIGKILL)
            return not self.living()

        wait_for(none_left, "nothing of the test runs")
        for run in self.started:
            for path in Path("/dev/shm").glob(f"ftrun-beats-*-{run.pid}-*"):
                shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(*NOT_YET, AttributeError):
                remove_recorded(run.state.get("beat_dir"))


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """What ends by itself leaves nothing, in any test."""
    made = Runs(tmp_path)
    yield made
    until = time.monotonic() + DYING
    while (left := made.left()) and time.monotonic() < until:
        time.sleep(0.05)
    made.end()
    assert not left, left
