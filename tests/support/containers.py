"""Run a real ftrun on real processes: as PID 1 of a namespace of its own or as a subreaper, with or without a terminal.

`support.runs` with pipes, terminals and PID namespaces.  All processes of a test have its `FTRUN_TEST_MARK` in their
environment.  A process with that mark that still runs at the end of the test is ended, by pid, and the test fails; it
also fails if a beat folder is left.
"""

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import IO, Any

import pytest

from support.runs import (
    DEADLINE,
    DYING,
    FTRUN,
    PID1,
    Mode,
    carrying,
    children,
    end_all,
    need_pid1,
    outside,
    permitted,
    wait_for,
    without_start_line,
)
from support.runs import Run as PlainRun
from support.runs import words as command_line

PYTHON = [sys.executable, "-S", "-E"]  # it starts fast
NAMESPACE = PID1[:-1]  # without --kill-child, which is a signal to ftrun
MARK = "FTRUN_TEST_MARK"


# --- a terminal -------------------------------------------------------------------------------------------------------


class Terminal:
    """A pseudo terminal: `type` writes to it, `look` returns what it has shown."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.seen = b""

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def look(self) -> bytes:
        while select.select([self.master], [], [], 0)[0]:
            try:
                more = os.read(self.master, 65536)
            except OSError:  # no process has the other side open any more
                break
            if not more:
                break
            self.seen += more
        return self.seen

    def wait(self, text: bytes, times: int = 1) -> None:
        try:
            wait_for(lambda: self.look().count(text) >= times, f"{text!r}")
        except AssertionError as problem:
            raise AssertionError(f"{problem}; the terminal shows {self.seen!r}") from None

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self.master, (rows, columns))

    def foreground(self) -> int:
        return os.tcgetpgrp(self.master)

    def hang_up(self) -> None:
        if self.master >= 0:
            os.close(self.master)
        self.master = -1

    def close(self) -> None:
        self.hang_up()
        os.close(self.slave)


# --- a run ------------------------------------------------------------------------------------------------------------


class Run(PlainRun):
    """One ftrun.  `process` is ftrun itself, or the `unshare` around it."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", run_dir: Path, mode: Mode, terminal: Terminal | None
    ) -> None:
        super().__init__(process, run_dir, run_dir / "none", run_dir / "none")
        self.mode, self._terminal = mode, terminal
        self._pid: int | None = process.pid if mode == "subreaper" else None

    @property
    def terminal(self) -> Terminal:
        assert self._terminal is not None
        return self._terminal

    @property
    def pid(self) -> int:
        """The pid of ftrun in this namespace."""
        if self._pid is None:
            found: int = wait_for(lambda: (children(self.process.pid) or [0])[0], "ftrun as PID 1")
            self._pid = found
        return self._pid

    @property
    def command(self) -> int:
        """The pid in this namespace of the last command that was executed."""
        self.until("spawned")
        within = int(self.named("spawned")[-1]["pid"])
        return within if self.mode == "subreaper" else outside(within, self.pid)

    def kill(self, number: int) -> None:
        """Send ftrun a signal, once it has started the command."""
        self.until("spawned")
        os.kill(self.pid, number)

    def log(self) -> str:
        return f"code {self.process.poll()}\n{self.order}"

    def wait(self, timeout: float = DEADLINE) -> int:
        """The exit status as in `Popen.returncode`; the output of the terminal is read meanwhile."""

        def look() -> bool:
            if self._terminal is not None:
                self._terminal.look()
            return self.process.poll() is not None

        wait_for(look, "the end of ftrun", timeout)
        return int(self.process.returncode)

    def finish(self, given: bytes | None = None) -> tuple[int, bytes, bytes]:
        """Exit code, stdout and stderr if these are pipes; the latter without the start line."""
        out, err = self.process.communicate(given, timeout=DEADLINE)
        if err is not None:
            err = without_start_line(err.decode("latin-1")).encode("latin-1")
        return self.process.returncode, out, err

    def beat_dirs(self) -> list[str]:
        """The remaining beat folders of this run."""
        try:
            named = self.state.get("beat_dir")
        except (OSError, ValueError):
            named = None
        found = {str(named)} if named else set()
        if self._pid is not None and self.mode == "subreaper":
            found |= {str(path) for path in Path("/dev/shm").glob(f"ftrun-beats-{os.getuid()}-{self._pid}-*")}
        return [path for path in found if os.path.exists(path)]


def afresh(then: Callable[[], object] | None = None) -> Callable[[], None]:
    """A `preexec_fn` that resets every signal (`&` in a script ignores SIGINT and SIGQUIT), and then calls `then`."""

    def prepare() -> None:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if then is not None:
            then()

    return prepare


class Starter:
    """Starts runs for one test, and ends what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.runs: list[Run] = []
        self._numbers = count()
        self._terminals: list[Terminal] = []

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment without variables of an outer ftrun; TMPDIR is the folder of the test."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "SLURM_", "PYTHON"))}
        return plain | {"TMPDIR": str(self.folder), MARK: self.mark} | dict(more or {})

    def __call__(
        self,
        *command: str | bytes,
        mode: Mode = "subreaper",
        options: Sequence[str] = (),
        tty: bool | Terminal = False,
        env: Mapping[str, str] | None = None,
        environment: Mapping[Any, Any] | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = subprocess.PIPE,
        stderr: int | IO[Any] = subprocess.PIPE,
        above: Sequence[str] = (),
        before: Callable[[], object] | None = None,
        pass_fds: Sequence[int] = (),
        run_dir: Path | None = None,
        grace: str = "2s",
    ) -> Run:
        """Start ftrun on `command`.  `tty`: as leader of a session of its own with that terminal on 0-2.  `above`: a
        program that starts ftrun.  `before` is called between fork and exec."""
        if mode == "pid1":
            need_pid1()
        run_dir = run_dir or self.folder / f"run-{next(self._numbers)}"
        words: list[str | bytes] = [*above, *FTRUN, "--run-dir", str(run_dir), "--grace", grace]
        words += [*options, "--", *command]
        terminal: Terminal | None = None
        if tty:
            terminal = tty if isinstance(tty, Terminal) else self.new_terminal()
            stdin = stdout = stderr = terminal.slave
            words = ["setsid", "--ctty", *words]
        process = subprocess.Popen(
            [*(NAMESPACE if mode == "pid1" else ()), *words],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=dict(environment) if environment is not None else self.environment(env),
            preexec_fn=afresh(before),
            pass_fds=pass_fds,
            # `setsid` makes the session where there is a terminal; it must not be a group's leader before.
            start_new_session=not tty,
        )
        run = Run(process, run_dir, mode, terminal)
        self.runs.append(run)
        return run

    def adopt(self, process: "subprocess.Popen[bytes]", run_dir: Path, terminal: Terminal) -> Run:
        """Register a shell in which an ftrun with this run dir will be started."""
        self.runs.append(Run(process, run_dir, "subreaper", terminal))
        return self.runs[-1]

    def living(self) -> list[int]:
        """Processes of this test that still run."""
        return carrying(f"{MARK}={self.mark}")

    def new_terminal(self) -> Terminal:
        self._terminals.append(Terminal())
        return self._terminals[-1]

    def close(self) -> None:
        """End remaining processes, by pid; AssertionError if there was one."""
        running = [run for run in self.runs if run.process.poll() is None]
        for run in running:
            with contextlib.suppress(AssertionError, OSError):
                os.kill(run.pid, signal.SIGTERM)
        for run in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(DYING)
        until = time.monotonic() + DYING
        while (left := [f"{pid} {command_line(pid)!r}" for pid in self.living()]) and time.monotonic() < until:
            time.sleep(0.05)

        end_all(self.living)
        for run in self.runs:
            run.process.wait(DEADLINE)
            for stream in (run.process.stdin, run.process.stdout, run.process.stderr):
                if stream is not None:
                    stream.close()
        folders = [folder for run in self.runs for folder in run.beat_dirs()]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        for terminal in self._terminals:
            terminal.close()
        assert not left, f"still running at the end of the test: {left}"
        assert not folders, f"beat folders left: {folders}"


# --- a command that records its signals -------------------------------------------------------------------------------

# Writes the number of every signal that it receives; they are blocked and taken one by one, so that none is lost.
# Ends after SIGTERM.  With a second argument a child does the same.
RECORDER = """
import os, signal, sys
path = sys.argv[1]
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGCHLD})
if len(sys.argv) > 2 and os.fork() == 0:
    path = sys.argv[2]
log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(log, b"ready\\n")
while True:
    number = signal.sigwaitinfo(signal.valid_signals() - {signal.SIGCHLD}).si_signo
    os.write(log, b"%d\\n" % number)
    if number == signal.SIGTERM:
        os._exit(0)
"""


class Recorder:
    """The command that records its signals."""

    def __init__(self, folder: Path) -> None:
        self.path, self.of_child = folder / "signals", folder / "signals-of-child"
        self.alone = (*PYTHON, "-c", RECORDER, str(self.path))
        self.with_child = (*self.alone, str(self.of_child))

    @staticmethod
    def _read(path: Path) -> list[int] | None:
        words = path.read_text().split("\n")[:-1] if path.exists() else []
        return [int(word) for word in words[1:]] if words else None

    def ready(self) -> None:
        wait_for(lambda: self._read(self.path) is not None, "the recorder")

    def got(self, number: int, of_child: bool = False) -> list[int]:
        """All signals so far, once there are `number`."""
        path = self.of_child if of_child else self.path

        def look() -> bool:
            found = self._read(path)
            if found is None or len(found) < number:
                raise LookupError(f"it has {found}")
            return True

        wait_for(look, f"{number} signals")
        return self._read(path) or []


MODES = ("subreaper", pytest.param("pid1", marks=pytest.mark.pid1))
SLOW = pytest.mark.slow


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """ftrun runs as subreaper, and as a real PID 1.  `either`: as PID 1 where that is permitted."""
    if request.param == "pid1":
        need_pid1()
    if request.param == "either":
        return "pid1" if permitted(*PID1) else "subreaper"
    return "pid1" if request.param == "pid1" else "subreaper"


# Where the kernel makes no difference between the two, the gate tries one.
either = pytest.mark.parametrize("mode", ["either", pytest.param("subreaper", marks=SLOW)], indirect=True)
# With a terminal and without one, which is `tty`: the gate tries each way once.
on_a_terminal_or_not = pytest.mark.parametrize(
    ("mode", "tty"),
    [
        pytest.param("subreaper", True, id="subreaper-tty"),
        pytest.param("pid1", False, id="pid1-plain", marks=pytest.mark.pid1),
        pytest.param("subreaper", False, id="subreaper-plain", marks=SLOW),
        pytest.param("pid1", True, id="pid1-tty", marks=[pytest.mark.pid1, SLOW]),
    ],
    indirect=["mode"],
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    try:
        yield starter
    finally:
        starter.close()


def fill(pipe: int) -> None:
    """Write to a pipe until it is full."""
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x")
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)
