"""Runs the hooks at the end of the container: `exit_hooks JSON`, started by PID 1.

The argument is a `Work` (messages/exit_hooks.py).  The commands run one after another by `sh -c`, each in a session of
its own with its output on stderr; then the paths are unmounted by `umount`.  `HooksFinished` is the last message, sent
when all is done, after the grace period, or when stdin ends.  What is `late` by then is not waited for: the commands
continue side by side, and the paths are unmounted lazily (`umount -l`: the path disappears at once, the mount with its
last user).  So is a path that is busy for BUSY seconds: ftrun itself may be its user.
"""

import os
import time
from collections.abc import Sequence
from typing import Final

from ftrun.helpers.heal.children import LOG, Children, why
from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.messages.codec import EXACT
from ftrun.messages.exit_hooks import EVENTS, Failed, HooksFinished, Work

BUSY: Final = 10.0  # s
RETRY: Final = 0.2  # s between attempts
LAZY: Final = 2.0  # s for all `umount -l` together: they access no disk, but resolve the path
MAX_ERROR: Final = 300  # bytes of an error message


@helper(EVENTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    ExitHooks(EXACT.load(Work, argv[0]), lines).run()


class ExitHooks:
    def __init__(self, work: Work, lines: ProtocolLines) -> None:
        self._work, self._lines = work, lines
        self._children = Children(lines)
        self._until = None if work.grace is None else time.monotonic() + work.grace
        self._late: list[str] = []
        self._failed: list[Failed] = []
        self._left: list[int] = []  # pids

    def run(self) -> None:
        for command in self._work.commands:
            self._run_command(command)
        lazily = [path for path in self._work.unmount if not self._unmount(path)]
        self._late += [f"umount {path}" for path in lazily]
        self._unmount_lazily(lazily)
        self._lines.send(HooksFinished(tuple(self._late), tuple(self._failed), tuple(self._left)))

    @property
    def _out_of_time(self) -> bool:
        return self._lines.ended or (self._until is not None and time.monotonic() >= self._until)

    def _run_command(self, command: str) -> None:
        """Start the command in any case, and wait for it while there is time."""
        pid = self._start(command, ["sh", "-c", command], LOG)
        if pid is None:
            return
        code = self._children.wait(pid, self._until)
        if code is None:
            self._late.append(command)
            self._left.append(pid)
        elif failure := why(code):
            self._fail(command, failure)

    def _unmount(self, path: str) -> bool:
        """Whether the path needs no further attempt: it is unmounted, or failed for good."""
        what, patience = f"umount {path}", time.monotonic() + BUSY
        while not self._out_of_time:
            error_output = os.memfd_create("error_output", os.MFD_CLOEXEC)
            try:
                pid = self._start(what, ["umount", "--", path], error_output)
                if pid is None:
                    return True
                code = self._children.wait(pid, self._until)
                failure = os.pread(error_output, MAX_ERROR, 0).decode(errors="replace").strip()
            finally:
                os.close(error_output)
            if code is None:
                self._left.append(pid)
                return False
            if code == 0:
                return True
            if "busy" not in failure:
                self._fail(what, failure or why(code) or "")
                return True
            if time.monotonic() >= patience:
                return False
            self._lines.pause(RETRY)
        return False

    def _unmount_lazily(self, paths: Sequence[str]) -> None:
        until = time.monotonic() + LAZY
        started = [(path, self._start(f"umount -l {path}", ["umount", "-l", "--", path], LOG)) for path in paths]
        for path, pid in started:
            if pid is not None:
                code = self._children.wait(pid, until)
                if code is None:
                    self._left.append(pid)
                elif failure := why(code):
                    self._fail(f"umount -l {path}", failure)

    def _start(self, what: str, command: Sequence[str], output: int) -> int | None:
        try:
            variables = {"LC_ALL": "C"} if command[0] == "umount" else dict(self._work.variables)
            return self._children.start(command, variables, output)
        except (OSError, ValueError) as error:
            self._fail(what, str(error))
            return None

    def _fail(self, what: str, failure: str) -> None:
        self._failed.append(Failed(what, failure))
