"""The beat folder: made, read and removed here; written by the hooks (`ftrun_hooks/layout.py` defines its bytes)."""

import errno
import mmap
import os
import stat as st
import struct
from typing import Final

from ftrun.core.machine.values import TOUCH, Rank
from ftrun.core.rules.ranks import one_each
from ftrun.host import beat_folders, beat_slots, import_folder, procfs
from ftrun.host.beat_access import FOLDER_MODE, Access
from ftrun.host.beat_folders import is_ours, quietly, remove
from ftrun.host.signals import writing
from ftrun_hooks import layout as at

TEXT_LIMIT: Final = 4096
FILES: Final = (beat_folders.LOCK, at.BEATS, at.BELL, at.TOUCH, at.REQUEST, at.PYTHON)  # what is ours in it
ROOM: Final = f"{at.FILE_BYTES // 1024} KiB are needed, e.g. --shm-size=64m"
# By the errno of what failed; anything else is a matter of room.
REMEDIES: Final = {
    errno.EFBIG: f"the limit on the size of a file (ulimit -f) is below {at.FILE_BYTES // 1024} KiB",
    errno.EMFILE: "the limit on open files (ulimit -n) is too low",
    errno.ENFILE: "the kernel's limit on open files (fs.file-max) is reached",
    errno.EACCES: "the folder is not writable for this user",
    errno.EROFS: "it is mounted read-only",
    errno.EPERM: "the kernel, or the seccomp profile of the container, refuses it",
}
IN_MODIFY, IN_ATTRIB, IN_OPEN, IN_ONESHOT = 0x2, 0x4, 0x20, 0x80000000


class BeatsError(Exception):
    """One line that says what is wrong with the memory file system, and what helps."""


def create() -> "Beats":
    """A fresh beat folder in a memory file system, its space allocated: a full one is an error now, never a SIGBUS."""
    folders = procfs.memory_folders()
    problem, remedy = "no memory file system is mounted at /dev/shm, /run or /tmp", ROOM
    for folder in folders:
        path = beat_folders.new_path(folder)
        try:
            os.mkdir(path, 0o700)
            return Beats(path)
        except OSError as error:
            problem, remedy = f"{folder}: {error.strerror}", REMEDIES.get(error.errno or 0, ROOM)
            remove(path)
            for name in (*FILES, f"{at.PYTHON}/sitecustomize.py"):
                quietly(os.unlink, f"{path}/{name}")  # there may be no descriptor left to look at it
            for name in (f"{at.PYTHON}/__pycache__", at.PYTHON, ""):
                quietly(os.rmdir, f"{path}/{name}")
            if folder == folders[0] and error.errno == 28:
                break  # full: falling back to a folder that is not meant for this would only hide it
    raise BeatsError(f"no room for the beats ({problem}); {remedy}")


class Beats:
    """The reader.  `bell` is to be polled: a rare event (claim, first move, checkpoint, done, fail, a near section
    deadline) puts a byte into it.  `watch` likewise: the first touch of the touch file, and who asks for access."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[str] = []
        self.access = Access(path)
        self.bell = self._file = self._lock = -1
        self.watch: int | None = None
        try:
            self._make()
        except OSError:
            for fd in (self.bell, self._file, self._lock):
                if fd >= 0:
                    os.close(fd)  # whoever removes the folder needs some
            raise
        self.reset()

    def _make(self) -> None:
        lock = beat_folders.lock(self.path)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = lock
        fd = os.open(f"{self.path}/{at.BEATS}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _allocate(fd)
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
        os.close(os.open(f"{self.path}/{at.REQUEST}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.chmod(f"{self.path}/{at.REQUEST}", 0o444)
        import_folder.make(f"{self.path}/{at.PYTHON}")
        os.chmod(self.path, FOLDER_MODE)  # whatever the umask
        self.access.grant()

    @property
    def ours(self) -> bool:
        """Where the command emptied the memory file system, another user may have made a folder of that name."""
        return is_ours(self.path)

    def _whole(self) -> bool:
        try:
            files = [os.lstat(f"{self.path}/{name}") for name in (at.BEATS, at.BELL, at.TOUCH)]
            linked = import_folder.is_intact(f"{self.path}/{at.PYTHON}")
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
            if name not in FILES:
                quietly(os.unlink, f"{self.path}/{name}")
        self.drain_bell()
        self._seen: dict[int, Rank] = {}
        self._texts: dict[str, tuple[object, str | None]] = {}
        self._reported: set[int] = set()
        self._touch_key = self._touched()
        self._touch: Rank | None = None

    def drain_bell(self) -> None:
        """Empty the bell."""
        try:
            os.read(self.bell, 65536)
        except BlockingIOError:
            pass

    def start_watching(self, now: float) -> int | None:
        """From now on be told of the first touch, and only of that: later ones are found by the looks that follow from
        it.  And of who asks for access.  The descriptor to be polled, or None."""
        self.access.start_looking(now)
        if self.watch is None:
            import ctypes

            libc = ctypes.CDLL(None)
            fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if fd < 0:
                return None
            self.watch, self._add_watch = fd, libc.inotify_add_watch
        self._notices()
        self._touch_watch = self._watch(at.TOUCH, IN_MODIFY | IN_ATTRIB)
        self._watch(at.REQUEST, IN_OPEN)
        return self.watch

    def _watch(self, name: str, events: int) -> int:
        number: int = self._add_watch(self.watch, f"{self.path}/{name}".encode(), events | IN_ONESHOT)
        return number

    def _notices(self) -> list[int]:
        """The watches of which something was told; each tells once."""
        assert self.watch is not None
        try:
            content = os.read(self.watch, 65536)
        except BlockingIOError:
            return []
        # struct inotify_event; a watch of a file has no name in it.  The end of a one-shot watch is told as well.
        events = struct.iter_unpack("=iIII", content[: len(content) // 16 * 16])
        return [number for number, mask, _, _ in events if mask & (IN_MODIFY | IN_ATTRIB | IN_OPEN)]

    def handle_wakeup(self, ready: set[int], now: float) -> bool:
        """Whether the ranks are to be looked at, by what can be read from or is due; users of the command's own tree
        who cannot write here are let in."""
        rang = self.bell in ready
        if rang:
            self.drain_bell()
        if self.watch in ready:
            told = self._notices()
            rang = rang or self._touch_watch in told
            if any(number != self._touch_watch for number in told):
                self.access.request_received(now)
        if self.access.due is not None and self.access.due <= now:
            rang = self._let_in(now) or rang
        return rang

    def _let_in(self, now: float) -> bool:
        before, untouched = self.access.problem, self._touched() == self._touch_key
        changed = self.access.update(now)
        if changed and untouched:
            self._touch_key = self._touched()  # it has another mode now: that is no touch
            if self.watch is not None:
                self._notices()
                self._touch_watch = self._watch(at.TOUCH, IN_MODIFY | IN_ATTRIB)
        if self.watch is not None:
            self._watch(at.REQUEST, IN_OPEN)
        if self.access.problem not in (None, before):
            self.problems.append(str(self.access.problem))
        return changed

    def publish_next_read(self, deadline: float | None, asleep: beat_slots.Times | None = None) -> None:
        """Tell the hooks when we shall look next, and when nobody was judged: that time teaches nothing."""
        if os.fstat(self._file).st_size < at.FILE_BYTES:
            self._extend()
        beat_slots.write_plan(self._words, deadline, asleep)

    def _extend(self) -> None:
        """The command cut the file off: touching what is not there any more would be a SIGBUS."""
        try:
            _allocate(self._file)
            self._words[at.H_MAGIC] = at.MAGIC
        except OSError:
            self._map = mmap.mmap(-1, at.FILE_BYTES)  # of our own: nothing is seen in it
            self._words = memoryview(self._map).cast("Q")
        self.problems.append(f"{self.path}/{at.BEATS} was cut off by the command: its beats so far are lost")

    def read(self, now: float) -> tuple[Rank, ...]:
        """All ranks that ever claimed a slot in this attempt, the lowest first.  O(slots), about a millisecond."""
        self.publish_next_read(None)  # before the look: a section that opens meanwhile rings
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
        if self.access.is_due_again(now) and not any(rank.moved_at is not None for rank in ranks):
            self._let_in(now)  # before anybody judges it by the beats that it does not give
        return ranks if self._touch is None else (*ranks, self._touch)

    def _rivals(self, seen: dict[int, Rank]) -> dict[int, Rank]:
        """The same, with whether they live.  A problem only where one of them was told the rank that they share."""
        claims: dict[int, list[int]] = {}
        for slot, rank in seen.items():
            claims.setdefault(rank.rank, []).append(slot)
        for number, places in claims.items():
            for slot in places if len(places) > 1 else ():
                seen[slot] = rank = seen[slot]._replace(
                    present=beat_slots.is_alive(seen[slot].pid, self._words[slot + at.START_TICKS])
                )
                if slot != at.slot_of(number) and rank.present and any(seen[s].ranked for s in places):
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
        sections = (
            before.sections if before and row[at.SEQUENCE] % 2 else beat_slots.sections(row) if row[at.DEPTH] else ()
        )
        if not beat_slots.has_plausible_times(row, now):
            self._problem(slot, f"beat slot of rank {row[at.RANK]} holds a time to come; it is not read")
            return None
        if row[at.FLAGS] & at.NO_RANK:
            problem = f"RANK or LOCAL_RANK of process {row[at.PID]} is no number: taken for rank {row[at.RANK]}"
            self._problem(slot, problem)
        second = slot != at.slot_of(row[at.RANK])  # process of its rank: it has files of its own
        mark = f"{row[at.RANK]}.{row[at.PID]}" if second else str(row[at.RANK])
        rank = beat_slots.rank(row, credit, sections, lambda prefix: self._text(prefix + mark))
        # Whether its process lives is asked only of those that have not beaten since the last look.
        quiet = before is not None and (before.alive_at, before.moved_at) == (rank.alive_at, rank.moved_at)
        return rank._replace(present=beat_slots.is_alive(rank.pid, row[at.START_TICKS])) if quiet else rank

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
            content = _plain_file(path) if st.S_ISREG(found.st_mode) else None
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
            quietly(release)
        for fd in (self.watch, self._file, self._lock):
            if fd is not None:
                os.close(fd)  # the removal needs some; another ftrun may help with it from now on
        remove(self.path)


def _plain_file(path: str) -> bytes | None:
    """Nothing that a link leads to, or that has a second name: another user who was let in may have put it there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        return os.read(fd, TEXT_LIMIT) if st.S_ISREG(found.st_mode) and found.st_nlink == 1 else None
    except OSError:
        return None
    finally:
        os.close(fd)


def _allocate(fd: int) -> None:
    """The whole file, so that no store into it can find the memory file system full.  OSError."""
    try:
        os.posix_fallocate(fd, 0, at.FILE_BYTES)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            raise
        # A seccomp profile refuses it; what is written has its place, too.
        size = os.fstat(fd).st_size
        with writing():
            while size < at.FILE_BYTES:
                size += os.pwrite(fd, bytes(at.FILE_BYTES - size), size)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
