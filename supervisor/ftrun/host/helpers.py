"""Runs helpers: programs of ftrun beside the command.  Each may block, die or be killed without harm to the job.

A helper is the `program` of one of the packages `ftrun.helpers.*`, in a process of its own.  It writes one JSON object
per line to its stdout, and ends when its stdin is closed (two pipes, or a pair of sockets).  A helper that dies is
started again, after a delay that grows each time.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ftrun.host import spawn
from ftrun.host.signals import writing
from ftrun.messages.helpers import LINE_LIMIT

FIRST_DELAY: Final = 1.0  # s before a helper is started again; doubles up to LONGEST_DELAY
LONGEST_DELAY: Final = 60.0
PROMPT_DELAYS: Final = (0.05, 1.0)  # s; the same for a helper that the command, or another process, may be waiting for
STABLE_AFTER: Final = 300.0  # s of life after which the delay starts from its first value again
# Of one process, which is then replaced, so that a loop that stops its pid cannot keep PID 1 busy.
MAX_STOPS: Final = 100
SLICE: Final = 100  # ms between two checks for a stopped helper, while `finish` waits
READ: Final = 65536  # bytes per call
HelperLine = bytes | None  # a line of a helper's output; None: a helper that was to run once has ended
# Isolated from the user's PYTHONPATH and working directory: packages that are not installed are found next to ftrun.
CODE: Final = """import sys
sys.path[:0] = sys.argv[1].split("\\n")
from ftrun.helpers.{name} import main
sys.exit(main(sys.argv[2:]))"""


class Helper:
    """One program that runs all the time, or `once`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        once: bool,
        silence: float | None,
        passed: Sequence[int],
        lasting: bool,
        paired: bool,
        prompt: bool,
        expendable: bool,
    ) -> None:
        self.name, self.arguments, self.once, self.silence = name, arguments, once, silence
        self.passed, self.lasting, self.paired, self.expendable = passed, lasting, paired, expendable
        self.pid = 0
        self.pipes: tuple[int, int] | None = None  # its output; its input, which the kernel closes when ftrun dies
        self.rest = b""
        self.first, self.longest = PROMPT_DELAYS if lasting or prompt else (FIRST_DELAY, LONGEST_DELAY)
        self.delay = self.first
        self.last_output_at = self.started_at = 0.0
        self.stops = 0
        self.due: float | None = 0.0  # when to start it; None: it runs, or will not be started again


class Helpers:
    """All helpers.  `problems` are for the user: the helper's name, and one line."""

    def __init__(self, poll: select.poll, log: int) -> None:
        self._poll, self._log = poll, log
        self._all: list[Helper] = []
        self._final_lines: list[tuple[str, HelperLine]] = []
        self.problems: list[tuple[str, str]] = []

    def add(
        self,
        name: str,
        *arguments: str,
        once: bool = False,
        silence: float | None = None,
        passed: Sequence[int] = (),
        lasting: bool = False,
        paired: bool = False,
        prompt: bool = False,
        delay: float = 0.0,
        expendable: bool = False,
    ) -> None:
        """Run `ftrun.helpers.<name>` with these arguments from the next `supervise` on; a helper of that name that
        already runs is ended.

        `silence`: a helper that writes nothing for so many seconds is stuck: it is killed and started again.  `passed`:
        descriptors of ftrun that the helper gets as 3 and up.  `lasting`: it is not killed, but ends by itself after
        its stdin is closed.  `paired`: ftrun uses one descriptor for both directions.  `prompt`: if it dies, it is
        started again at once.  `delay`: seconds before its first start.  `expendable`: as in `spawn.spawn_helper`.
        """
        self.remove(name)
        self._all.append(Helper(name, arguments, once, silence, passed, lasting, paired, prompt, expendable))
        if delay:
            self._all[-1].due = time.monotonic() + delay

    def pass_next(self, name: str, *arguments: str) -> None:
        """Replace the arguments with which a helper is started again if it dies."""
        for helper in self._all:
            if helper.name == name:
                helper.arguments = arguments

    def start(self, name: str) -> None:
        """Start a helper now that does not run: it was not due yet, or has died."""
        for helper in self._all:
            if helper.name == name and not helper.pid:
                self._start(helper, time.monotonic())

    def remove(self, name: str) -> None:
        """End a helper and do not start it again."""
        for helper in [h for h in self._all if h.name == name]:
            self._all.remove(helper)
            self._stop(helper, kill=not helper.lasting)

    def is_running(self, name: str) -> bool:
        return any(helper.name == name and helper.pipes is not None for helper in self._all)

    @property
    def pids(self) -> list[int]:
        return [helper.pid for helper in self._all if helper.pid]

    @property
    def deadline(self) -> float | None:
        """When the next helper must be started, or has been silent for too long."""
        silent = [h.last_output_at + h.silence for h in self._all if h.pipes is not None and h.silence is not None]
        return min([h.due for h in self._all if h.due is not None] + silent, default=None)

    def supervise(self, now: float) -> list[int]:
        """Start the helpers that are due and kill those that are stuck; return the pids of the new processes."""
        for helper in self._all:
            if (
                helper.pipes is not None
                and helper.silence is not None
                and now >= helper.last_output_at + helper.silence
            ):
                if helper.delay == helper.first:
                    self.problems.append(
                        (helper.name, f"wrote nothing for {now - helper.last_output_at:.0f} s; ftrun killed it")
                    )
                self._stop(helper)  # it is started again when it is reaped; a driver call may delay that without limit
        due = [helper for helper in self._all if helper.due is not None and helper.due <= now]
        return [helper.pid for helper in due if self._start(helper, now)]

    def send(self, name: str, line: bytes) -> None:
        """Send a line to a helper.  The line is lost if the helper does not run or does not read; a helper that
        received only a part of it is ended."""
        for helper in self._all:
            if helper.name == name and helper.pipes is not None:
                try:
                    with writing():  # it may have died since: its SIGPIPE is not for the command
                        complete = os.write(helper.pipes[1], line) == len(line)
                except OSError:
                    continue
                if not complete:
                    self._stop(helper)

    def read_lines(self, ready: set[int], now: float) -> list[tuple[str, HelperLine]]:
        """Read from the helpers whose pipes are ready; return the helper's name with each line.  The amount per call is
        bounded."""
        lines, self._final_lines = self._final_lines, []
        for helper in self._all:
            if helper.pipes is not None and helper.pipes[0] in ready:
                lines += self._read(helper, now)
        return lines

    def child_ended(self, pid: int, now: float, well: bool = False) -> None:
        """A child was reaped: if it is a helper it is started again, unless it was to run once, or ended `well` after
        reporting why."""
        for helper in [h for h in self._all if h.pid == pid]:
            helper.pid = 0  # another process may get this pid from now on
            if helper.pipes is not None:
                self._final_lines += self._read(helper, now)
            self._stop(helper)
            if helper.once:
                self._all.remove(helper)
                self._final_lines.append((helper.name, None))
            elif well:
                self._all.remove(helper)
            else:
                self._schedule_restart(helper, now, "it exited")

    def child_stopped(self, pid: int) -> None:
        """A child was stopped (SIGSTOP): a helper is continued at once, since the command may be waiting for it."""
        for helper in [h for h in self._all if h.pid == pid]:
            helper.stops += 1
            if helper.stops in (1, MAX_STOPS) and helper.delay == helper.first:
                action = (
                    "was stopped by a signal; ftrun continued it"
                    if helper.stops == 1
                    else f"was stopped {MAX_STOPS} times; ftrun killed it"
                )
                self.problems.append((helper.name, action))
            if helper.stops < MAX_STOPS:
                with suppress(ProcessLookupError):  # it was killed after that, and reaped
                    os.kill(pid, signal.SIGCONT)
            else:
                self._stop(helper)  # started again when it is reaped

    def finish(self, name: str, seconds: float) -> bool:
        """Let a lasting helper complete its work; return whether it did so within `seconds`.  It blocks, so it is for
        the very end.

        A helper that dies meanwhile is started again; one that needs longer is left running.  `read_lines` then returns
        what the helper wrote meanwhile.
        """
        until = time.monotonic() + seconds
        return all(self._finished(helper, until) for helper in self._all if helper.name == name)

    def close(self) -> None:
        for helper in self._all:
            pid = helper.pid
            self._stop(helper, kill=not helper.lasting)
            if pid:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _start(self, helper: Helper, now: float) -> bool:
        helper.due, helper.started_at, helper.last_output_at, helper.rest, helper.stops = None, now, now, b"", 0
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        hooks = os.path.dirname(os.path.abspath(sys.modules["ftrun_hooks"].__path__[0]))
        code = CODE.format(name=f"{helper.name}.program")
        command = [sys.executable, "-I", "-c", code, f"{package}\n{hooks}", *helper.arguments]
        try:
            kinds = helper.lasting, helper.paired, helper.expendable
            helper.pid, *pipes = spawn.spawn_helper(command, self._log, helper.passed, *kinds)
        except OSError as error:
            self._schedule_restart(helper, now, str(error.strerror))
            return False
        helper.pipes = pipes[0], pipes[1]
        self._poll.register(pipes[0], select.POLLIN)
        return True

    def _finished(self, helper: Helper, until: float) -> bool:
        while (now := time.monotonic()) < until:
            if not helper.pid and not self._start(helper, now):
                return False
            if helper.pipes is not None:
                self._drain_output(helper, until)
            status = _reaped(helper.pid, until)
            if status is None:
                return False
            helper.pid = 0
            if status == 0:
                helper.due = None
                return True
        return False

    def _drain_output(self, helper: Helper, until: float) -> None:
        """Close its stdin, and wait for the end of its output."""
        assert helper.pipes is not None
        (output, input_fd), helper.pipes = helper.pipes, None
        self._poll.unregister(output)
        os.close(input_fd)
        poll = select.poll()
        poll.register(output, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            if not poll.poll(min(SLICE, 1000 * left)):
                _continue_if_stopped(helper.pid)
            elif content := os.read(output, READ):
                *lines, helper.rest = (helper.rest + content).split(b"\n")
                helper.rest = helper.rest[:LINE_LIMIT]
                self._final_lines += [(helper.name, line) for line in lines]
            else:
                break
        os.close(output)

    def _read(self, helper: Helper, now: float) -> list[tuple[str, HelperLine]]:
        assert helper.pipes is not None
        try:
            content = os.read(helper.pipes[0], READ)
        except BlockingIOError:
            return []
        except OSError:  # a socket whose other end died with unread data
            content = b""
        helper.last_output_at = now
        *lines, helper.rest = (helper.rest + content).split(b"\n")
        if not content or len(helper.rest) > LINE_LIMIT:
            self._stop(helper)  # the rest follows when it is reaped
        return [(helper.name, line) for line in lines]

    def _schedule_restart(self, helper: Helper, now: float, why: str) -> None:
        if now - helper.started_at > STABLE_AFTER:
            helper.delay = helper.first
        if helper.delay == helper.first:
            self.problems.append((helper.name, f"{why}; ftrun restarts it"))
        helper.due = now + helper.delay
        helper.delay = min(2 * helper.delay, helper.longest)

    def _stop(self, helper: Helper, kill: bool = True) -> None:
        if helper.pipes is not None:
            self._poll.unregister(helper.pipes[0])
            for end in set(helper.pipes):
                os.close(end)
            helper.pipes = None
        if helper.pid and kill:
            with suppress(ProcessLookupError):  # already reaped, as ftrun is giving up
                os.kill(helper.pid, signal.SIGKILL)


def _reaped(pid: int, until: float) -> int | None:
    """Its status, as `waitpid` has it; None: it still runs, or cannot die."""
    while True:
        try:
            _continue_if_stopped(pid)
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return -1
        if reaped:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(0.002)


def _continue_if_stopped(pid: int) -> None:
    """Continue this child if it was stopped."""
    with suppress(ChildProcessError):  # it has been reaped
        if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None:
            os.kill(pid, signal.SIGCONT)
