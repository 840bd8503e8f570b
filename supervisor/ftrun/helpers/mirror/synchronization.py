"""Keeps a folder on a network disk equal to a local one.

`mirror.json`, in both folders, shows which ftrun writes there: its token changes with the right to write.  `base` in
the local one is the size that each remote file had when the local file of that name was started: 0 if it was fetched.
`before` is the previous remote token, until the new one is stored.
"""

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ftrun.helpers import shared_folder
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.mirror import files
from ftrun.host import inotify, mounts
from ftrun.host.work_dir import FETCHED, NOTHING, UNMADE, UNREAD

PERIOD: Final = 1.0  # s between copies of what has changed
PAUSE: Final = 0.1  # s at least between copies of new records, which should reach the disk soon
PATIENCE: Final = 10.0  # s without progress until the disk is reported
MAX_SIZE: Final = 64 << 20  # bytes of a file that ftrun does not write itself
RECORDS: Final = ("events.jsonl", "steps.jsonl", "run.log")  # ftrun only appends to them
OUTPUT: Final = re.compile(r"output(-\d+)?\.log")  # likewise, but only in a folder that ftrun created


class Synchronization:
    """A thread copies, and may block; the caller of `run` never blocks, and sends the messages."""

    def __init__(self, local: str, remote: str, read: str, *, make: Callable[[str], str], lines: ProtocolLines) -> None:
        self._local, self._remote, self._read, self._make, self._lines = local, remote, read, make, lines
        self._keeps_output = read == UNMADE
        self._ownership = files.load(local)
        self._lock, self._owned = -1, False
        self._mounted = mounts.is_network_volume(remote)
        self._copied: dict[str, tuple[int, int, int]] = {}
        self._waiting_since: float | None = None  # since when the disk has not responded; None: not in use
        self._problems: list[str] = []
        self._failed: BaseException | None = None
        self._ending, self._wake = threading.Event(), threading.Event()

    def run(self) -> None:
        """Copy until stdin has ended and everything is copied."""
        # Some platforms send SIGTERM to all processes of a job, and then the last changes must still be copied.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        thread = threading.Thread(target=self._work, daemon=True)  # a blocked thread does not prevent the exit
        thread.start()
        reported, changes = False, _changes(f"{self._local}/events.jsonl")
        while thread.is_alive():
            if self._lines.ended:
                self._ending.set()
                self._wake.set()
                thread.join(PERIOD)
            else:
                self._lines.requests(PERIOD, None if changes is None else changes.fd)
            if changes is not None and changes.read():
                self._wake.set()
            waiting_since = self._waiting_since
            if waiting_since is not None and time.monotonic() - waiting_since > PATIENCE and not reported:
                reported = True
                self._lines.problem(f"{self._remote} does not respond; until it does, the files are in {self._local}")
            elif waiting_since is None and reported:
                self._lines.problem(f"{self._remote} responds again")
                reported = False
            while self._problems:
                self._lines.problem(self._problems.pop(0))
        if self._failed is not None:
            raise self._failed

    def _work(self) -> None:
        try:
            self._copy_all()
        except Exception as error:
            self._failed = error

    def _copy_all(self) -> None:
        while True:
            last, complete = self._ending.is_set(), False
            self._mark_progress()
            try:
                complete = self._copy_changes(last)
            except OSError as error:
                self._problems.append(
                    f"{error.filename or self._remote}: {error.strerror}; the files are in {self._local}"
                )
            self._waiting_since = None
            if complete and last:
                return
            time.sleep(PAUSE)
            self._wake.wait(0 if last else PERIOD)
            self._wake.clear()

    def _mark_progress(self) -> None:
        self._waiting_since = time.monotonic()

    def _copy_changes(self, last: bool) -> bool:
        """Copy the changed files.  Returns whether all are copied.  Without changes the disk is not accessed."""
        if not os.path.isdir(self._local):
            self._problems.append(f"{self._local} has been removed: files that were not copied before are lost")
            return False
        if self._owned and not self._changed(last):
            return True
        if not self._take_over():
            return False
        complete = True
        for name in self._changed(last):
            try:
                self._copy(name, last)
            except FileNotFoundError:
                complete = complete and not os.path.exists(f"{self._local}/{name}")  # it has just been removed
            except OSError as error:
                complete = False
                self._problems.append(f"{self._remote}/{name}: {error.strerror}; the files are in {self._local}")
            self._mark_progress()
        return complete

    def _changed(self, last: bool) -> list[str]:
        """The changed files, as relative paths, without temporary files and those of this helper."""
        found: list[str] = []
        for folder, folders, names in os.walk(self._local):
            folders[:] = [n for n in folders if n != FETCHED and not os.path.islink(f"{folder}/{n}")]
            within = os.path.relpath(folder, self._local)
            found += [os.path.normpath(f"{within}/{name}") for name in names if _is_mirrored(name)]
        keys = {name: _fingerprint(f"{self._local}/{name}") for name in found}
        changed = [n for n in found if keys[n] and (self._copied.get(n) != keys[n] or (last and self._is_appended(n)))]
        # Records come first, because the state depends on them.
        return sorted(changed, key=lambda name: (not self._is_appended(name), name))

    def _is_appended(self, name: str) -> bool:
        """Whether ftrun only appends to this file."""
        return name in RECORDS or (self._keeps_output and OUTPUT.fullmatch(name) is not None)

    def _copy(self, name: str, last: bool) -> None:
        source, (folder, base) = f"{self._local}/{name}", os.path.split(name)
        seen, below = _fingerprint(source), files.within(self._remote, folder)
        target = f"/proc/self/fd/{below}/{base}"
        try:
            if self._is_appended(name):
                files.append(source, target, self._base(name), last, self._mark_progress)
            elif os.path.getsize(source) <= MAX_SIZE:
                files.replace(source, target, self._mark_progress)
            else:
                self._problems.append(f"{source} is not copied: it is larger than {MAX_SIZE >> 20} MiB")
        finally:
            os.close(below)
        if seen is not None:
            self._copied[name] = seen

    # --- the right to write -----------------------------------------------------------------------------------------

    def _take_over(self) -> bool:
        """Acquire the right to write to the remote folder.  Returns whether this ftrun has it."""
        if self._mounted and not mounts.is_network_volume(self._remote):
            # Files written here now would be hidden once it is mounted again.
            self._owned, self._copied = False, {}
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1
            raise OSError(errno.ENODEV, "no network disk is mounted there", self._remote)
        if "remote" in self._ownership:
            self._remote = self._ownership["remote"]
        elif self._read == UNMADE:
            self._remote, self._read = self._make(self._remote), NOTHING
        os.makedirs(self._remote, 0o700, exist_ok=True)
        locked, remote_token = self._locked(), files.load(self._remote).get("token", NOTHING)
        if not locked or (self._owned and remote_token not in (self._ownership["token"], NOTHING)):
            self._problems.append(f"another ftrun writes to {self._remote}; the files of this one are in {self._local}")
            return False
        if remote_token != self._ownership.get("token"):
            if remote_token != self._ownership.get("before"):  # otherwise a mirror was killed while it took over
                self._ownership = self._new_ownership(remote_token)
                files.save(self._local, self._ownership)
            if self._ownership["unread"]:
                self._set_aside()
            new_ownership = {key: value for key, value in self._ownership.items() if key != "before"}
            files.save(self._remote, new_ownership)
            self._ownership = new_ownership  # from now on the previous token would belong to another ftrun
            files.save(self._local, new_ownership)
            self._copied = {}
        self._owned = True
        return True

    def _new_ownership(self, remote_token: str) -> dict[str, Any]:
        unread = self._read == UNREAD or remote_token != self._read
        return {
            "schema": 1,
            "token": os.urandom(8).hex(),
            "before": remote_token,
            "unread": unread,
            "node": os.uname().nodename,
            "local": self._local,
            "remote": self._remote,
            "base": self._bases(unread),
        }

    def _bases(self, unread: bool) -> dict[str, int]:
        """The sizes of the remote files that the local ones do not continue."""
        bases = {}
        for name in RECORDS:
            target = f"{self._remote}/{name}"
            found = files.regular(target)
            if found is not None and (unread or not files.continues(f"{self._local}/{name}", target)):
                bases[name] = _end_last_line(target, found.st_size)
        return bases

    def _base(self, name: str) -> int:
        base: int = self._ownership["base"].get(name, 0)
        there = files.regular(f"{self._remote}/{name}")
        if base and (there is None or there.st_size < base):  # it has been removed or truncated
            del self._ownership["base"][name]
            files.save(self._local, self._ownership)
            return 0
        return base

    def _set_aside(self) -> None:
        """Rename remote files that were not read, since the local folder has newer ones of that name."""
        for name in ("state.json", "reports"):
            if os.path.lexists(f"{self._remote}/{name}"):
                aside = f"{name}.unread-{self._ownership['token']}"
                os.rename(f"{self._remote}/{name}", f"{self._remote}/{aside}")
                self._problems.append(f"{self._remote}/{name} was not read before the start; kept as {aside}")

    def _locked(self) -> bool:
        """Take the lock.  On a disk without locks it is assumed to be held."""
        if self._lock >= 0:
            return True
        path = f"{self._remote}/{files.LOCK}"
        try:
            held = shared_folder.try_lock(path)
        except shared_folder.NoLocks as error:
            self._problems.append(f"{path}: {error.strerror}; a second ftrun there would not be detected")
            held = shared_folder.open_file(path, os.O_RDWR)
        if held is None:
            return False
        self._lock = held
        return True


def _changes(path: str) -> inotify.Inotify | None:
    """Watches the file; None if the kernel limit is reached: then records are copied once a period."""
    try:
        found = inotify.Inotify()
        found.add(path, inotify.MODIFY)
        return found
    except OSError:
        return None


def _fingerprint(path: str) -> tuple[int, int, int] | None:
    found = files.regular(path)
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)


def _is_mirrored(name: str) -> bool:
    return not name.startswith(".") and not name.endswith((".new", ".lock")) and name != files.NOTE


def _end_last_line(path: str, size: int) -> int:
    """The size of the file, after the last line has been terminated, so that the next record is a line of its own."""
    with open(path, "r+b") as stream:
        stream.seek(max(0, size - 1))
        if size and stream.read(1) != b"\n":
            stream.seek(size)
            stream.write(b"\n")
            return size + 1
    return size
