"""The run dir: records are on disk before ftrun acts on them.

Disk errors never reach the job: the first one is kept in `problem` for the user, and the job continues.
"""

import errno
import fcntl
import os
import time

from ftrun.core.machine.values import Ledger
from ftrun.host import clock, safe_files
from ftrun.host.signals import writing
from ftrun.messages import records, state


class RunDirError(Exception):
    """One line: why this folder cannot be the run dir."""


class Journal:
    """Opens `path` for this ftrun alone.  Raises RunDirError if it cannot be written or another ftrun uses it.
    `log_fd`: the descriptor of `run.log`, which also receives the stderr of helpers."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem: str | None = None
        self._saved: bytes = b""
        self._pending: list[bytes] = []
        self._torn = False  # the last record was written only in part
        try:
            os.makedirs(path, 0o700, exist_ok=True)
            self._dir = safe_files.open_trusting_own_links(path, os.O_RDONLY | os.O_DIRECTORY)
            self._events = safe_files.open_append("events.jsonl", self._dir)
            self.log_fd = safe_files.open_append("run.log", self._dir)
        except OSError as error:
            raise RunDirError(f"run dir {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._events, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirError(f"run dir {path}: another ftrun works in it") from None
        except OSError as error:
            raise RunDirError(f"run dir {path}: its records cannot be locked (flock: {error.strerror})") from None
        # A killed ftrun may have left an incomplete line: the next record starts on a new line.
        size = os.fstat(self._events).st_size
        if size and os.pread(self._events, 1, size - 1) != b"\n":
            self._write(self._events, b"\n")

    @property
    def is_deleted(self) -> bool:
        """Whether somebody deleted the records while this ftrun works here."""
        return os.fstat(self._events).st_nlink == 0

    def load(self) -> tuple[Ledger, dict[str, object]] | None:
        """Return the state of an earlier ftrun in this run dir.  A state that is corrupt, or that another user may have
        written, is renamed and reported in `problem`: it names processes that ftrun would end."""
        try:
            content = safe_files.read("state.json", state.LIMIT, self._dir)
            return None if content is None else state.load_state(content)
        except ValueError as error:
            aside = f"state.json.corrupt-{time.time_ns()}"
            try:
                os.rename("state.json", aside, src_dir_fd=self._dir, dst_dir_fd=self._dir)
            except OSError:
                aside = "it is"  # another user's file, in a folder with the sticky bit
            self.problem = (
                f"{self.path}/state.json is corrupt ({error}); kept as {aside}; all counts start again from zero"
            )
            return None

    def record(self, event: str, attempt: int, fields: tuple[tuple[str, object], ...], durable: bool) -> str:
        """Append one record at the next `barrier`; `durable`: it is on disk when this returns.  Returns its time
        stamp."""
        stamp = clock.timestamp()
        self._pending.append(records.line(stamp, time.monotonic(), event, attempt, fields))
        if durable:
            self.barrier()
            try:
                os.fsync(self._events)
            except OSError as error:
                self._failed("records", error)
        return stamp

    def barrier(self) -> None:
        """All records so far are in the file when this returns, written in one call: called before each effect."""
        if self._pending:
            content, self._pending = b"".join(self._pending), []
            self._torn = not self._write(self._events, b"\n" + content if self._torn else content)

    def save(self, ledger: Ledger, extra: dict[str, object], durable: bool) -> None:
        """Replace `state.json` atomically, if anything in it changed."""
        content = state.dump_state(ledger, extra)
        if content == self._saved and not durable:
            return
        try:
            safe_files.replace("state.json", content, durable=durable, folder=self._dir)
            if durable:
                os.fsync(self._dir)
            self._saved = content
        except OSError as error:
            self._failed("state.json", error)

    def log(self, text: str) -> None:
        """Write a line for the user, with the time, to `run.log`, after the records that belong to it."""
        self.barrier()
        self._write(self.log_fd, f"{clock.timestamp()} {text}\n".encode("utf-8", "backslashreplace"))

    def _write(self, fd: int, content: bytes) -> bool:
        """Return whether the file ends with a complete line: all of it was written, or nothing."""
        try:
            with writing():
                written = os.write(fd, content)
        except OSError as error:
            self._failed("records", error)
            return True
        if written < len(content):
            self._failed("records", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return written == len(content)

    def close(self) -> None:
        """Release the lock: another ftrun may use the folder from here on."""
        for fd in (self._events, self.log_fd, self._dir):
            os.close(fd)

    def _failed(self, what: str, error: OSError) -> None:
        if self.problem is None:
            self.problem = f"{what} in {self.path} cannot be written ({error.strerror}); the job continues without it"


def write_message(path: str, content: bytes) -> str | None:
    """Write the termination message in place and never by rename: the file is bind-mounted (Kubernetes).  Returns why
    it could not be written."""
    try:
        fd = safe_files.open_trusting_own_links(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
        with writing():
            os.write(fd, content)
        os.close(fd)
    except OSError as error:
        return error.strerror
    return None
