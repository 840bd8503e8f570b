"""What acts from outside on a healthy job, where a process with a few lines (waits/*.txt) cannot: it types, stops
all of its processes, attaches to it.

Each is a generator of a `Stage`.  It runs in three parts: before the job is started; once the program waits; and after
the seconds for which the program is to wait.
"""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path

from support.runs import Run, descendants

FREEZER = Path("/sys/fs/cgroup/freezer")
SHARE = 8192  # bytes a second


class Stage:
    """`run`, once it is started; `stdin` is the job's; what `at_end` has is done whatever happens."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.at_end = folder, contextlib.ExitStack()
        self.stdin: int = subprocess.DEVNULL
        self.run: Run | None = None

    @property
    def pid(self) -> int:
        """Of the program that waits."""
        return int((self.folder / "waits").read_text())

    def tree(self) -> list[int]:
        """All processes of the job."""
        return [self.pid, *descendants(self.pid)]

    def done(self) -> None:
        """The program that waits for the file `done` goes on."""
        (self.folder / "done").touch()

    def process(self, *command: str) -> subprocess.Popen[bytes]:
        """A process outside the job, for as long as the run lasts."""
        with (self.folder / "outside.log").open("ab") as log:
            started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.at_end.callback(started.wait)
        self.at_end.callback(started.kill)
        return started


Steps = Generator[None, None, None]
Actor = Callable[[Stage], Steps]


def nobody(stage: Stage) -> Steps:
    yield
    yield


def touches(stage: Stage) -> Steps:
    yield
    yield
    stage.done()


def types(stage: Stage) -> Steps:
    """The job's input is a pipe, into which somebody writes a line late."""
    stage.stdin, writer = os.pipe()
    yield
    os.close(stage.stdin)
    yield
    os.write(writer, b"go\n")
    os.close(writer)


def types_on_terminal(stage: Stage) -> Steps:
    master, stage.stdin = pty.openpty()
    yield
    os.close(stage.stdin)
    yield
    os.write(master, b"go\n")
    stage.at_end.callback(os.close, master)


def stops_all(stage: Stage) -> Steps:
    yield
    stopped = stage.tree()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    stage.done()


def stops_ftrun_too(stage: Stage) -> Steps:
    yield
    assert stage.run is not None
    stopped = [stage.run.pid, *descendants(stage.run.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in reversed(stopped):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    stage.done()


def freezes(stage: Stage) -> Steps:
    """The processes of the job, in a cgroup of their own."""
    group = FREEZER / f"ft-{os.getpid()}-{id(stage):x}"
    group.mkdir()
    stage.at_end.callback(_remove, group)
    yield
    for pid in stage.tree():
        (group / "cgroup.procs").write_text(str(pid))
    (group / "freezer.state").write_text("FROZEN")
    yield
    (group / "freezer.state").write_text("THAWED")
    stage.done()


def _remove(group: Path) -> None:
    (group / "freezer.state").write_text("THAWED")
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (FREEZER / "cgroup.procs").write_text(pid)
    group.rmdir()


def attaches_gdb(stage: Stage) -> Steps:
    """It stops the process at a breakpoint, as it were: it stays attached and lets nothing run."""
    yield
    debugger = stage.process(
        "gdb", "-q", "-nx", "-batch", "-p", str(stage.pid), "-ex", "python import time; time.sleep(9999)"
    )
    yield
    debugger.kill()  # the kernel continues what it traced
    debugger.wait()
    stage.done()


def attaches_strace(stage: Stage) -> Steps:
    yield
    tracer = stage.process("strace", "-f", "-qq", "-o", "/dev/null", "-p", str(stage.pid))
    yield
    tracer.terminate()
    tracer.wait()
    stage.done()


def profiles(stage: Stage) -> Steps:
    """py-spy stops the process each time."""
    yield
    profiler = Path(sys.executable).with_name("py-spy")
    loop = f"while {profiler} dump --pid {stage.pid} --locals; do sleep 0.3; done"
    again = stage.process("sh", "-c", loop)
    yield
    again.terminate()
    again.wait()
    stage.done()


def second_node(stage: Stage) -> Steps:
    """The second node of torchrun's rendezvous is started late, outside of ftrun."""
    yield
    yield
    command = (stage.folder / "command").read_text().splitlines()
    stage.process(*command)


def second_node_at_once(stage: Stage) -> Steps:
    """The same, but it is started at once, and comes late by itself."""
    yield
    stage.process(*(stage.folder / "command").read_text().splitlines())
    yield


def crowds(stage: Stage) -> Steps:
    """Ten processes compute, as far as nobody else on this machine wants to; the job competes with them."""
    yield
    code = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    for _ in range(10):
        stage.process(sys.executable, "-c", code)
    yield
    stage.done()


def slow_share(stage: Stage) -> Steps:
    """`folder/share`, by FUSE, takes SHARE bytes a second."""
    for name in ("disk", "share"):
        (stage.folder / name).mkdir()
    share = stage.folder / "share"
    server = stage.process("bindfs", "-f", f"--write-rate={SHARE}", str(stage.folder / "disk"), str(share))
    stage.at_end.callback(subprocess.run, ["fusermount", "-uz", str(share)], capture_output=True)
    while not os.path.ismount(share):
        assert server.poll() is None, "bindfs ended"
        threading.Event().wait(0.05)
    yield
    yield
