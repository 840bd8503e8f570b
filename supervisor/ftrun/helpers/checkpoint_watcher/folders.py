"""Following the folders in which a match can appear: listening, and listing where that is not enough.

A folder that is entered is first watched, then listed, so that nothing falls between.  It is listed again, in rounds
that take at most 5 % of the time, where inotify does not see everything (a network disk) or cannot be had.
"""

import errno
import os
import time
from typing import Final

from ftrun.helpers.checkpoint_watcher import disk
from ftrun.helpers.checkpoint_watcher.folder import MARKS, Folder, How
from ftrun.helpers.checkpoint_watcher.globs import Globs
from ftrun.helpers.checkpoint_watcher.matches import Matches, fits
from ftrun.helpers.checkpoint_watcher.waits import Look, What
from ftrun.host import inotify
from ftrun.host.inotify import Inotify

FOLDERS: Final = 16_384  # that are followed
WATCHES: Final = 4_096  # the user may have no more than 8,192, and the job needs some
PROBLEMS: Final = 20

ROUND: Final = 1.0  # s between two rounds of listing, at least,
DUTY: Final = 20  # and so many times what the last one took
RELIST: Final = 30.0  # s: a folder is listed even if its time stands still, as it does on some object stores,
RELIST_DUTY: Final = 100  # and so many times what its last listing took

CHANGED: Final = inotify.CREATE | inotify.MOVED_TO | inotify.MOVED_FROM | inotify.DELETE
SELF: Final = inotify.DELETE_SELF | inotify.MOVE_SELF
USED: Final = inotify.OPEN | inotify.CLOSE_WRITE | inotify.CLOSE_NOWRITE


class Folders:
    """`problems` is to be emptied by the caller; each is said once.  Without `notify` every folder is listed."""

    def __init__(self, globs: Globs, matches: Matches, notify: Inotify | None) -> None:
        self._globs, self._matches, self._notify = globs, matches, notify
        self.problems: list[str] = []
        self._said: set[str] = set()
        self._marks = 0
        self._folders: dict[Folder, None] = {}  # parents first
        self._listed: dict[Folder, None] = {}  # those for which listening is not enough
        self._by_wd: dict[int, dict[Folder, None]] = {}
        self._todo: dict[Folder, How] = {}  # to be listed now
        self._all = False  # something happened that no event names: look at all folders
        began = time.monotonic()
        root = Folder("", "", None, globs.root(), globs)
        self._folders[root] = None
        self._renew(root, disk.stat("/"), How.THERE)
        self._work()
        self._pace(began)

    def due(self) -> float | None:
        return self._next_round if self._listed or self._all else None

    def remounted(self) -> None:
        """Something was mounted or unmounted, which inotify does not tell."""
        self._all = True

    def on(self, event: inotify.Event) -> None:
        if event.mask & inotify.Q_OVERFLOW:
            self._all = True
            self._matches.lost()
        for folder in list(self._by_wd.get(event.wd, ())):
            if folder not in self._folders:
                continue  # left a moment ago, by way of the other
            if event.mask & inotify.IGNORED:
                self._deaf(folder)
            if event.mask & (SELF | inotify.IGNORED | inotify.UNMOUNT):
                self._enter(folder.parent, folder.name, How.MADE)
            elif event.name:
                self._entry(folder, event.name, event.mask)
        self._work()

    def round(self) -> None:
        """Look at the folders for which listening is not enough, and list those that may have changed."""
        began = time.monotonic()
        everything, self._all = self._all, False
        for folder in list(self._folders if everything else self._listed):
            if folder in self._folders:
                self._check(folder, everything)
                self._work()
        self._pace(began)

    def _pace(self, began: float) -> None:
        ended = time.monotonic()
        self._next_round = ended + max(ROUND, DUTY * (ended - began))

    def _entry(self, folder: Folder, name: str, mask: int) -> None:
        if mask & (inotify.OPEN | inotify.CLOSE_NOWRITE) and not self._matches.waiting(folder, name):
            return  # the usual case in a folder that is read from
        if not folder.open and name not in folder.literals:
            return  # the usual case in a folder on the way, /tmp or /dev/shm
        step = self._globs.step(folder.state, name)
        if step.below and mask & CHANGED:
            self._enter(folder, name, How.RENAMED if mask & inotify.MOVED_TO else How.MADE)
        if not step.match_folder or (mask & USED and mask & inotify.ISDIR):
            return
        if mask & (inotify.MOVED_FROM | inotify.DELETE):
            self._matches.gone(folder, name)
        elif mask & inotify.MOVED_TO:
            self._matches.renamed(folder, name)
        elif mask & inotify.CREATE:
            self._matches.tell(folder, name, What.MADE)
        elif mask & inotify.CLOSE_WRITE:
            self._matches.tell(folder, name, What.WRITTEN)
        else:
            self._matches.tell(folder, name, What.OPENED if mask & inotify.OPEN else What.READ)

    # Entering and leaving.

    def _enter(self, parent: Folder | None, name: str, how: How) -> None:
        """Bring what we know of that entry, as a folder to be followed, up to date."""
        if parent is None:
            return
        child, path, fresh = parent.children.get(name), parent.at(name), not parent.local
        link = False
        retried = parent.unsure.pop(name, how)
        try:
            found = disk.stat(path, follow=False, fresh=fresh)
            if found.link:
                link = True
                found = disk.stat(path, fresh=fresh)
        except OSError as error:
            if error.errno not in disk.GONE:  # what we know of it stays: a disk that comes back brings nothing new
                self._trouble(path, error)
                parent.unsure[name] = How.THERE
            else:
                self._leave(child)
                if link:
                    parent.unsure[name] = How.MADE  # no event will tell when it leads somewhere
            self._sort(parent)
            return
        self._sort(parent)
        if not found.folder:
            self._leave(child)
            return
        identity = (found.dev, found.ino)
        before = parent if child is None else child
        if not link and (found.dev != parent.identity[0] or found.dev != before.identity[0]):
            how = How.THERE  # it was mounted
        elif how is not How.THERE:
            how = retried
        if child is None:
            child = self._follow(parent, name, identity if link else None)
        if child is not None:
            self._renew(child, found, how)

    def _follow(self, parent: Folder, name: str, target: tuple[int, int] | None) -> Folder | None:
        """A new folder; None where following it had no end."""
        state, path = self._globs.step(parent.state, name).below, parent.at(name)
        if target is not None and self._globs.deep(state) and any(up.identity == target for up in parent.ancestors()):
            return None
        if len(self._folders) >= FOLDERS:
            self._problem(f"the globs lead through more than {FOLDERS} folders: the rest are not seen")
            return None
        child = Folder(path, name, parent, state, self._globs)
        parent.children[name] = child
        self._folders[child] = None
        return child

    def _renew(self, folder: Folder, found: disk.Stat, how: How) -> None:
        """Watch it, and list it if it is not the folder that we knew, or was not watched."""
        identity, wd = (found.dev, found.ino), folder.wd
        folder.mtime_ns = found.mtime_ns
        if identity[0] != folder.identity[0]:
            folder.local = disk.local(folder.place)
        self._listen(folder)
        if identity != folder.identity or folder.wd not in (wd, -1):
            folder.identity, folder.again = identity, True
            self._todo[folder] = how
        self._sort(folder)

    def _leave(self, folder: Folder | None) -> None:
        """Forget a folder and all below it."""
        if folder is None:
            return
        if folder.parent is not None:
            folder.parent.children.pop(folder.name, None)
        left, todo = set(), [folder]
        while todo:
            folder = todo.pop()
            todo.extend(folder.children.values())
            left.add(folder)
            self._deaf(folder)
            self._folders.pop(folder, None)
            self._listed.pop(folder, None)
            self._todo.pop(folder, None)
            self._marks -= folder.listed
        self._matches.left(left)

    def _listen(self, folder: Folder) -> None:
        if self._notify is None:
            return
        if folder.wd < 0 and len(self._by_wd) >= WATCHES:
            self._problem(f"the globs lead through more than {WATCHES} folders: the rest are listed")
            return
        # MASK_ADD: another path may lead to the same inode.
        mask = inotify.ONLYDIR | inotify.MASK_ADD | SELF | CHANGED
        try:
            wd = self._notify.add(folder.place, mask | (USED if self._globs.final(folder.state) else 0))
        except OSError as error:
            wd = -1
            if error.errno == errno.ENOSPC:
                self._problem("no more inotify watches (fs.inotify.max_user_watches): folders are listed instead")
            elif error.errno not in (errno.EACCES, *disk.GONE):  # where it matters its listing fails too, and says so
                self._problem(f"inotify on {folder.place!r}: {error.strerror}; it is listed instead")
        if wd != folder.wd:
            self._deaf(folder)
            folder.wd = wd
            if wd >= 0:
                self._by_wd.setdefault(wd, {})[folder] = None

    def _deaf(self, folder: Folder) -> None:
        others = self._by_wd.get(folder.wd)
        if others is not None and self._notify is not None:
            others.pop(folder, None)
            if not others:
                del self._by_wd[folder.wd]
                self._notify.remove(folder.wd)
        folder.wd = -1

    def _sort(self, folder: Folder) -> None:
        if folder in self._folders and (folder.wd < 0 or not folder.local or folder.unsure):
            self._listed[folder] = None
        else:
            self._listed.pop(folder, None)

    # Listing.

    def _work(self) -> None:
        while self._todo:
            folder, how = self._todo.popitem()
            self._list(folder, how)

    def _check(self, folder: Folder, everything: bool) -> None:
        self._enter(folder.parent, folder.name, How.MADE)
        for name in list(folder.unsure):
            self._enter(folder, name, How.THERE if everything else How.MADE)  # a link may lead to what was mounted
        if folder not in self._folders or folder in self._todo:
            return
        if folder.parent is None:
            folder.mtime_ns = disk.stat("/").mtime_ns
        changed = folder.mtime_ns != folder.listed_mtime_ns
        if changed or folder.again or time.monotonic() >= folder.relist_at:
            folder.again = changed
            self._todo[folder] = How.MADE
            return
        for name in folder.literals:
            self._ask(folder, name, How.MADE)

    def _list(self, folder: Folder, how: How) -> None:
        began = time.monotonic()
        folder.listed_mtime_ns = folder.mtime_ns
        for name in folder.literals:
            self._ask(folder, name, how)
        if folder.open:
            try:
                folder.marks = self._read(folder, How.THERE if folder.unread else how)
                folder.unread = False
            except OSError as error:
                folder.unread = not folder.listed
                if error.errno not in disk.GONE:
                    self._trouble(folder.place, error)
        self._marks += len(folder.marks) - folder.listed
        folder.listed = len(folder.marks)
        ended = time.monotonic()
        folder.relist_at = ended + max(RELIST, RELIST_DUTY * (ended - began))

    def _ask(self, folder: Folder, name: str, how: How) -> None:
        step = self._globs.step(folder.state, name)
        if step.below:
            self._enter(folder, name, how)
        if not step.match_folder:
            return None
        try:
            look = disk.look(folder.at(name), fresh=not folder.local, walk=False)
        except OSError as error:
            return self._trouble(folder.at(name), error)
        if look is not None and fits(step, look):
            self._meet(folder, name, folder.mark(name, look), how, folder.marks)
        else:
            folder.marks.pop(hash(name), None)
        return None

    def _read(self, folder: Folder, how: How) -> dict[int, int]:
        """The marks of all that match.  No system call for one that is known, unless inode numbers mean nothing."""
        marks = {hash(name): folder.marks[hash(name)] for name in folder.literals if hash(name) in folder.marks}
        known = folder.marks
        with os.scandir(folder.place) as entries:
            for entry in entries:
                name, ino = entry.name, entry.inode()
                if known.get(hash(name)) == ino and not folder.exact:
                    marks[hash(name)] = ino
                    continue
                if name in folder.literals:
                    continue
                step = self._globs.step(folder.state, name)
                if step.below and name not in folder.children and entry.is_dir():
                    self._enter(folder, name, how)
                if step.match or (step.match_folder and entry.is_dir()):
                    self._meet(folder, name, _mark(folder, entry), how, marks)
        return marks

    def _meet(self, folder: Folder, name: str, mark: int, how: How, marks: dict[int, int]) -> None:
        if self._marks + len(marks) - folder.listed >= MARKS:
            self._problem(f"more than {MARKS} matches: what is new is seen by inotify alone")
            return
        known = folder.marks.get(hash(name))
        marks[hash(name)] = mark
        if known == mark or how is How.THERE:
            return
        if how is How.RENAMED:
            self._matches.renamed(folder, name)
        else:
            self._matches.tell(folder, name, What.FOUND)

    def _trouble(self, path: str, error: OSError) -> None:
        self._problem(f"{path!r}: {error.strerror}; checkpoints there are not seen")

    def _problem(self, what: str) -> None:
        if what not in self._said and len(self._said) < PROBLEMS:
            self._said.add(what)
            self.problems.append(what)


def _mark(folder: Folder, entry: "os.DirEntry[str]") -> int:
    """SMB without server inodes and many FUSE daemons make inode numbers up: there marks are of size and time."""
    look = Look(entry.inode(), 0, entry.is_dir(follow_symlinks=False))
    try:
        if folder.exact is None and not look.folder:
            folder.exact = entry.stat(follow_symlinks=False).st_ino != look.ino
        if folder.exact and not look.folder:
            found = entry.stat(follow_symlinks=False)
            look = look._replace(print=hash((found.st_size, found.st_mtime_ns)))
    except OSError:
        pass  # gone
    return folder.mark(entry.name, look)
