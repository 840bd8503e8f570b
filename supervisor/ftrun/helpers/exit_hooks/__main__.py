"""Does what is to be done at the end of the container: `python -m ftrun.helpers.exit_hooks JSON`, started by PID 1.

The one word is a `Work` (messages/exit_hooks.py): the commands are run one after another by `sh -c`, each in a session
of its own with its output on stderr, then the paths are unmounted by `umount`.  `Parted` is the last that it says.  It
comes when all is done, or after the grace, or when stdin ends: what is `late` then goes on without being waited
for.  The command that runs is left to itself, the others are started beside it, and the paths are unmounted lazily
(`umount -l`: gone from the tree of files at once, for good with their last user); `pids` are the processes that go
on.  A path that is busy is tried for BUSY seconds, then unmounted lazily: with the training ended its users may be
ourselves.  It ends with 0, or with 1 after a `problem`.
"""

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ftrun.helpers.heal.children import LOG, Children, why
from ftrun.helpers.lines import Lines, run
from ftrun.messages.codec import EXACT
from ftrun.messages.exit_hooks import EVENTS, Failed, Parted, Work

BUSY: Final = 10.0  # s
AGAIN: Final = 0.2  # s between tries
LAZY: Final = 2.0  # s for all `umount -l` together: they ask no disk, but find their way through the tree of files
COMPLAINT: Final = 300  # bytes


def main(argv: Sequence[str]) -> int:
    return run(partial(_run, argv), EVENTS)


def _run(argv: Sequence[str], lines: Lines) -> None:
    ExitHooks(EXACT.load(Work, argv[0]), lines).run()


class ExitHooks:
    def __init__(self, work: Work, lines: Lines) -> None:
        self._work, self._lines = work, lines
        self._children = Children(lines)
        self._until = None if work.grace is None else time.monotonic() + work.grace
        self._late: list[str] = []
        self._failed: list[Failed] = []
        self._left: list[int] = []  # pids

    def run(self) -> None:
        for command in self._work.commands:
            self._command(command)
        lazily = [path for path in self._work.unmount if not self._unmount(path)]
        self._late += [f"umount {path}" for path in lazily]
        self._unmount_lazily(lazily)
        self._lines.say(Parted(tuple(self._late), tuple(self._failed), tuple(self._left)))

    @property
    def _over(self) -> bool:
        return self._lines.ended or (self._until is not None and time.monotonic() >= self._until)

    def _command(self, command: str) -> None:
        """Started in any case, and waited for while there is time."""
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
        """Whether it is settled: done, or failed for good."""
        what, patience = f"umount {path}", time.monotonic() + BUSY
        while not self._over:
            complaint = os.memfd_create("complaint", os.MFD_CLOEXEC)
            try:
                pid = self._start(what, ["umount", "--", path], complaint)
                if pid is None:
                    return True
                code = self._children.wait(pid, self._until)
                failure = os.pread(complaint, COMPLAINT, 0).decode(errors="replace").strip()
            finally:
                os.close(complaint)
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
            self._lines.pause(AGAIN)
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

    def _start(self, what: str, words: Sequence[str], output: int) -> int | None:
        try:
            return self._children.start(words, {"LC_ALL": "C"} if words[0] == "umount" else {}, output)
        except (OSError, ValueError) as error:
            self._fail(what, str(error))
            return None

    def _fail(self, what: str, failure: str) -> None:
        self._failed.append(Failed(what, failure))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
