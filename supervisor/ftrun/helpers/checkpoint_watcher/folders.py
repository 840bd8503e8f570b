"""Follow the folders in which a match can appear: with inotify, and by listing where inotify is not enough.

A new folder is first watched, then listed, so that nothing is missed in between.  It is listed again, in rounds that
take at most 5 % of the time, where inotify does not report everything (a network disk) or is unavailable.
"""

import errno
import os
import time
from collections.abc import Callable
from typing import Final

from ftrun.helpers.checkpoint_watcher import disk
from ftrun.helpers.checkpoint_watcher.disk import Look
from ftrun.helpers.checkpoint_watcher.folder import MARKS, Folder, Origin
from ftrun.helpers.checkpoint_watcher.globs import Globs
from ftrun.helpers.checkpoint_watcher.matches import FileEvent, Matches, fits
from ftrun.host import inotify
from ftrun.host.inotify import Inotify

FOLDERS: Final = 16_384  # folders that are followed
WATCHES: Final = 4_096  # a user may be limited to 8,192, and the job needs some

ROUND: Final = 1.0  # s between two rounds of listing at least,
DUTY: Final = 20  # and this multiple of the duration of the last round
RELIST: Final = 30.0  # s: a folder is listed even if its mtime does not change, as on some object stores,
RELIST_DUTY: Final = 100  # and at least this multiple of the duration of its last listing

CHANGED: Final = inotify.CREATE | inotify.MOVED_TO | inotify.MOVED_FROM | inotify.DELETE
SELF: Final = inotify.DELETE_SELF | inotify.MOVE_SELF
USED: Final = inotify.OPEN | inotify.CLOSE_WRITE | inotify.CLOSE_NOWRITE


class Folders:
    """Without `notify` every folder is listed.  `problem` receives lines for a person, also repeatedly the same."""

    def __init__(self, globs: Globs, matches: Matches, notify: Inotify | None, problem: Callable[[str], None]) -> None:
        self._globs, self._matches, self._notify, self._problem = globs, matches, notify, problem
        self._marks = 0
        self._folders: dict[Folder, None] = {}  # parents first
        self._listed: dict[Folder, None] = {}  # those for which inotify is not enough
        self._by_wd: dict[int, dict[Folder, None]] = {}
        self._pending: dict[Folder, Origin] = {}  # to be listed now
        self._all = False  # something happened without an event: check all folders
        began = time.monotonic()
        root = Folder("", "", None, globs.root(), globs)
        self._folders[root] = None
        self._refresh(root, disk.stat("/"), Origin.PRESENT)
        self._list_pending()
        self._pace(began)

    def due(self) -> float | None:
        return self._next_round if self._listed or self._all else None

    def remounted(self) -> None:
        """Handle a mount or unmount, which inotify does not report."""
        self._all = True

    def on(self, event: inotify.Event) -> None:
        if event.mask & inotify.Q_OVERFLOW:
            self._all = True
            self._matches.lost()
        for folder in list(self._by_wd.get(event.wd, ())):
            if folder not in self._folders:
                continue  # removed just now, through another folder
            if event.mask & inotify.IGNORED:
                self._unwatch(folder)
            if event.mask & (SELF | inotify.IGNORED | inotify.UNMOUNT):
                self._enter(folder.parent, folder.name, Origin.CREATED)
            elif event.name:
                self._entry(folder, event.name, event.mask)
        self._list_pending()

    def round(self) -> None:
        """Check the folders for which inotify is not enough, and list those that may have changed."""
        began = time.monotonic()
        everything, self._all = self._all, False
        for folder in list(self._folders if everything else self._listed):
            if folder in self._folders:
                self._check(folder, everything)
                self._list_pending()
        self._pace(began)

    def _pace(self, began: float) -> None:
        ended = time.monotonic()
        self._next_round = ended + max(ROUND, DUTY * (ended - began))

    def _entry(self, folder: Folder, name: str, mask: int) -> None:
        if mask & (inotify.OPEN | inotify.CLOSE_NOWRITE) and not self._matches.waiting(folder, name):
            return  # the usual case in a folder whose files are read
        if not folder.open and name not in folder.literals:
            return  # the usual case in a parent folder, like /tmp or /dev/shm
        step = self._globs.step(folder.state, name)
        if step.below and mask & CHANGED:
            self._enter(folder, name, Origin.RENAMED if mask & inotify.MOVED_TO else Origin.CREATED)
        if not step.match_folder or (mask & USED and mask & inotify.ISDIR):
            return
        if mask & (inotify.MOVED_FROM | inotify.DELETE):
            self._matches.gone(folder, name)
        elif mask & inotify.MOVED_TO:
            self._matches.renamed(folder, name)
        elif mask & inotify.CREATE:
            self._matches.handle(folder, name, FileEvent.CREATED)
        elif mask & inotify.CLOSE_WRITE:
            self._matches.handle(folder, name, FileEvent.WRITTEN)
        else:
            self._matches.handle(folder, name, FileEvent.OPENED if mask & inotify.OPEN else FileEvent.READ)

    # --- adding and removing folders

    def _enter(self, parent: Folder | None, name: str, origin: Origin) -> None:
        """Update the known state of that entry as a folder to be followed."""
        if parent is None:
            return
        child, path, fresh = parent.children.get(name), parent.at(name), not parent.local
        link = False
        retried = parent.unresolved.pop(name, origin)
        try:
            found = disk.stat(path, follow=False, fresh=fresh)
            if found.link:
                link = True
                found = disk.stat(path, fresh=fresh)
        except OSError as error:
            if error.errno not in disk.GONE:  # its known state stays: a disk that answers again has no progress
                self._problem(_not_detected(path, error))
                parent.unresolved[name] = Origin.PRESENT
            else:
                self._leave(child)
                if link:
                    parent.unresolved[name] = Origin.CREATED  # no event reports when its target appears
            self._update_listed(parent)
            return
        self._update_listed(parent)
        if not found.folder:
            self._leave(child)
            return
        identity = (found.dev, found.ino)
        before = parent if child is None else child
        if not link and (found.dev != parent.identity[0] or found.dev != before.identity[0]):
            origin = Origin.PRESENT  # it was mounted
        elif origin is not Origin.PRESENT:
            origin = retried
        if child is None:
            child = self._add_folder(parent, name, identity if link else None)
        if child is not None:
            self._refresh(child, found, origin)

    def _add_folder(self, parent: Folder, name: str, target: tuple[int, int] | None) -> Folder | None:
        """Add a folder; None if it would be followed without end, or if there are too many."""
        state, path = self._globs.step(parent.state, name).below, parent.at(name)
        if target is not None and self._globs.deep(state) and any(up.identity == target for up in parent.ancestors()):
            return None
        if len(self._folders) >= FOLDERS:
            self._problem(f"the globs lead through more than {FOLDERS} folders: the rest are not watched")
            return None
        child = Folder(path, name, parent, state, self._globs)
        parent.children[name] = child
        self._folders[child] = None
        return child

    def _refresh(self, folder: Folder, found: disk.Stat, origin: Origin) -> None:
        """Watch the folder, and list it if it is not the known one or was not watched."""
        identity, wd = (found.dev, found.ino), folder.wd
        folder.mtime_ns = found.mtime_ns
        if identity[0] != folder.identity[0]:
            folder.local = disk.local(folder.full_path)
        self._watch(folder)
        if identity != folder.identity or folder.wd not in (wd, -1):
            folder.identity, folder.again = identity, True
            self._pending[folder] = origin
        self._update_listed(folder)

    def _leave(self, folder: Folder | None) -> None:
        """Remove a folder and its descendants."""
        if folder is None:
            return
        if folder.parent is not None:
            folder.parent.children.pop(folder.name, None)
        left, todo = set(), [folder]
        while todo:
            folder = todo.pop()
            todo.extend(folder.children.values())
            left.add(folder)
            self._unwatch(folder)
            self._folders.pop(folder, None)
            self._listed.pop(folder, None)
            self._pending.pop(folder, None)
            self._marks -= folder.listed
        self._matches.left(left)

    def _watch(self, folder: Folder) -> None:
        if self._notify is None:
            return
        if folder.wd < 0 and len(self._by_wd) >= WATCHES:
            self._problem(f"the globs lead through more than {WATCHES} folders: the rest are listed")
            return
        # MASK_ADD: another path may lead to the same inode.
        mask = inotify.ONLYDIR | inotify.MASK_ADD | SELF | CHANGED
        try:
            wd = self._notify.add(folder.full_path, mask | (USED if self._globs.final(folder.state) else 0))
        except OSError as error:
            wd = -1
            if error.errno == errno.ENOSPC:
                self._problem("no more inotify watches (fs.inotify.max_user_watches): folders are listed instead")
            elif error.errno not in (errno.EACCES, *disk.GONE):  # otherwise its listing reports it, where it matters
                self._problem(f"inotify on {folder.full_path!r}: {error.strerror}; it is listed instead")
        if wd != folder.wd:
            self._unwatch(folder)
            folder.wd = wd
            if wd >= 0:
                self._by_wd.setdefault(wd, {})[folder] = None

    def _unwatch(self, folder: Folder) -> None:
        others = self._by_wd.get(folder.wd)
        if others is not None and self._notify is not None:
            others.pop(folder, None)
            if not others:
                del self._by_wd[folder.wd]
                self._notify.remove(folder.wd)
        folder.wd = -1

    def _update_listed(self, folder: Folder) -> None:
        if folder in self._folders and (folder.wd < 0 or not folder.local or folder.unresolved):
            self._listed[folder] = None
        else:
            self._listed.pop(folder, None)

    # --- listing

    def _list_pending(self) -> None:
        while self._pending:
            folder, origin = self._pending.popitem()
            self._list(folder, origin)

    def _check(self, folder: Folder, everything: bool) -> None:
        self._enter(folder.parent, folder.name, Origin.CREATED)
        for name in list(folder.unresolved):
            # A link may lead to a new mount.
            self._enter(folder, name, Origin.PRESENT if everything else Origin.CREATED)
        if folder not in self._folders or folder in self._pending:
            return
        if folder.parent is None:
            folder.mtime_ns = disk.stat("/").mtime_ns
        changed = folder.mtime_ns != folder.listed_mtime_ns
        if changed or folder.again or time.monotonic() >= folder.relist_at:
            folder.again = changed
            self._pending[folder] = Origin.CREATED
            return
        for name in folder.literals:
            self._check_literal(folder, name, Origin.CREATED)

    def _list(self, folder: Folder, origin: Origin) -> None:
        began = time.monotonic()
        folder.listed_mtime_ns = folder.mtime_ns
        for name in folder.literals:
            self._check_literal(folder, name, origin)
        if folder.open:
            try:
                folder.marks = self._read(folder, Origin.PRESENT if folder.unread else origin)
                folder.unread = False
            except OSError as error:
                folder.unread = not folder.listed
                if error.errno not in disk.GONE:
                    self._problem(_not_detected(folder.full_path, error))
        self._marks += len(folder.marks) - folder.listed
        folder.listed = len(folder.marks)
        ended = time.monotonic()
        folder.relist_at = ended + max(RELIST, RELIST_DUTY * (ended - began))

    def _check_literal(self, folder: Folder, name: str, origin: Origin) -> None:
        step = self._globs.step(folder.state, name)
        if step.below:
            self._enter(folder, name, origin)
        if not step.match_folder:
            return None
        try:
            look = disk.look(folder.at(name), fresh=not folder.local, walk=False)
        except OSError as error:
            return self._problem(_not_detected(folder.at(name), error))
        if look is not None and fits(step, look):
            self._found_match(folder, name, folder.mark(name, look), origin, folder.marks)
        else:
            folder.marks.pop(hash(name), None)
        return None

    def _read(self, folder: Folder, origin: Origin) -> dict[int, int]:
        """The marks of all matches.  A known match costs no system call, unless inode numbers are meaningless here."""
        marks = {hash(name): folder.marks[hash(name)] for name in folder.literals if hash(name) in folder.marks}
        known = folder.marks
        with os.scandir(folder.full_path) as entries:
            for entry in entries:
                name, ino = entry.name, entry.inode()
                if known.get(hash(name)) == ino and not folder.exact:
                    marks[hash(name)] = ino
                    continue
                if name in folder.literals:
                    continue
                step = self._globs.step(folder.state, name)
                if step.below and name not in folder.children and entry.is_dir():
                    self._enter(folder, name, origin)
                if step.match or (step.match_folder and entry.is_dir()):
                    self._found_match(folder, name, _mark(folder, entry), origin, marks)
        return marks

    def _found_match(self, folder: Folder, name: str, mark: int, origin: Origin, marks: dict[int, int]) -> None:
        if self._marks + len(marks) - folder.listed >= MARKS:
            self._problem(f"more than {MARKS} matches: new ones are detected by inotify alone")
            return
        known = folder.marks.get(hash(name))
        marks[hash(name)] = mark
        if known == mark or origin is Origin.PRESENT:
            return
        if origin is Origin.RENAMED:
            self._matches.renamed(folder, name)
        else:
            self._matches.handle(folder, name, FileEvent.FOUND)


def _not_detected(path: str, error: OSError) -> str:
    return f"{path!r}: {error.strerror}; checkpoints there are not detected"


def _mark(folder: Folder, entry: "os.DirEntry[str]") -> int:
    """The mark of an entry.  SMB without server inodes and many FUSE daemons invent inode numbers: there the mark is
    made of size and time."""
    look = Look(entry.inode(), 0, entry.is_dir(follow_symlinks=False))
    try:
        if folder.exact is None and not look.folder:
            folder.exact = entry.stat(follow_symlinks=False).st_ino != look.ino
        if folder.exact and not look.folder:
            found = entry.stat(follow_symlinks=False)
            look = look._replace(print=hash((found.st_size, found.st_mtime_ns)))
    except OSError:
        pass  # it does not exist any more
    return folder.mark(entry.name, look)
