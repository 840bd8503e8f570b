"""The beat folder: made, read and removed here; written by the hooks (`ftrun_hooks/layout.py` defines its bytes)."""

import mmap
import os
import stat as st
from collections.abc import Callable
from typing import Final

from ftrun.core.ranks import one_each
from ftrun.core.values import TOUCH, Rank
from ftrun.host import procfs, slots
from ftrun.host.slots import NS
from ftrun_hooks import layout as at

PREFIX: Final = "ftrun-beats-"
TEXT_LIMIT: Final = 4096
SITECUSTOMIZE: Final = os.path.join(os.path.dirname(os.path.abspath(at.__file__)), "auto", "sitecustomize.py")
IN_MODIFY, IN_ATTRIB, IN_ONESHOT = 0x2, 0x4, 0x80000000


class BeatsError(Exception):
    """One line that says what is wrong with the memory file system, and what helps."""


def create() -> "Beats":
    """A fresh beat folder in a memory file system, its space allocated: a full one is an error now, never a SIGBUS."""
    folders = procfs.memory_folders()
    problem = "no memory file system is mounted at /dev/shm, /run or /tmp"
    for folder in folders:
        path = f"{folder}/{PREFIX}{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            os.mkdir(path, 0o700)
            return Beats(path)
        except OSError as error:
            problem = f"{folder}: {error.strerror}"
            for name in (at.BEATS, at.BELL, at.TOUCH, f"{at.PYTHON}/sitecustomize.py"):
                _quietly(os.unlink, f"{path}/{name}")  # there may be no descriptor left to look at it
            for name in (at.PYTHON, ""):
                _quietly(os.rmdir, f"{path}/{name}")
            if folder == folders[0] and error.errno == 28:
                break  # full: falling back to a folder that is not meant for this would only hide it
    raise BeatsError(f"no room for the beats ({problem}); {at.FILE_BYTES // 1024} KiB are needed, e.g. --shm-size=64m")


def remove(path: str) -> None:
    """Remove a beat folder of ours; anything else is left alone, and so is what a link leads to."""
    if not os.path.basename(path).startswith(PREFIX) or not _ours(path):
        return
    try:
        for _, folders, files, fd in os.fwalk(path, topdown=False):
            for name in (*files, *folders):
                _quietly(os.unlink, name, dir_fd=fd)
            for name in folders:
                _quietly(os.rmdir, name, dir_fd=fd)
    except (OSError, RecursionError):
        pass
    _quietly(os.rmdir, path)


def _ours(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return st.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


class Beats:
    """The reader.  `bell` is to be polled: a rare event (claim, first move, checkpoint, done, fail, a near section
    deadline) puts a byte into it.  `watch` likewise: the first touch of the touch file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[str] = []
        self.bell = self._file = -1
        self.watch: int | None = None
        try:
            self._make()
        except OSError:
            for fd in (self.bell, self._file):
                if fd >= 0:
                    os.close(fd)  # whoever removes the folder needs some
            raise
        self.reset()

    def _make(self) -> None:
        fd = os.open(f"{self.path}/{at.BEATS}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, at.FILE_BYTES)
            self._map = mmap.mmap(fd, at.FILE_BYTES)
        except OSError:
            os.close(fd)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = fd
        self._words = memoryview(self._map).cast("Q")
        os.mkfifo(f"{self.path}/{at.BELL}", 0o600)
        bell = os.open(f"{self.path}/{at.BELL}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if self.bell < 0:
            self.bell = bell
        else:  # it is being polled under this number
            os.dup2(bell, self.bell, inheritable=False)
            os.close(bell)
        os.close(os.open(f"{self.path}/{at.TOUCH}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.mkdir(f"{self.path}/{at.PYTHON}", 0o700)
        os.symlink(SITECUSTOMIZE, f"{self.path}/{at.PYTHON}/sitecustomize.py")

    @property
    def ours(self) -> bool:
        """Where the command emptied the memory file system, another user may have made a folder of that name."""
        return _ours(self.path)

    def _whole(self) -> bool:
        try:
            files = [os.lstat(f"{self.path}/{name}") for name in (at.BEATS, at.BELL, at.TOUCH)]
            linked = os.readlink(f"{self.path}/{at.PYTHON}/sitecustomize.py") == SITECUSTOMIZE
        except OSError:
            return False
        beats, bell, touch = files
        as_made = beats.st_ino == os.fstat(self._file).st_ino and beats.st_size == at.FILE_BYTES
        return linked and as_made and st.S_ISFIFO(bell.st_mode) and st.S_ISREG(touch.st_mode)

    def _mend(self) -> None:
        """A command may have emptied the memory file system, or spoiled what is ours in it."""
        try:
            remove(self.path)
            if not self.ours:
                os.mkdir(self.path, 0o700)
            self._make()
            self.problems.append(f"{self.path} was spoiled by the command; it was made anew")
        except OSError as error:
            self.problems.append(f"{self.path} was spoiled by the command: no beats are seen ({error.strerror})")

    def reset(self) -> None:
        """Forget everything: for a new attempt, when the old tree is dead.  Allocates nothing, but for what the
        command has spoiled."""
        if not self._whole():
            self._mend()
        zero = bytes(at.SLOT_WORDS * at.WORD)
        for slot in range(at.HEADER_WORDS, at.HEADER_WORDS + at.SLOTS * at.SLOT_WORDS, at.SLOT_WORDS):
            if self._words[slot + at.MAGIC_WORD] or self._words[slot + at.PID]:
                self._map[slot * at.WORD : (slot + at.SLOT_WORDS) * at.WORD] = zero
        self._words[at.H_NEXT_LOOK] = at.NO_LOOK
        self._words[at.H_MAGIC] = at.MAGIC
        for name in _names(self.path):
            if name not in (at.BEATS, at.BELL, at.TOUCH, at.PYTHON):
                _quietly(os.unlink, f"{self.path}/{name}")
        self.hush()
        self._seen: dict[int, Rank] = {}
        self._texts: dict[str, tuple[object, str | None]] = {}
        self._reported: set[int] = set()
        self._touch_key = self._touched()
        self._touch: Rank | None = None

    def hush(self) -> None:
        """Empty the bell."""
        try:
            os.read(self.bell, 65536)
        except BlockingIOError:
            pass

    def arm_touch(self) -> int | None:
        """Be told of the first touch, and only of that: later ones are found by the looks that follow from it."""
        import ctypes

        if self.watch is None:
            libc = ctypes.CDLL(None)
            fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if fd < 0:
                return None
            self.watch, self._add_watch = fd, libc.inotify_add_watch
        else:
            try:
                os.read(self.watch, 65536)
            except BlockingIOError:
                pass
        self._add_watch(self.watch, f"{self.path}/{at.TOUCH}".encode(), IN_MODIFY | IN_ATTRIB | IN_ONESHOT)
        return self.watch

    def plan(self, deadline: float | None) -> None:
        """Tell the hooks when we shall look next."""
        if os.fstat(self._file).st_size < at.FILE_BYTES:
            self._extend()
        self._words[at.H_NEXT_LOOK] = at.NO_LOOK if deadline is None else int(deadline * NS)

    def _extend(self) -> None:
        """The command cut the file off: touching what is not there any more would be a SIGBUS."""
        try:
            os.posix_fallocate(self._file, 0, at.FILE_BYTES)
            self._words[at.H_MAGIC] = at.MAGIC
        except OSError:
            self._map = mmap.mmap(-1, at.FILE_BYTES)  # of our own: nothing is seen in it
            self._words = memoryview(self._map).cast("Q")
        self.problems.append(f"{self.path}/{at.BEATS} was cut off by the command: its beats so far are lost")

    def look(self, now: float) -> tuple[Rank, ...]:
        """All ranks that ever claimed a slot in this attempt, the lowest first.  O(slots), about a millisecond."""
        self.plan(None)  # before the look: a section that opens meanwhile rings
        words, magics = self._words, self._words[at.HEADER_WORDS :: at.SLOT_WORDS].tolist()
        seen: dict[int, Rank] = {}
        for index, magic in enumerate(magics):
            if not magic:
                continue
            slot = at.HEADER_WORDS + index * at.SLOT_WORDS
            if magic != at.MAGIC:
                self._problem(slot, f"beat slot {index} is of another layout version; it is not read")
                continue
            rank = self._rank(words, slot, now)
            if rank is not None:
                seen[slot] = rank
        self._seen = self._rivals(seen)
        key = self._touched()
        if key != self._touch_key:
            self._touch_key = key
            # Its own time stamp is of the wall clock, which decides nothing: it was touched since the last look.
            self._touch = Rank(TOUCH, claimed_at=now, alive_at=now, moved_at=now)
        ranks = one_each(self._seen.values())
        return ranks if self._touch is None else (*ranks, self._touch)

    def _rivals(self, seen: dict[int, Rank]) -> dict[int, Rank]:
        """The same, with a look at whether they live for those that claimed a rank which another one has as well."""
        claims: dict[int, list[int]] = {}
        for slot, rank in seen.items():
            claims.setdefault(rank.rank, []).append(slot)
        for number, places in claims.items():
            for slot in places if len(places) > 1 else ():
                seen[slot] = rank = seen[slot]._replace(
                    present=slots.lives(seen[slot].pid, self._words[slot + at.START_TICKS])
                )
                if slot != at.slot_of(number) and rank.present:
                    others = ", ".join(str(seen[s].pid) for s in places if s != slot)
                    self._problem(slot, f"process {rank.pid} also claims rank {number} of process {others}")
        return seen

    def _rank(self, words: memoryview, slot: int, now: float) -> Rank | None:
        before = self._seen.get(slot)
        credit = words[slot + at.CREDIT]  # first: a beat moves MOVED_AT, then clears the credit
        row = words[slot : slot + at.SLOT_WORDS].tolist()
        for _ in range(4):
            if row[at.SEQUENCE] % 2 == 0 and words[slot + at.SEQUENCE] == row[at.SEQUENCE]:
                break
            row = words[slot : slot + at.SLOT_WORDS].tolist()
        else:  # its writer was stopped in the middle: what was true of its sections before still is
            if before is not None:
                row[at.DEPTH] = 0
        sections = before.sections if before and row[at.SEQUENCE] % 2 else slots.sections(row) if row[at.DEPTH] else ()
        if not slots.timely(row, now):
            self._problem(slot, f"beat slot of rank {row[at.RANK]} holds a time to come; it is not read")
            return None
        if row[at.FLAGS] & at.NO_RANK:
            problem = f"RANK or LOCAL_RANK of process {row[at.PID]} is no number: taken for rank {row[at.RANK]}"
            self._problem(slot, problem)
        second = slot != at.slot_of(row[at.RANK])  # process of its rank: it has files of its own
        mark = f"{row[at.RANK]}.{row[at.PID]}" if second else str(row[at.RANK])
        rank = slots.rank(row, credit, sections, lambda prefix: self._text(prefix + mark))
        # Whether its process lives is asked only of those that have not beaten since the last look.
        quiet = before is not None and (before.alive_at, before.moved_at) == (rank.alive_at, rank.moved_at)
        return rank._replace(present=slots.lives(rank.pid, row[at.START_TICKS])) if quiet else rank

    def _problem(self, slot: int, text: str) -> None:
        if slot not in self._reported:
            self._reported.add(slot)
            self.problems.append(text)

    def _text(self, name: str) -> str | None:
        """A file of the beat folder, read again only when it was replaced."""
        path = f"{self.path}/{name}"
        try:
            found = os.lstat(path)
        except OSError:
            return None
        key = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._texts.get(name, (None, None))[0] != key:
            content = procfs.read(path, TEXT_LIMIT) if st.S_ISREG(found.st_mode) else None
            content = content and content.partition(b"\0")[0]  # a variable of the next start: it could hold no more
            self._texts[name] = (key, content.decode("utf-8", "surrogateescape") if content else None)
        return self._texts[name][1]

    def _touched(self) -> object:
        try:
            found = os.stat(f"{self.path}/{at.TOUCH}")
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)

    def close(self) -> None:
        for release in (self._words.release, self._map.close, lambda: os.close(self.bell)):
            _quietly(release)
        for fd in (self.watch, self._file):
            if fd is not None:
                os.close(fd)
        remove(self.path)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _quietly(call: Callable[..., object], *words: str, **more: int) -> None:
    try:
        call(*words, **more)
    except (OSError, ValueError, BufferError):
        pass
