"""Helpers: programs of ours beside the command.  Each may block, die or be killed without harm to the job.

A helper is one of the packages `ftrun.helpers.*`, run in a process of its own.  It says one JSON object a line on its
stdout, and ends when its stdin does (two pipes, or a pair of sockets).  One that dies is started again, later each
time.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from ftrun.host import spawn
from ftrun.messages.helpers import LINE_LIMIT

FIRST_DELAY: Final = 1.0  # s before it is started again; doubles up to
LONGEST_DELAY: Final = 60.0
PROMPT_DELAYS: Final = (0.05, 1.0)  # s; the same for one that the command, or others, may be waiting for
WELL: Final = 300.0  # s of life after which the next death is a first one again
STOPS: Final = 100  # of one process: it is replaced then, so that a loop that stops its pid does not occupy PID 1
SLICE: Final = 100  # ms of a wait at the very end, between two looks whether it was stopped
READ: Final = 65536  # bytes a turn
Line = bytes | None  # what a helper says; None: one that was to run once has ended
# Isolated from the user's PYTHONPATH and working directory: what is not installed is found where we are.
CODE: Final = """import sys
sys.path[:0] = sys.argv[1].split("\\n")
from ftrun.helpers.{name}.__main__ import main
sys.exit(main(sys.argv[2:]))"""


class Helper:
    """One program that is to run: always, or `once`."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        once: bool,
        silence: float | None,
        passed: Sequence[int],
        lasting: bool,
        paired: bool,
        prompt: bool,
    ) -> None:
        self.name, self.words, self.once, self.silence = name, words, once, silence
        self.passed, self.lasting, self.paired = passed, lasting, paired
        self.pid = 0
        self.pipes: tuple[int, int] | None = None  # what it says; what it is told, and ends with us
        self.rest = b""
        self.first, self.longest = PROMPT_DELAYS if lasting or prompt else (FIRST_DELAY, LONGEST_DELAY)
        self.delay = self.first
        self.heard_at = self.started_at = 0.0
        self.stops = 0
        self.due: float | None = 0.0  # to be started; None: it runs, or is not wanted any more


class Helpers:
    """All of them.  `problems` are for a person: the helper's name, and one line."""

    def __init__(self, poll: select.poll, log: int) -> None:
        self._poll, self._log = poll, log
        self._all: list[Helper] = []
        self._last_words: list[tuple[str, Line]] = []
        self.problems: list[tuple[str, str]] = []

    def add(
        self,
        name: str,
        *words: str,
        once: bool = False,
        silence: float | None = None,
        passed: Sequence[int] = (),
        lasting: bool = False,
        paired: bool = False,
        prompt: bool = False,
        delay: float = 0.0,
    ) -> None:
        """Run `ftrun.helpers.<name>` with these arguments from the next `supervise` on; a running one is ended.

        `silence`: saying nothing for so many seconds, it is stuck: it is killed and started again.
        `passed`: descriptors of ours that it has from 3 on.  `lasting`: it ends by itself, after its stdin.
        `paired`: one descriptor of ours, for both directions.  `prompt`: if it dies, it is started again at once.
        `delay`: seconds before it is started at all.
        """
        self.remove(name)
        self._all.append(Helper(name, words, once, silence, passed, lasting, paired, prompt))
        if delay:
            self._all[-1].due = time.monotonic() + delay

    def remove(self, name: str) -> None:
        """It is not wanted any more."""
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
        """When one has to be started, or has been silent for too long."""
        silent = [h.heard_at + h.silence for h in self._all if h.pipes is not None and h.silence is not None]
        return min([h.due for h in self._all if h.due is not None] + silent, default=None)

    def supervise(self, now: float) -> list[int]:
        """Start those that are due, kill those that are stuck; the pids of the new ones."""
        for helper in self._all:
            if helper.pipes is not None and helper.silence is not None and now >= helper.heard_at + helper.silence:
                if helper.delay == helper.first:
                    self.problems.append((helper.name, f"silent for {now - helper.heard_at:.0f} s: killed"))
                self._stop(helper)  # started again when it is reaped, which may take as long as its driver likes
        due = [helper for helper in self._all if helper.due is not None and helper.due <= now]
        return [helper.pid for helper in due if self._start(helper, now)]

    def send(self, name: str, line: bytes) -> None:
        """Say a whole line to one that runs; lost where it does not listen.  One that was told half of it is ended."""
        for helper in self._all:
            if helper.name == name and helper.pipes is not None:
                try:
                    whole = os.write(helper.pipes[1], line) == len(line)
                except OSError:
                    continue
                if not whole:
                    self._stop(helper)

    def read_lines(self, ready: set[int], now: float) -> list[tuple[str, Line]]:
        """What those whose pipes are ready said: the helper's name and each line.  Bounded a turn."""
        found, self._last_words = self._last_words, []
        for helper in self._all:
            if helper.pipes is not None and helper.pipes[0] in ready:
                found += self._read(helper, now)
        return found

    def child_ended(self, pid: int, now: float, well: bool = False) -> None:
        """This child was reaped: a helper comes again, unless it was to run once, or ended `well`: it has said why."""
        for helper in [h for h in self._all if h.pid == pid]:
            helper.pid = 0  # may be somebody else's from now on
            if helper.pipes is not None:
                self._last_words += self._read(helper, now)
            self._stop(helper)
            if helper.once:
                self._all.remove(helper)
                self._last_words.append((helper.name, None))
            elif well:
                self._all.remove(helper)
            else:
                self._later(helper, now, "it ended")

    def child_stopped(self, pid: int) -> None:
        """This child was stopped (SIGSTOP): a helper goes on at once, since the command may be waiting for it."""
        for helper in [h for h in self._all if h.pid == pid]:
            helper.stops += 1
            if helper.stops in (1, STOPS) and helper.delay == helper.first:
                what = "stopped by a signal: continued" if helper.stops == 1 else f"stopped {STOPS} times: killed"
                self.problems.append((helper.name, what))
            if helper.stops < STOPS:
                os.kill(pid, signal.SIGCONT)
            else:
                self._stop(helper)  # started again when it is reaped

    def finish(self, name: str, seconds: float) -> bool:
        """For the very end, since it waits: let a lasting one do what is left to do; whether it has within so long.

        One that dies over it is started again, one that needs longer is left alone.
        """
        until = time.monotonic() + seconds
        return all(self._finished(helper, until) for helper in self._all if helper.name == name)

    def close(self) -> None:
        for helper in self._all:
            pid = helper.pid
            self._stop(helper, kill=not helper.lasting)
            if pid:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass

    def _start(self, helper: Helper, now: float) -> bool:
        helper.due, helper.started_at, helper.heard_at, helper.rest, helper.stops = None, now, now, b"", 0
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        hooks = os.path.dirname(os.path.dirname(os.path.abspath(sys.modules["ftrun_hooks"].__file__ or "")))
        command = [sys.executable, "-I", "-c", CODE.format(name=helper.name), f"{package}\n{hooks}", *helper.words]
        try:
            helper.pid, *pipes = spawn.spawn_helper(command, self._log, helper.passed, helper.lasting, helper.paired)
        except OSError as error:
            self._later(helper, now, str(error.strerror))
            return False
        helper.pipes = pipes[0], pipes[1]
        self._poll.register(pipes[0], select.POLLIN)
        return True

    def _finished(self, helper: Helper, until: float) -> bool:
        while (now := time.monotonic()) < until:
            if not helper.pid and not self._start(helper, now):
                return False
            if helper.pipes is not None:
                self._hear_out(helper, until)
            status = _reaped(helper.pid, until)
            if status is None:
                return False
            helper.pid = 0
            if status == 0:
                helper.due = None
                return True
        return False

    def _hear_out(self, helper: Helper, until: float) -> None:
        """End its stdin, and wait for the end of what it says."""
        assert helper.pipes is not None
        (output, told), helper.pipes = helper.pipes, None
        self._poll.unregister(output)
        os.close(told)
        poll = select.poll()
        poll.register(output, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            if not poll.poll(min(SLICE, 1000 * left)):
                _keep_going(helper.pid)
            elif not os.read(output, READ):
                break
        os.close(output)

    def _read(self, helper: Helper, now: float) -> list[tuple[str, Line]]:
        assert helper.pipes is not None
        try:
            content = os.read(helper.pipes[0], READ)
        except BlockingIOError:
            return []
        except OSError:  # a socket whose other end died with something unread
            content = b""
        helper.heard_at = now
        *lines, helper.rest = (helper.rest + content).split(b"\n")
        if not content or len(helper.rest) > LINE_LIMIT:
            self._stop(helper)  # its end is seen when it is reaped
        return [(helper.name, line) for line in lines]

    def _later(self, helper: Helper, now: float, why: str) -> None:
        if now - helper.started_at > WELL:
            helper.delay = helper.first
        if helper.delay == helper.first:
            self.problems.append((helper.name, f"{why}; it is started again"))
        helper.due = now + helper.delay
        helper.delay = min(2 * helper.delay, helper.longest)

    def _stop(self, helper: Helper, kill: bool = True) -> None:
        if helper.pipes is not None:
            self._poll.unregister(helper.pipes[0])
            for end in set(helper.pipes):
                os.close(end)
            helper.pipes = None
        if helper.pid and kill:
            try:
                os.kill(helper.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # reaped by whoever gives everything up


def _reaped(pid: int, until: float) -> int | None:
    """Its status, as `waitpid` has it; None: it still runs, or cannot die."""
    while True:
        try:
            _keep_going(pid)
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return -1
        if reaped:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(0.002)


def _keep_going(pid: int) -> None:
    """Continue this child where it was stopped."""
    try:
        if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None:
            os.kill(pid, signal.SIGCONT)
    except ChildProcessError:
        pass  # it has been reaped
