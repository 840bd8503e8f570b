"""Creates, reads and removes the beat folder, which the hooks write to (`ftrun_hooks/layout.py` defines the file
format)."""

import errno
import os
import stat as st
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Final

from ftrun.core.machine.values import TOUCH, Rank
from ftrun.core.rules.ranks import one_each
from ftrun.host import beat_file, beat_folders, mounts, safe_files
from ftrun.host.beat_access import FOLDER_MODE, Access
from ftrun.host.beat_file import LOST, BeatFile
from ftrun.host.beat_folders import IMPORT_LINK, is_ours, make_import_folder, quietly, remove
from ftrun.host.touch_file import TouchFile
from ftrun.host.work_dir import local_temporaries
from ftrun_hooks import layout as at

if TYPE_CHECKING:
    from ftrun.host.inotify import Inotify

TEXT_LIMIT: Final = 4096
FILES: Final = (beat_folders.LOCK, at.BEATS, at.BELL, at.TOUCH, at.REQUEST, at.PYTHON)  # ftrun's own files in it
ROOM: Final = f"{at.FILE_BYTES // 1024} KiB are needed, e.g. --shm-size=64m"
MODIFY, ATTRIB, OPEN, ONESHOT = 0x2, 0x4, 0x20, 0x80000000  # of inotify(7)
MOVED_TO, CREATE = 0x80, 0x100
NOTICED: Final = MODIFY | ATTRIB | OPEN | MOVED_TO | CREATE
# By errno; for any other errno the remedy is more space.
REMEDIES: Final = {
    errno.EFBIG: f"the limit on the size of a file (ulimit -f) is below {at.FILE_BYTES // 1024} KiB",
    errno.EMFILE: "the limit on open files (ulimit -n) is too low",
    errno.ENFILE: "the kernel's limit on open files (fs.file-max) is reached",
    errno.EACCES: "the folder is not writable for this user",
    errno.EROFS: "it is mounted read-only",
    errno.EPERM: "the kernel, or the seccomp profile of the container, refuses it",
}


class BeatsError(Exception):
    """One line: why there is no room for the heartbeats, and the remedy."""


def create() -> "Beats":
    """Create a beat folder and allocate its space, so that a full file system is an error now and never a SIGBUS: in a
    memory file system, or if none has room, on a local disk.  `note` of the result says so.  Raises BeatsError."""
    in_memory = mounts.memory_folders()
    problems, remedy = [] if in_memory else ["no memory file system is mounted at /dev/shm, /run or /tmp"], ROOM
    for folder in chain(in_memory, _on_disk(in_memory)):
        path = beat_folders.new_path(folder)
        try:
            os.mkdir(path, 0o700)
            made = Beats(path)
            if problems:
                made.note = f"the heartbeats are in {folder} ({'; '.join(problems)}); {remedy}"
            return made
        except OSError as error:
            if not problems or (folder in in_memory and error.errno == errno.ENOSPC):
                remedy = REMEDIES.get(error.errno or 0, ROOM)
            problems.append(f"{folder}: {error.strerror}")
            remove(path)
            for name in (*FILES, IMPORT_LINK):
                quietly(os.unlink, f"{path}/{name}")  # there may be no descriptor left to list the folder
            for name in (f"{at.PYTHON}/__pycache__", at.PYTHON, ""):
                quietly(os.rmdir, f"{path}/{name}")
    raise BeatsError(f"no space for the heartbeats ({'; '.join(problems)}); {remedy}")


def _on_disk(in_memory: Sequence[str]) -> Iterator[str]:
    """The other temp folders, the shortest first: the name of a socket in them may have 107 bytes, unix(7)."""
    yield from sorted({*local_temporaries(mounts.Mounts())} - {*in_memory}, key=lambda folder: (len(folder), folder))


class Beats:
    """The reader of the beat folder.  Poll `bell`: a rare event (claim, first movement, checkpoint, done, fail, a
    section deadline before the next planned read) writes a byte to it.  Poll `watch` as well: it reports the first
    touch of the touch file, and requests for access.  `lost`: why heartbeats may not be seen any more, in one line."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.note: str | None = None  # a line for the user if it is not where it should be
        self.problems: list[str] = []
        self.access = Access(path)
        self.bell = self._lock = -1
        self._file: BeatFile | None = None
        self._touch_file: TouchFile | None = None
        self.watch: int | None = None
        self._inotify: Inotify | None = None
        try:
            self._make()
        except OSError:
            for fd in (self.bell, self._lock):
                if fd >= 0:
                    os.close(fd)  # removing the folder needs descriptors
            for file in (self._file, self._touch_file):
                if file is not None:
                    file.close()
            raise
        self._forget()

    def _make(self) -> None:
        lock = beat_folders.lock(self.path)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = lock
        file = BeatFile(f"{self.path}/{at.BEATS}")
        if self._file is not None:
            self._file.close()
        self._file = file
        os.mkfifo(f"{self.path}/{at.BELL}", 0o600)
        bell = os.open(f"{self.path}/{at.BELL}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if self.bell < 0:
            self.bell = bell
        else:  # this number is already being polled
            os.dup2(bell, self.bell, inheritable=False)
            os.close(bell)
        touch_file = TouchFile(self.path)
        if self._touch_file is not None:
            self._touch_file.close()
        self._touch_file = touch_file
        os.close(os.open(f"{self.path}/{at.REQUEST}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.chmod(f"{self.path}/{at.REQUEST}", 0o444)
        make_import_folder(f"{self.path}/{at.PYTHON}")
        os.chmod(self.path, FOLDER_MODE)  # independent of the umask
        self.access.grant()

    @property
    def _beats(self) -> BeatFile:
        assert self._file is not None, "`_make` has opened it"
        return self._file

    @property
    def _touches(self) -> TouchFile:
        assert self._touch_file is not None, "`_make` has opened it"
        return self._touch_file

    @property
    def is_own(self) -> bool:
        """Whether the folder belongs to this user.  If the command emptied the memory file system, another user may
        have created a folder of the same name."""
        return is_ours(self.path)

    def _is_intact(self) -> bool:
        try:
            files = [os.lstat(f"{self.path}/{name}") for name in (at.BEATS, at.BELL, at.TOUCH)]
            linked = os.readlink(f"{self.path}/{IMPORT_LINK}").endswith("/auto/sitecustomize.py")
        except OSError:
            return False
        beats, bell, touch = files
        as_made = beats.st_ino == os.fstat(self._beats.fd).st_ino and beats.st_size == at.FILE_BYTES
        return linked and as_made and st.S_ISFIFO(bell.st_mode) and st.S_ISREG(touch.st_mode)

    def _mend(self) -> None:
        """Recreate the folder: a command may have emptied the memory file system or damaged ftrun's files in it."""
        try:
            remove(self.path)
            if not self.is_own:
                os.mkdir(self.path, 0o700)
            self._make()
            self.problems.append(f"{self.path} was damaged by the command; ftrun recreated it")
        except OSError as error:
            self.problems.append(
                f"{self.path} was damaged by the command: ftrun cannot receive heartbeats ({error.strerror})"
            )

    def reset(self) -> None:
        """Discard all data before a new attempt, when the old tree is dead.  Allocates nothing, unless the command
        damaged the folder."""
        if not self._is_intact():
            self._mend()
        for slot, _ in self._beats.rows():
            self._beats.clear(slot)
        self._beats.write_header()
        try:
            names = os.listdir(self.path)
        except OSError:
            names = []
        for name in names:
            if name == at.SNAPSHOTS:
                beat_folders.empty(f"{self.path}/{name}")
            elif name not in FILES:
                quietly(os.unlink, f"{self.path}/{name}")
        self._forget()

    def _forget(self) -> None:
        self.drain_bell()
        self._ranks: dict[int, Rank] = {}
        self._texts: dict[str, tuple[object, str | None]] = {}
        self._reported: set[int] = set()
        self._touches.forget()
        self._touch: Rank | None = None
        self._touched_at = 0.0
        self._first_moved: float | None = None  # the read that first found a rank that moves by the hooks
        self._lost_at: dict[str, float] = {}  # since when files have no name here: the read that found it
        self.lost: str | None = None

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The libraries for training that processes of the command have imported, in this attempt or an earlier one."""
        return beat_file.frameworks(self._beats.header())

    def drain_bell(self) -> None:
        """Empty the bell."""
        with suppress(BlockingIOError):
            os.read(self.bell, 65536)

    def start_watching(self, now: float) -> int | None:
        """Watch for the first touch and for requests for access from now on; later touches are found by the reads that
        follow the first.  Returns the descriptor to poll, or None."""
        self.access.start_looking(now)
        if self.watch is None:
            from ftrun.host.inotify import Inotify  # loads ctypes: not before the command was started

            try:
                self._inotify = Inotify()
            except OSError:
                return None
            self.watch = self._inotify.fd
        self._notices()
        self._watch_touch()
        self._watch(at.REQUEST, OPEN)
        return self.watch

    @property
    def is_touched(self) -> bool:
        """Whether the touch file was touched since the last read."""
        return self._touches.is_touched

    def _watch_touch(self) -> None:
        self._touch_watch = self._watch(at.TOUCH, MODIFY | ATTRIB)
        if self._touch_watch < 0:
            self._touch_watch = self._watch("", CREATE | MOVED_TO)

    def _watch(self, name: str, events: int) -> int:
        assert self._inotify is not None
        try:
            return self._inotify.add(f"{self.path}/{name}", events | ONESHOT)
        except OSError:
            return -1

    def _notices(self) -> list[int]:
        """Return the watches that have fired; each fires once, and its end is an event as well."""
        assert self._inotify is not None
        return [event.wd for event in self._inotify.read() if event.mask & NOTICED]

    def handle_wakeup(self, ready: set[int], now: float) -> bool:
        """Return whether the ranks must be read, given the readable descriptors and what is due; also give access to
        users of the command's own tree who cannot write here."""
        must_read = self.bell in ready
        if must_read:
            self.drain_bell()
        if self.watch in ready:
            fired = self._notices()
            if any(number != self._touch_watch for number in fired):
                self.access.request_received(now)
            if self._touch_watch in fired:
                if not self.is_touched:
                    self._watch_touch()  # it was a chmod, for example
                must_read = must_read or self.is_touched
        if self.access.due is not None and self.access.due <= now:
            must_read = self._grant_access(now) or must_read
        return must_read

    def _grant_access(self, now: float) -> bool:
        before = self.access.problem
        changed = self.access.update(now)
        if self.watch is not None:
            self._watch(at.REQUEST, OPEN)
        if self.access.problem not in (None, before):
            self.problems.append(str(self.access.problem))
        return changed

    def publish_next_read(self, deadline: float | None, excluded: beat_file.Periods | None = None) -> None:
        """Write for the hooks when the slots are read next, and which periods count towards no timeout: nothing is
        learned from them."""
        if self._beats.is_damaged:
            self._extend()
        self._beats.write_plan(deadline, excluded)

    def _extend(self) -> None:
        """The command truncated the file.  The processes that map it get SIGBUS for what is missing."""
        with suppress(OSError):  # no space is left: no heartbeats can arrive
            self._beats.extend()
        what = f"{self.path}/{at.BEATS} was truncated by the command: its heartbeats so far are lost"
        self._problem(at.H_MAGIC, what)

    def read(self, now: float, ended: bool = False) -> tuple[Rank, ...]:
        """Return all ranks that ever claimed a slot in this attempt, the lowest first.  O(slots), about a
        millisecond.  `ended`: the command has ended, so nobody needs access to the beat folder any more."""
        self.publish_next_read(None)  # before the read: a section that opens meanwhile rings the bell
        ranks_by_slot: dict[int, Rank] = {}
        starts: dict[int, int] = {}
        for slot, row in self._beats.rows():
            if row[at.MAGIC_WORD] == at.MAGIC:
                rank = self._rank(slot, row, now)
                if rank is not None:
                    ranks_by_slot[slot], starts[slot] = rank, row[at.START_TICKS]
            elif row[at.MAGIC_WORD]:
                index = (slot - at.HEADER_WORDS) // at.SLOT_WORDS
                self._problem(slot, f"beat slot {index} has another layout version; ftrun ignores it")
        self._ranks = self._mark_rivals(ranks_by_slot, starts)
        if self._touches.take():
            # Its own time stamp is wall-clock time, which no decision uses: it was touched since the last read.
            self._touched_at = now
            self._touch = Rank(TOUCH, claimed_at=now, alive_at=now, moved_at=now)
        ranks = one_each(self._ranks.values())
        if not ended and self.access.is_due_again(now) and not any(rank.moved_at is not None for rank in ranks):
            self._grant_access(now)  # before missing heartbeats of its processes count as a hang
        if self._first_moved is None and any(rank.moved_at is not None for rank in ranks):
            self._first_moved = now
        if self._touch is not None and not self._touch_is_past:
            ranks = (*ranks, self._touch)
        return self._with_losses(ranks, now, ended)

    @property
    def _touch_is_past(self) -> bool:
        """Whether ranks move by the hooks, and the touch file was not touched since they began: a launcher may have
        touched it before it executed them, and never does so again."""
        return self._first_moved is not None and self._touched_at <= self._first_moved

    def _with_losses(self, ranks: tuple[Rank, ...], now: float, ended: bool) -> tuple[Rank, ...]:
        """The same ranks, with whether heartbeats of them may be lost, since the command has deleted files.  Processes
        that have such a file open still give heartbeats: those that do so later are seen."""
        missing = [at.BEATS] if not self._beats.is_named else []
        if self._touches.missing and not self._touch_is_past:
            missing.append(at.TOUCH)
        self._lost_at = {name: self._lost_at.get(name, now) for name in missing}
        if not missing:
            self.lost = None
        elif not ended:  # what a command deletes at its end is no loss
            self.lost = f"{self.path}{'' if at.BEATS in missing else f'/{at.TOUCH}'} {LOST}"
            self._problem(-1, self.lost)
        self._beats.write_touch(at.TOUCH_LOST if at.TOUCH in missing else at.TOUCH_PAST if self._touch_is_past else 0)
        return tuple(map(self._with_loss, ranks)) if missing else ranks

    def _with_loss(self, rank: Rank) -> Rank:
        lost_at = self._lost_at.get(at.TOUCH if rank.rank == TOUCH else at.BEATS)
        return rank._replace(unseen=lost_at is not None and (rank.moved_at or 0.0) <= lost_at)

    def _mark_rivals(self, seen: dict[int, Rank], starts: dict[int, int]) -> dict[int, Rank]:
        """Return the same ranks, with whether processes that share a rank are alive.  `starts`: when each began.  A
        shared rank is a problem only if one of these processes was assigned its rank explicitly."""
        slots_by_rank: dict[int, list[int]] = {}
        for slot, rank in seen.items():
            slots_by_rank.setdefault(rank.rank, []).append(slot)
        for number, slots in slots_by_rank.items():
            for slot in slots if len(slots) > 1 else ():
                seen[slot] = rank = seen[slot]._replace(present=beat_file.is_alive(seen[slot].pid, starts[slot]))
                if slot != at.slot_of(number) and rank.present and any(seen[s].ranked for s in slots):
                    others = ", ".join(str(seen[s].pid) for s in slots if s != slot)
                    self._problem(slot, f"process {rank.pid} also claims rank {number} of process {others}")
        return seen

    def _rank(self, slot: int, earlier: Sequence[int], now: float) -> Rank | None:
        """The rank of a slot.  `earlier`: its words as they were read before: a heartbeat moves MOVED_AT, then clears
        the credit, so that the credit has to be of an earlier read."""
        before, credit = self._ranks.get(slot), earlier[at.CREDIT]
        for _ in range(4):
            row = self._beats.row(slot)
            if earlier[at.SEQUENCE] % 2 == 0 and row[at.SEQUENCE] == earlier[at.SEQUENCE]:
                sections = beat_file.sections(earlier)  # nothing wrote them between the two reads
                break
            earlier = row
        else:  # its writer was stopped in the middle: the previously read sections are still valid
            sections = before.sections if before else ()
        if row[at.MAGIC_WORD] != at.MAGIC:
            return None  # the command truncated the file, or another process claims the slot
        if not beat_file.has_plausible_times(row, now):
            self._problem(slot, f"beat slot of rank {row[at.RANK]} contains a time in the future; ftrun ignores it")
            return None
        if row[at.FLAGS] & at.NO_RANK:
            problem = f"RANK or LOCAL_RANK of process {row[at.PID]} is not a number: ftrun uses rank {row[at.RANK]}"
            self._problem(slot, problem)
        second = slot != at.slot_of(row[at.RANK])  # a second process of this rank has separate files
        mark = f"{row[at.RANK]}.{row[at.PID]}" if second else str(row[at.RANK])
        rank = beat_file.rank(row, credit, sections, lambda prefix: self._text(prefix + mark))
        # Only processes that have given no heartbeat since the last read are checked for being alive.
        quiet = before is not None and (before.alive_at, before.moved_at) == (rank.alive_at, rank.moved_at)
        return rank._replace(present=beat_file.is_alive(rank.pid, row[at.START_TICKS])) if quiet else rank

    def _problem(self, slot: int, text: str) -> None:
        if slot not in self._reported:
            self._reported.add(slot)
            self.problems.append(text)

    def _text(self, name: str) -> str | None:
        """Return the content of a file of the beat folder; it is read again only when it was replaced."""
        path = f"{self.path}/{name}"
        try:
            status = os.lstat(path)
        except OSError:
            return None
        key = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._texts.get(name, (None, None))[0] != key:
            # It becomes an environment variable of the next start, which cannot contain NUL.
            content = safe_files.read_foreign(path, TEXT_LIMIT).partition(b"\0")[0]
            self._texts[name] = (key, content.decode("utf-8", "surrogateescape") or None)
        return self._texts[name][1]

    def close(self) -> None:
        self._touches.close()
        for fd in (self.bell, self.watch, self._beats.fd, self._lock):
            if fd is not None:
                os.close(fd)  # removing the folder needs descriptors; from here on another ftrun may remove it too
        remove(self.path)
