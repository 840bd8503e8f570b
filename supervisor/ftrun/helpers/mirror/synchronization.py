"""Keeping a folder on a network disk as a local one is.

Who writes there is told by `mirror.json`, in both: its token changes hands with the right to write.  `base` in the
local one says how long a file already was there when the local one of that name began: 0 where it was fetched.
`before` is the token that was there, until ours is.
"""

import errno
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ftrun.helpers.lines import Lines
from ftrun.helpers.mirror import files
from ftrun.host import inotify, mounts
from ftrun.host.work_dir import FETCHED, NOTHING, UNMADE, UNREAD

PERIOD: Final = 1.0  # s between copies of what has changed
PAUSE: Final = 0.1  # s at least, where there are new records: what was decided is not to wait
PATIENCE: Final = 10.0  # s without a sign of the disk after which a person is told
MOST: Final = 64 << 20  # bytes of a file that is none of ours
RECORDS: Final = ("events.jsonl", "steps.jsonl", "run.log")  # ours: nothing but their end ever changes
OUTPUT: Final = "output.log"  # ours too, in a folder that we make: elsewhere it may be anybody's


class Synchronization:
    """The thread copies and may block; the caller of `run` never does, and speaks."""

    def __init__(self, local: str, remote: str, read: str, *, make: Callable[[str], str], lines: Lines) -> None:
        self._local, self._remote, self._read, self._make, self._lines = local, remote, read, make, lines
        self._appended = (*RECORDS, OUTPUT) if read == UNMADE else RECORDS
        self._note = files.load(local)
        self._lock, self._held = -1, False
        self._mounted = mounts.is_network_volume(remote)
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._alive: float | None = None  # since when the disk has not answered; None: it is not asked
        self._problems: list[str] = []
        self._failed: BaseException | None = None
        self._ending, self._wake = threading.Event(), threading.Event()

    def run(self) -> None:
        """Until stdin has ended and all is copied."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # some send it to all that a job has: it is the time to copy
        thread = threading.Thread(target=self._work, daemon=True)  # one that is stuck does not hold us back at the end
        thread.start()
        told, changes = False, _changes(f"{self._local}/events.jsonl")
        while thread.is_alive():
            if self._lines.ended:
                self._ending.set()
                self._wake.set()
                thread.join(PERIOD)
            else:
                self._lines.requests(PERIOD, None if changes is None else changes.fd)
            if changes is not None and changes.read():
                self._wake.set()
            asked = self._alive
            if asked is not None and time.monotonic() - asked > PATIENCE and not told:
                told = True
                self._lines.problem(f"{self._remote} does not answer; until it does, all is in {self._local}")
            elif asked is None and told:
                self._lines.problem(f"{self._remote} answers again")
                told = False
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
            last, whole = self._ending.is_set(), False
            self._moved()
            try:
                whole = self._turn(last)
            except OSError as error:
                self._problems.append(f"{error.filename or self._remote}: {error.strerror}; all is in {self._local}")
            self._alive = None
            if whole and last:
                return
            time.sleep(PAUSE)
            self._wake.wait(0 if last else PERIOD)
            self._wake.clear()

    def _moved(self) -> None:
        self._alive = time.monotonic()

    def _turn(self, last: bool) -> bool:
        """Copy what has changed; whether all is there.  Where nothing has, the disk is not asked."""
        if not os.path.isdir(self._local):
            self._problems.append(f"{self._local} is gone: what was not copied before is lost")
            return False
        if self._held and not self._changed(last):
            return True
        if not self._take_over():
            return False
        whole = True
        for name in self._changed(last):
            try:
                self._copy(name, last)
            except FileNotFoundError:
                whole = whole and not os.path.exists(f"{self._local}/{name}")  # it has just gone
            except OSError as error:
                whole = False
                self._problems.append(f"{self._remote}/{name}: {error.strerror}; all is in {self._local}")
            self._moved()
        return whole

    def _changed(self, last: bool) -> list[str]:
        """The files, relative; what is being written, or of this helper, is not among them."""
        found: list[str] = []
        for folder, folders, names in os.walk(self._local):
            folders[:] = [n for n in folders if n != FETCHED and not os.path.islink(f"{folder}/{n}")]
            within = os.path.relpath(folder, self._local)
            found += [os.path.normpath(f"{within}/{name}") for name in names if _ours(name)]
        keys = {name: _key(f"{self._local}/{name}") for name in found}
        changed = [n for n in found if keys[n] and (self._seen.get(n) != keys[n] or (last and n in self._appended))]
        # Records first: the state follows them.
        return sorted(changed, key=lambda name: (name not in self._appended, name))

    def _copy(self, name: str, last: bool) -> None:
        source, (folder, base) = f"{self._local}/{name}", os.path.split(name)
        seen, below = _key(source), files.within(self._remote, folder)
        target = f"/proc/self/fd/{below}/{base}"
        try:
            if name in self._appended:
                files.append(source, target, self._base(name), last, self._moved)
            elif os.path.getsize(source) <= MOST:
                files.replace(source, target, self._moved)
            else:
                self._problems.append(f"{source} is not copied: it has more than {MOST >> 20} MiB")
        finally:
            os.close(below)
        if seen is not None:
            self._seen[name] = seen

    # --- whose it is ------------------------------------------------------------------------------------------------

    def _take_over(self) -> bool:
        """Whether we may write there."""
        if self._mounted and not mounts.is_network_volume(self._remote):  # what lies here now is hidden when it is back
            self._held, self._seen = False, {}
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1
            raise OSError(errno.ENODEV, "no network disk is mounted there", self._remote)
        if "remote" in self._note:
            self._remote = self._note["remote"]
        elif self._read == UNMADE:
            self._remote, self._read = self._make(self._remote), NOTHING
        os.makedirs(self._remote, 0o700, exist_ok=True)
        alone, theirs = self._locked(), files.load(self._remote).get("token", NOTHING)
        if not alone or (self._held and theirs not in (self._note["token"], NOTHING)):
            self._problems.append(f"another ftrun writes to {self._remote}; what is of this one is in {self._local}")
            return False
        if theirs != self._note.get("token"):
            if theirs != self._note.get("before"):  # else we were killed over it
                self._note = self._taken(theirs)
                files.save(self._local, self._note)
            if self._note["unread"]:
                self._set_aside()
            ours = {key: value for key, value in self._note.items() if key != "before"}
            files.save(self._remote, ours)
            self._note = ours  # from here on the token that was there would be another one's
            files.save(self._local, ours)
            self._seen = {}
        self._held = True
        return True

    def _taken(self, theirs: str) -> dict[str, Any]:
        unread = self._read == UNREAD or theirs != self._read
        return {
            "schema": 1,
            "token": os.urandom(8).hex(),
            "before": theirs,
            "unread": unread,
            "node": os.uname().nodename,
            "local": self._local,
            "remote": self._remote,
            "base": self._bases(unread),
        }

    def _bases(self, unread: bool) -> dict[str, int]:
        """Of the files that are there and do not go on as ours do."""
        bases = {}
        for name in RECORDS:
            target = f"{self._remote}/{name}"
            found = files.regular(target)
            if found is not None and (unread or not files.continues(f"{self._local}/{name}", target)):
                bases[name] = _ended(target, found.st_size)
        return bases

    def _base(self, name: str) -> int:
        base: int = self._note["base"].get(name, 0)
        there = files.regular(f"{self._remote}/{name}")
        if base and (there is None or there.st_size < base):  # somebody has removed it
            del self._note["base"][name]
            files.save(self._local, self._note)
            return 0
        return base

    def _set_aside(self) -> None:
        """What was there and is not known here: by now there is something else of that name."""
        for name in ("state.json", "reports"):
            if os.path.lexists(f"{self._remote}/{name}"):
                aside = f"{name}.unread-{self._note['token']}"
                os.rename(f"{self._remote}/{name}", f"{self._remote}/{aside}")
                self._problems.append(f"{self._remote}/{name} was not read before the start; kept as {aside}")

    def _locked(self) -> bool:
        """Where the disk has no locks we go on without."""
        if self._lock >= 0:
            return True
        fd = os.open(f"{self._remote}/{files.LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(fd)
            return False
        except OSError as error:
            self._problems.append(f"{self._remote}/{files.LOCK}: {error.strerror}; a second ftrun there is not noticed")
        self._lock = fd
        return True


def _changes(path: str) -> inotify.Inotify | None:
    """None where the kernel gives no more of these: then it takes a period."""
    try:
        found = inotify.Inotify()
        found.add(path, inotify.MODIFY)
        return found
    except OSError:
        return None


def _key(path: str) -> tuple[int, int, int] | None:
    found = files.regular(path)
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)


def _ours(name: str) -> bool:
    return not name.startswith(".") and not name.endswith((".new", ".lock")) and name != files.NOTE


def _ended(path: str, size: int) -> int:
    """The size, with the last line ended: what follows is one of its own."""
    with open(path, "r+b") as stream:
        stream.seek(max(0, size - 1))
        if size and stream.read(1) != b"\n":
            stream.seek(size)
            stream.write(b"\n")
            return size + 1
    return size
