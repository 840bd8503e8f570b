"""The folder in which PID 1 works: the run dir itself, or, if that is on a network disk, a local folder that a helper
copies there (`helpers/mirror`, ADR 11).  This module never accesses a network disk: only the helper does, and PID 1
gives up on it if it does not answer."""

import errno
import os
import re
import select
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import mounts, procfs, safe_files
from ftrun.host.helpers import Helpers
from ftrun.host.journal import Journal, RunDirError
from ftrun.host.signals import Signals, writing
from ftrun.messages.codec import Malformed
from ftrun.messages.helpers import Problem

if TYPE_CHECKING:
    from ftrun.messages import output

PATIENCE: Final = 10.0  # s to wait for the content of a network disk before the job starts without it
SAVING: Final = 5.0  # s to wait while a small file is written there between two commands
FETCHED: Final = ".fetched"  # name in the local folder for the content of the network disk
# For the mirror helper, the state of the remote folder: the token of the content that was read, or
UNREAD: Final = "-"  # the content was not read and must not be lost
UNMADE: Final = "+"  # the folder must be created under an unused name
NOTHING: Final = "none"  # the folder contained no mirrored run


class WorkDir(NamedTuple):
    """`path`: where PID 1 works.  `given`: the path that the user knows, where the run dir is in the end, if that is
    known.  `copied`: the arguments of the mirror helper, if there is one."""

    path: str
    given: str
    copied: Sequence[str] = ()

    @property
    def left(self) -> str:
        """A line for the user if not everything could be copied."""
        return f"not all of this run is in {self.copied[2]}: the complete run is in {self.path}"


def open_run_dir(path: str, new: bool, caught: Signals) -> tuple[WorkDir, Journal, str | None]:
    """Open the run dir `path` for this ftrun alone; return also a line for the user if ftrun works elsewhere.  `new`:
    create a new one, named by the time.  Raises RunDirError, OSError.  Waits for a network disk, at most `PATIENCE`."""
    now = mounts.Mounts()
    kind = network_kind(path, now)
    if kind is None:
        return WorkDir(path, path), Journal(path), _on_root(path, now)
    read = UNMADE if new else UNREAD
    if new:
        done, problem = _ask(("new", path), None, caught, PATIENCE)
        if done is not None:
            path, read = done.path, NOTHING
    local = local_folder(path) if read != UNMADE else _random_name(local_temp_folder(path))
    try:
        journal = Journal(local)
    except RunDirError as error:
        raise RunDirError(f"{error} (in place of {path})") from None
    if not new:
        done, problem = _ask(("fetch", local, path), journal.log_fd, caught, PATIENCE)
        if done is not None:
            read = done.read
            journal = _replace_with_fetched(journal) if done.replace else journal
    message = f"{path} is on a network disk ({kind})"
    if done is None and caught.stop is not None:
        if not os.path.exists(f"{local}/state.json"):  # the next ftrun must not continue from what begins here
            journal.close()
            journal = Journal(_random_name(local_temp_folder(path)))
        message += f": ftrun was stopped before it read it, and copies nothing there; all records are in {journal.path}"
        return WorkDir(journal.path, journal.path), journal, message
    message += f": ftrun works in {local}, which is copied there"
    if done is None:
        message += f"; {problem}, so the job starts without its content"
    elif problem:
        message += f"; {problem}, so the job starts without it"
    return WorkDir(local, path if read != UNMADE else local, ("keep", local, path, read)), journal, message


def network_kind(path: str, now: mounts.Mounts | None = None) -> str | None:
    """Return the type, as the kernel names it, of the network disk of `path`, which PID 1 does not access, since there
    is a local folder to work in instead; None if PID 1 works in `path` itself."""
    now = now or mounts.Mounts()
    kind = now.network_kind(path)
    return None if kind is None or (now.on_root(path) and not local_temporaries(now)) else kind


def _on_root(path: str, now: mounts.Mounts) -> str | None:
    """Return a line for the user if PID 1 works on a root file system that is not known to be local."""
    if (kind := now.network_kind(path)) is None:
        return None
    return (
        f"{path} is on the root file system ({kind}), and none of {', '.join(_temporaries())} is a local folder: ftrun "
        "works there; if that disk does not answer, ftrun blocks, and so does its command"
    )


class PersistentFile:
    """A small file that outlives the container, and does not block PID 1 if it is on a network disk.  Raises OSError
    for the local disk, RunDirError for both.  `unread`: why the remote content is not known; empty if it is.
    `stopped`: the reason is that ftrun was asked to stop; then nothing is written there."""

    unread, stopped = "", False

    def __init__(self, path: str, caught: Signals) -> None:
        """Fetch the content that was written last."""
        self._caught, self.given = caught, path
        self.path, self.remote = path, network_kind(os.path.dirname(path)) is not None
        if not self.remote:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            return
        self.path = f"{local_folder(path)}/{os.path.basename(path)}"
        self._unsaved = f"{self.path}.unsaved"  # marks local content that is not copied to the remote side
        self.aside = ""  # the name that unread remote content gets when new content is written
        done, problem = _ask(("get", path, self.path, self._unsaved), None, caught, PATIENCE)
        self._unreachable = done is None
        self._known = b""  # the remote content
        if not self._unreachable:
            self._mark_in_sync()
        elif caught.stop is not None:
            self.unread, self.stopped = "ftrun was stopped", True
        else:
            self.unread, self.aside = problem, _aside(path, "unread")

    def set_aside(self, why: str) -> str:
        """The content is not ftrun's: rename the file within its folder and return the new name."""
        kept = _aside(self.path, why)
        os.rename(self.path, kept)
        if self.remote:
            self.aside = kept = self.aside or _aside(self.given, why)
        return os.path.basename(kept)

    def saved(self) -> bool:
        """Copy the local content, or its absence, to the remote side; return whether that succeeded."""
        if not self.remote:
            return True
        if not os.path.exists(self._unsaved):  # later this tells which side is newer
            with writing(), open(self._unsaved, "wb") as stream:
                stream.write(self._known)
        request = ("put", self.path, self.given, *((self.aside,) if self.aside else ()))
        self._unreachable = _ask(request, None, None, SAVING)[0] is None
        if not self._unreachable:
            self.aside = ""
            self._mark_in_sync()
        return not self._unreachable

    def _mark_in_sync(self) -> None:
        """Record that both sides are the same."""
        self._known = procfs.read(self.path) or b""
        if os.path.exists(self._unsaved):
            os.unlink(self._unsaved)

    def fresh(self, path: str) -> str:
        """Create a new folder beside the file, with this name or the name of a later second."""
        if self._unreachable:
            return path
        done, _ = _ask(("new", path), None, self._caught, PATIENCE)
        return path if done is None else done.path


def local_folder(path: str) -> str:
    """Return the local folder for a path on a network disk: the same each time on this node, and private to this user.
    Raises RunDirError."""
    first = f"{local_temp_folder(path)}/{_name(path, os.getuid())}"
    try:
        found = safe_files.private_folder(first)
    except OSError as error:
        raise RunDirError(f"{first}: {error.strerror}; {path} is on a network disk") from None
    if found is None:
        raise RunDirError(f"{first} already exists and is not a private folder of this user; nor are its alternatives")
    return found


def default_run_dir() -> str:
    """Return a new run dir path for a user who chose none.  Raises RunDirError."""
    return _random_name(default_folder())


def open_default_run_dir(caught: Signals) -> tuple[WorkDir, Journal, str | None]:
    """Open a new run dir for a user who chose none, as `open_run_dir` does: in the temp folder or, where that is full,
    in another one.  Raises RunDirError."""
    problem: RunDirError | None = None
    full = list[str]()
    for folder in _default_folders():
        path = _random_name(folder)
        if is_full(folder):  # empty files may fit in
            full.append(path)
            problem = problem or RunDirError(f"run dir {path}: {os.strerror(errno.ENOSPC)}")
            continue
        try:
            where, journal, message = open_run_dir(path, False, caught)
        except RunDirError as error:
            problem = problem or error
            for remove, left in ((os.unlink, f"{path}/events.jsonl"), (os.rmdir, path)):
                with suppress(OSError):
                    remove(left)
        else:
            return where, journal, message if problem is None else f"{problem}; ftrun works in {path}"
    if full:  # the job runs without records
        return open_run_dir(full[0], False, caught)
    assert problem is not None, "there is at least the default folder"
    raise problem


def _default_folders() -> Iterator[str]:
    yield (first := default_folder())
    yield from (folder for folder in local_temporaries(mounts.Mounts()) if folder != first)


def is_full(folder: str) -> bool:
    """Return whether nothing can be written to its disk."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return bool(disk.f_blocks) and not (disk.f_bfree if os.getuid() == 0 else disk.f_bavail)


def default_folder() -> str:
    """Return the folder of run dirs that no user chose: the temp folder, or another folder if ftrun cannot work there.
    Raises RunDirError."""
    given = _temporaries()[0]
    return given if network_kind(given) is None and _writable([given]) else local_temp_folder(given)


def _random_name(temp: str) -> str:
    return f"{temp}/ftrun-{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}"


def local_temp_folder(path: str) -> str:
    """Return a writable temp folder on a local disk, for files that cannot be in `path`; if there is none, one on the
    root file system, whatever its type.  Raises RunDirError."""
    now = mounts.Mounts()
    for found in local_temporaries(now) or _writable(found for found in _temporaries() if now.on_root(found)):
        return found
    cause = "" if now.network_kind(path) is None else f"{path} is on a network disk, and "
    raise RunDirError(
        f"{cause}ftrun needs a local folder to work in: it can write to none of {', '.join(_temporaries())}; set "
        "TMPDIR to one"
    )


def local_temporaries(now: mounts.Mounts) -> list[str]:
    """Return the temp folders on local disks to which this user can write, the usual one first."""
    return _writable(found for found in _temporaries() if now.network_kind(found) is None)


def _writable(folders: Iterable[str]) -> list[str]:
    return [found for found in folders if os.access(found, os.W_OK | os.X_OK)]


def _temporaries() -> list[str]:
    first = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
    return list(dict.fromkeys((first, "/tmp", "/var/tmp", "/dev/shm", "/run")))


def local_folders(path: str) -> list[str]:
    """Return the local folders on this node in which a run dir `path` may be worked in; for readers."""
    path, now = os.path.abspath(path), mounts.Mounts()
    if now.network_kind(path) is None:
        return []
    folders, pattern = [], re.compile(rf"ftrun-\d+{_name(path, '')[6:]}(?:-\d)?")
    for temp in _temporaries():
        if now.network_kind(temp) is None or now.on_root(temp):
            names = os.listdir(temp) if os.path.isdir(temp) else []
            folders += [f"{temp}/{n}" for n in names if pattern.fullmatch(n)]
    return folders


def _name(path: str, user: object) -> str:
    """Return a folder name like the names of other run dirs in the temp folder, so that `ftctl` finds it."""
    return f"ftrun-{user}-0-{digest(path)}"


def digest(text: str) -> str:
    """Return sixteen characters that identify a text: FNV-1a, which needs no library."""
    number = 0xCBF29CE484222325
    for byte in os.fsencode(text):
        number = (number ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{number:016x}"


def _aside(path: str, why: str) -> str:
    return f"{path}.{why}-{time.time_ns()}"


def _replace_with_fetched(journal: Journal) -> Journal:
    """Replace the local folder by the fetched one; the old one is kept unless it was empty."""
    path = journal.path
    aside = f"{path}.{time.time_ns()}"
    os.rename(path, aside)
    os.rename(f"{aside}/{FETCHED}", path)
    fresh = Journal(path)
    journal.close()
    if set(os.listdir(aside)) <= {"events.jsonl", "run.log"}:
        for name in os.listdir(aside):
            os.unlink(f"{aside}/{name}")
        os.rmdir(aside)
    return fresh


def _ask(
    request: Sequence[str], log: int | None, caught: Signals | None, patience: float
) -> "tuple[output.MirrorDone | None, str]":
    """Run the mirror helper; return its result with its last problem or an empty text; or None and the reason: it did
    not answer in time, could not start, died, or `caught` received a signal to stop.  Raises RunDirError if it
    refuses."""
    from ftrun.messages import output  # only where the run dir is on a network disk

    poll, until = select.poll(), time.monotonic() + patience
    if caught is not None:
        poll.register(caught.fd, select.POLLIN)
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    helpers = Helpers(poll, null if log is None else log)
    helpers.add("mirror", *request, once=True)
    helpers.supervise(time.monotonic())
    problem, signals = "", b""
    try:
        while (caught is None or caught.stop is None) and helpers.is_running("mirror"):
            if (left := until - time.monotonic()) <= 0:
                return None, problem or "it did not answer in time"
            ready = {fd for fd, _ in poll.poll(left * 1000 + 1)}
            if caught is not None and caught.fd in ready:
                signals += caught.read()
            for _, line in helpers.read_lines(ready, time.monotonic()):
                try:
                    message = None if line is None else output.MIRROR_EVENTS.load(line)
                except Malformed as error:
                    problem = str(error)
                    continue
                match message:
                    case output.MirrorRefused(why):
                        raise RunDirError(why)
                    case output.MirrorDone():
                        return message, problem
                    case Problem(what):
                        problem = what
        return None, problem or "the helper that reads it did not start or died"
    finally:
        helpers.close()
        if caught is not None:
            caught.requeue(signals)
        os.close(null)
