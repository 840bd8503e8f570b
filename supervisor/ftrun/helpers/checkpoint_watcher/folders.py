"""Follow the folders in which a match can appear: with inotify, and by listing where inotify is not enough.

A new folder is first watched, then listed, so that nothing is missed in between.  It is listed again, in rounds that
take at most 5 % of the time, where inotify does not report everything (a network disk) or is unavailable.  The content
of the matched folders that were used last is followed as well, since a program may save into one again (`last/`).
"""

import errno
import os
import time
from collections.abc import Callable
from typing import Final

from ftrun.core.rules.policy import step_of
from ftrun.helpers.checkpoint_watcher import disk
from ftrun.helpers.checkpoint_watcher.disk import FileLook
from ftrun.helpers.checkpoint_watcher.folder import MARKS, Match, Origin, WatchedFolder
from ftrun.helpers.checkpoint_watcher.globs import Globs
from ftrun.helpers.checkpoint_watcher.matches import FileEvent, Matches, fits
from ftrun.host import inotify, mounts
from ftrun.host.inotify import Inotify

FOLDERS: Final = 16_384  # folders that are followed
WATCHES: Final = 4_096  # a user may be limited to 8,192, and the job needs some
CONTENTS: Final = 16  # matched folders whose content is followed,
INNER: Final = 256  # and folders in them; the content of one that has more is read

ROUND: Final = 1.0  # s between two rounds of listing at least,
DUTY: Final = 20  # and this multiple of the duration of the last round
RELIST: Final = 30.0  # s: a folder is listed even if its mtime does not change, as on some object stores,
RELIST_DUTY: Final = 100  # and at least this multiple of the duration of its last listing

CHANGED: Final = inotify.CREATE | inotify.MOVED_TO | inotify.MOVED_FROM | inotify.DELETE
SELF: Final = inotify.DELETE_SELF | inotify.MOVE_SELF
FILLED: Final = inotify.CREATE | inotify.MOVED_TO | inotify.CLOSE_WRITE  # deleting a checkpoint does not save it
USED: Final = inotify.OPEN | inotify.CLOSE_WRITE | inotify.CLOSE_NOWRITE


class Folders:
    """Without `notify` every folder is listed.  `problem` receives lines for a person, also repeatedly the same.
    `since`: what has been written since that time of the disks' clocks, in ns, counts although it is there already."""

    def __init__(
        self, globs: Globs, matches: Matches, notify: Inotify | None, problem: Callable[[str], None], since: int | None
    ) -> None:
        self._since = since  # None after the first look
        self._globs, self._matches, self._notify, self._problem = globs, matches, notify, problem
        self._marks = 0
        self._folders: dict[WatchedFolder, None] = {}  # parents first
        self._listed: dict[WatchedFolder, None] = {}  # the folders for which inotify is not enough
        self._by_wd: dict[int, dict[WatchedFolder, None]] = {}
        self._pending: dict[WatchedFolder, Origin] = {}  # to be listed now
        self._contents: dict[Match, None] = {}  # those whose content is followed, the last used one last
        self._present: dict[Match, int] = {}  # matched folders that existed at the start, and the time of each
        self._inner = 0  # folders in which no match can appear
        self._all = False  # something happened without an event: check all folders
        began = time.monotonic()
        root = WatchedFolder("", "", None, globs.root(), globs)
        self._folders[root] = None
        self._refresh(root, disk.stat("/"), Origin.PRESENT)
        self._list_pending()
        self._since = None
        self._next_walk = 0.0
        self._pace(began)

    def due(self) -> float | None:
        return self._next_round if self._listed or self._all else None

    def remounted(self) -> None:
        """Handle a mount or unmount, which inotify does not report."""
        self._all = True

    def on(self, event: inotify.InotifyEvent) -> None:
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
        if everything or time.monotonic() >= self._next_walk:
            self._read_contents(everything)

    def _pace(self, began: float) -> None:
        ended = time.monotonic()
        self._next_round = ended + max(ROUND, DUTY * (ended - began))

    def _entry(self, folder: WatchedFolder, name: str, mask: int) -> None:
        if folder.content_of is not None and mask & FILLED:
            self._written(folder, folder.content_of, name, mask)
        if mask & (inotify.OPEN | inotify.CLOSE_NOWRITE) and not self._matches.waiting(folder, name):
            return  # the usual case in a folder whose files are read
        if not folder.open and name not in folder.literals:
            return  # the usual case in a parent folder, like /tmp or /dev/shm
        step = self._globs.step(folder.state, name)
        if step.below and mask & CHANGED:
            self._enter(folder, name, _origin(mask))
        if not step.match_folder or (mask & USED and mask & inotify.ISDIR):
            return
        if mask & inotify.ISDIR and mask & FILLED:
            self._follow((folder, name), _origin(mask))
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

    def _enter(self, parent: WatchedFolder | None, name: str, origin: Origin) -> None:
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

    def _add_folder(self, parent: WatchedFolder, name: str, target: tuple[int, int] | None) -> WatchedFolder | None:
        """Add a folder; None if it would be followed without end, or if there are too many."""
        state, path = self._globs.step(parent.state, name).below, parent.at(name)
        if target is not None and self._globs.deep(state) and any(up.identity == target for up in parent.ancestors()):
            return None
        if len(self._folders) >= FOLDERS:
            self._problem(f"the globs lead through more than {FOLDERS} folders: the rest are not watched")
            return None
        inside = (parent, name) if (parent, name) in self._contents else parent.content_of
        if inside is not None and inside != (parent, name) and not state and self._inner >= INNER:
            top = inside[0].children[inside[1]]
            top.crowded = True
            self._update_listed(top)
            return None
        child = WatchedFolder(path, name, parent, state, self._globs)
        child.content_of = inside
        self._inner += not state
        parent.children[name] = child
        self._folders[child] = None
        return child

    def _refresh(self, folder: WatchedFolder, found: disk.FileStat, origin: Origin) -> None:
        """Watch the folder, and list it if it is not the known one or was not watched."""
        identity, wd = (found.dev, found.ino), folder.wd
        folder.mtime_ns = found.mtime_ns
        if identity[0] != folder.identity[0]:
            if folder.parent is not None and folder.parent.identity[0] == identity[0]:
                folder.local = folder.parent.local
            else:
                folder.local = mounts.network_kind(folder.full_path) is None
        self._watch(folder)
        if identity != folder.identity or folder.wd not in (wd, -1):
            folder.identity, folder.again = identity, True
            self._pending[folder] = origin
        self._update_listed(folder)

    def _leave(self, folder: WatchedFolder | None) -> None:
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
            if folder in self._folders:
                del self._folders[folder]
                self._inner -= not folder.state
            if folder.parent is not None:
                self._contents.pop((folder.parent, folder.name), None)
            self._listed.pop(folder, None)
            self._pending.pop(folder, None)
            self._marks -= folder.listed
        self._matches.left(left)

    def _watch(self, folder: WatchedFolder) -> None:
        if self._notify is None:
            return
        if folder.wd < 0 and len(self._by_wd) >= WATCHES:
            self._problem(f"the globs lead through more than {WATCHES} folders: the rest are listed")
            return
        # MASK_ADD: another path may lead to the same inode.
        mask = inotify.ONLYDIR | inotify.MASK_ADD | SELF | CHANGED
        try:
            content = inotify.CLOSE_WRITE if folder.content_of is not None else 0
            wd = self._notify.add(folder.full_path, mask | (USED if self._globs.final(folder.state) else content))
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

    def _unwatch(self, folder: WatchedFolder) -> None:
        others = self._by_wd.get(folder.wd)
        if others is not None and self._notify is not None:
            others.pop(folder, None)
            if not others:
                del self._by_wd[folder.wd]
                self._notify.remove(folder.wd)
        folder.wd = -1

    def _update_listed(self, folder: WatchedFolder) -> None:
        more = folder.unresolved or folder.crowded
        if folder in self._folders and (folder.wd < 0 or not folder.local or more):
            self._listed[folder] = None
        else:
            self._listed.pop(folder, None)

    # --- the content of matched folders

    def _follow(self, match: Match, origin: Origin) -> None:
        """Follow the content of this match, in place of that of the one which was used longest ago."""
        folder, name = match
        if match in self._contents or self._globs.all_below(self._globs.step(folder.state, name).below):
            return
        self._contents[match] = None
        child = folder.children.get(name)
        if child is None:
            self._enter(folder, name, origin)
        else:
            child.content_of = match
            self._watch(child)
            self._pending.setdefault(child, origin)
        if name not in folder.children:
            del self._contents[match]
        elif len(self._contents) > CONTENTS:
            # A folder with a step in its name is rarely written again.
            names = {kept: step_of(kept[0].at(kept[1])) is not None for kept in self._contents}
            self._unfollow(next((kept for kept, numbered in names.items() if numbered), next(iter(names))))

    def _unfollow(self, match: Match) -> None:
        self._contents.pop(match, None)
        todo = [match[0].children[match[1]]]
        while todo:
            folder = todo.pop()
            if not folder.state:
                self._leave(folder)
            elif folder.content_of == match:
                folder.content_of = None
                todo.extend(folder.children.values())

    def _written(self, folder: WatchedFolder, match: Match, name: str, mask: int) -> None:
        """Something in a matched folder was written."""
        if mask & inotify.ISDIR:
            self._enter(folder, name, _origin(mask))
        if match in self._contents:
            self._contents[match] = self._contents.pop(match)
            self._matches.handle(*match, FileEvent.FOUND)

    def _read_contents(self, everything: bool) -> None:
        """Look for newer files where inotify is not enough."""
        began = time.monotonic()
        for match in list(self._contents):
            top = match[0].children.get(match[1])
            if top is not None and (everything or top in self._listed):
                self._read_content(match, top)
        ended = time.monotonic()
        self._next_walk = ended + DUTY * (ended - began)

    def _read_content(self, match: Match, top: WatchedFolder) -> None:
        try:
            look = disk.look(top.path, fresh=not top.local)
        except OSError:
            return
        if look is None or not look.folder:
            return
        if top.newest is not None and look.newest > top.newest:
            self._matches.handle(*match, FileEvent.FOUND)
        top.newest = look.newest

    # --- listing

    def _list_pending(self) -> None:
        while self._pending:
            folder, origin = self._pending.popitem()
            self._list(folder, origin)
            if not self._pending:
                self._follow_present()

    def _follow_present(self) -> None:
        """Follow the newest of the matched folders that a listing has found, and that do not count."""
        present, self._present = self._present, {}
        numbered = {match: step_of(match[0].at(match[1])) is not None for match in present}
        for match in sorted(present, key=lambda match: (not numbered[match], present[match]))[-CONTENTS:]:
            self._follow(match, Origin.PRESENT)
            if match in self._contents and (top := match[0].children[match[1]]).newest is None:
                self._read_content(match, top)
                if self._is_recent(top.newest or 0):
                    self._matches.handle(*match, FileEvent.FOUND)

    def _check(self, folder: WatchedFolder, everything: bool) -> None:
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

    def _list(self, folder: WatchedFolder, origin: Origin) -> None:
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
        if folder.content_of is not None and folder.wd >= 0:  # otherwise the whole content is read
            for name in disk.folders(folder.full_path):
                self._enter(folder, name, origin)
        self._marks += len(folder.marks) - folder.listed
        folder.listed = len(folder.marks)
        ended = time.monotonic()
        folder.relist_at = ended + max(RELIST, RELIST_DUTY * (ended - began))

    def _check_literal(self, folder: WatchedFolder, name: str, origin: Origin) -> None:
        step = self._globs.step(folder.state, name)
        if step.below:
            self._enter(folder, name, origin)
        if not step.match_folder:
            return
        try:
            look = disk.look(folder.at(name), fresh=not folder.local, walk=False)
        except OSError as error:
            self._problem(_not_detected(folder.at(name), error))
            return
        if look is not None and fits(step, look):
            self._found_match(folder, name, folder.mark(name, look), origin, folder.marks, look.folder)
        else:
            folder.marks.pop(hash(name), None)

    def _read(self, folder: WatchedFolder, origin: Origin) -> dict[int, int]:
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
                if step.match_folder and ((is_folder := entry.is_dir()) or step.match):
                    self._found_match(folder, name, _mark(folder, entry), origin, marks, is_folder)
        return marks

    def _found_match(
        self, folder: WatchedFolder, name: str, mark: int, origin: Origin, marks: dict[int, int], is_folder: bool
    ) -> None:
        if self._marks + len(marks) - folder.listed >= MARKS:
            self._problem(f"more than {MARKS} matches: new ones are detected by inotify alone")
            return
        known = folder.marks.get(hash(name))
        marks[hash(name)] = mark
        if known == mark:
            return
        if origin is Origin.PRESENT:
            self._found_present(folder, name, is_folder)
            return
        if is_folder:
            self._follow((folder, name), origin)
        if origin is Origin.RENAMED:
            self._matches.renamed(folder, name)
        else:
            self._matches.handle(folder, name, FileEvent.FOUND)

    def _found_present(self, folder: WatchedFolder, name: str, is_folder: bool) -> None:
        # On a network disk each question takes time: there only a folder whose entries have changed is asked for them.
        asks = self._since is not None and (folder.local or self._is_recent(folder.mtime_ns))
        if not (asks or is_folder):
            return
        try:
            mtime = disk.stat(folder.at(name), follow=is_folder).mtime_ns
        except OSError:
            return  # it does not exist any more
        if is_folder:
            self._present[folder, name] = mtime
        if asks and self._is_recent(mtime):
            self._matches.handle(folder, name, FileEvent.FOUND)

    def _is_recent(self, mtime_ns: int) -> bool:
        return self._since is not None and self._since <= mtime_ns <= time.time_ns()


def _origin(mask: int) -> Origin:
    return Origin.RENAMED if mask & inotify.MOVED_TO else Origin.CREATED


def _not_detected(path: str, error: OSError) -> str:
    return f"{path!r}: {error.strerror}; checkpoints there are not detected"


def _mark(folder: WatchedFolder, entry: "os.DirEntry[str]") -> int:
    """The mark of an entry.  SMB without server inodes and many FUSE daemons invent inode numbers: there the mark is
    made of size and time."""
    look = FileLook(entry.inode(), 0, entry.is_dir(follow_symlinks=False))
    try:
        if folder.exact is None and not look.folder:
            folder.exact = entry.stat(follow_symlinks=False).st_ino != look.ino
        if folder.exact and not look.folder:
            found = entry.stat(follow_symlinks=False)
            look = look._replace(print=hash((found.st_size, found.st_mtime_ns)))
    except OSError:
        pass  # it does not exist any more
    return folder.mark(entry.name, look)
