"""The folders of the beat files, one for each ftrun: their names, locks and removal, and the folder in each from which
the command imports the hooks.

An ftrun holds a lock (flock(2)) on the file `lock` of its folder for its whole life.  The kernel releases the lock when
the process ends, however it ends; the lock also works between containers that share /dev/shm, where process ids have no
meaning.  A folder whose lock is free belongs to an ftrun that was killed: the next ftrun of the same user removes it.
"""

import fcntl
import os
import signal
import stat as st
import time
from _frozen_importlib_external import SourceFileLoader  # importlib.machinery takes longer to load
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ftrun.host import procfs
from ftrun.host.beat_access import READ, closed_to_others
from ftrun.host.signals import writing
from ftrun_hooks import layout as at

PREFIX: Final = "ftrun-beats-"
LOCK: Final = "lock"
HOOKS: Final = os.path.dirname(os.path.abspath(at.__file__))
IMPORT_LINK: Final = f"{at.PYTHON}/sitecustomize.py"
VERSIONS: Final = 64  # files of bytecode that are linked; there is one for each version of Python
# Limits of one call of `remove_stale`, which runs in PID 1: directory entries, and seconds.
MAX_ENTRIES: Final = 20_000
MAX_SECONDS: Final = 0.05


def new_path(memory: str) -> str:
    """The path of a new beat folder in the memory file system at `memory`; nothing is created."""
    return f"{memory}/{PREFIX}{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}"


def is_ours(path: str) -> bool:
    """Return whether `path` is a folder of this user, and not a link."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return st.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def lock(path: str) -> int:
    """Create the lock file of a folder and take the lock; return the descriptor that holds it.  Raises OSError.

    The file gets its name only once the lock is held, so that no other process finds it unlocked.  The descriptor is
    close-on-exec: neither the command nor a helper keeps the lock after ftrun has died.
    """
    unnamed = f"{path}/{LOCK}.new"
    fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(unnamed, f"{path}/{LOCK}")
    except OSError:
        os.close(fd)
        raise
    return fd


def make_import_folder(path: str) -> None:
    """Create the first folder on the command's PYTHONPATH: a link to ftrun's sitecustomize, which finds the others.

    Every user may read it, and only ftrun's user may write to it: a command may change its user before it starts
    Python.  It includes a copy of all hooks if they are installed in a folder that not all users may read.  Raises
    OSError.
    """
    _make_readable_folder(path)
    target = f"{HOOKS}/auto/sitecustomize.py"
    if closed_to_others(target, READ) is not None:
        copy = os.path.basename(HOOKS)
        target = f"{copy}/auto/sitecustomize.py"
        for folder in ("", "/auto"):
            _make_readable_folder(f"{path}/{copy}{folder}")
            for name in os.listdir(HOOKS + folder):
                if name.endswith(".py"):
                    _copy(f"{HOOKS}{folder}/{name}", f"{path}/{copy}{folder}/{name}")
    else:
        _link_bytecode(f"{path}/__pycache__")
    os.symlink(target, f"{path}/sitecustomize.py")


def _link_bytecode(folder: str) -> None:
    """Let the command's Pythons find the bytecode of ftrun's sitecustomize that an installation has: otherwise ranks
    that start at once compile it all at once.  Python replaces the link to a file that is out of date."""
    try:
        names = os.listdir(f"{HOOKS}/auto/__pycache__")
    except OSError:
        return
    for name in names[:VERSIONS]:
        if name.startswith("sitecustomize.") and name.endswith(".pyc"):
            quietly(os.symlink, f"{HOOKS}/auto/__pycache__/{name}", f"{folder}/{name}")


def keep_bytecode() -> None:
    """Compile ftrun's sitecustomize for the next ftrun, as an import would, if its folder has no bytecode of this
    Python and is writable."""
    quietly(SourceFileLoader("sitecustomize", f"{HOOKS}/auto/sitecustomize.py").get_code, "sitecustomize")


def _make_readable_folder(path: str) -> None:
    """Create a folder independent of the umask, including the `__pycache__` that Python would create in it for compiled
    modules with the command's umask: a user who can write there can have other users run their code."""
    for folder in (path, f"{path}/__pycache__"):
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o755)


def _copy(source: str, path: str) -> None:
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with writing():
            os.write(file, procfs.read(source, 1 << 20) or b"")
        os.fchmod(file, 0o644)
    finally:
        os.close(file)


def remove(path: str) -> None:
    """Remove a beat folder of this user.  Anything else, including the target of a link, is left alone."""
    if os.path.basename(path).startswith(PREFIX) and empty(path):
        quietly(os.rmdir, path)


def empty(path: str) -> bool:
    """Remove what is in a folder, if that belongs to this user, as the result says; a link is not followed."""
    try:
        fd = open_folder(path)
    except OSError:
        return False
    try:
        is_own = os.fstat(fd).st_uid == os.geteuid()
        if is_own:
            _empty(fd, float("inf"))
        return is_own
    except OSError:
        return True
    finally:
        os.close(fd)


def remove_stale(beside: str) -> None:
    """Remove the folders of this user's killed ftruns from the memory file system that contains the folder `beside`.

    It never blocks, takes 50 ms at most, and leaves the remaining work to the next call.  It skips folders without a
    lock file, links, folders of other users, and folders in which a process still gives heartbeats: see `_in_use`.
    """
    deadline = time.monotonic() + MAX_SECONDS
    memory, own_name = os.path.split(beside)
    names = []
    try:
        with os.scandir(memory) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_ENTRIES or time.monotonic() > deadline:
                    break
                if entry.name.startswith(PREFIX) and entry.name != own_name:
                    names.append(entry.name)
    except OSError:
        return
    for name in names:
        if time.monotonic() > deadline:
            break
        with suppress(OSError):  # it belongs to another user, its ftrun is alive, or it is gone
            _remove_if_stale(f"{memory}/{name}", deadline)


def _remove_if_stale(path: str, deadline: float) -> None:
    """Raises OSError if the folder must stay or was removed only in part.  The lock file is removed last, so that a
    later call can continue."""
    folder = open_folder(path)
    lock_fd = -1
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        lock_fd = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        as_made = os.fstat(lock_fd)
        if not st.S_ISREG(as_made.st_mode) or as_made.st_uid != os.geteuid():
            return
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(LOCK, dir_fd=folder, follow_symlinks=False).st_ino != as_made.st_ino:
            return  # a running ftrun has just recreated its folder
        if _in_use(folder) or not _empty(folder, deadline, LOCK):
            return
        os.unlink(LOCK, dir_fd=folder)
        os.rmdir(path)
    finally:
        os.close(folder)
        if lock_fd >= 0:
            os.close(lock_fd)


def _in_use(folder: int) -> bool:
    """Return whether a process has the beat file open for writing or mapped: a rank that outlived its ftrun.

    The next ftrun that uses the same run dir ends such a rank and removes its folder; any other ftrun leaves both
    alone.  The kernel grants a read lease on a file only while no process has it open for writing (fcntl(2),
    F_SETLEASE), whichever PID namespace that process is in.  Where the kernel has no leases (EINVAL) the folder counts
    as used.  A process that never gave a heartbeat does not count: hooks that find no folder do nothing.
    """
    try:
        file = os.open(at.BEATS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return False
    try:
        # If a process opens the file meanwhile, the kernel sends a signal: SIGIO would be forwarded to the command.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGCHLD)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def open_folder(path: str, within: int | None = None) -> int:
    """Open the folder itself, not the target of a link that replaced it.  Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)


def _empty(folder: int, deadline: float, keep: str = "") -> bool:
    """Remove everything but `keep` from an open folder; return whether nothing else is left.  Raises OSError if the
    folder cannot be read.

    Whatever the depth, it needs three descriptors at once: ftrun may have few left.  A folder that is not empty is
    moved up into `folder` before its contents are removed.
    """
    folders: list[str] = []
    emptied = _empty_level(folder, folder, folders, deadline, keep)
    for name in folders:  # grows
        try:
            within = open_folder(name, folder)
            try:
                emptied = _empty_level(folder, within, folders, deadline) and emptied
            finally:
                os.close(within)
            os.rmdir(name, dir_fd=folder)
        except OSError:
            emptied = False
    return emptied


def _empty_level(top: int, within: int, folders: list[str], deadline: float, keep: str = "") -> bool:
    """Remove all but `keep` from the open folder `within`; return whether that was done in time.  Folders that are not
    empty are moved to `top`, and their names appended to `folders`.  Raises OSError if `within` cannot be read."""
    emptied = True
    with os.scandir(within) as entries:
        for entry in entries:
            if time.monotonic() > deadline:
                return False
            if entry.name == keep:
                continue
            try:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=within)
                elif not _remove_empty(within, entry.name):
                    name = entry.name
                    if within != top:
                        name = f".{os.urandom(8).hex()}"
                        os.rename(entry.name, name, src_dir_fd=within, dst_dir_fd=top)
                    folders.append(name)
            except OSError:
                emptied = False
    return emptied


def _remove_empty(within: int, name: str) -> bool:
    """Return whether the folder was empty and is removed."""
    try:
        os.rmdir(name, dir_fd=within)
    except OSError:
        return False
    return True


def quietly(call: Callable[..., object], *arguments: str) -> None:
    """Call it and ignore errors."""
    with suppress(OSError, ValueError, BufferError):
        call(*arguments)
