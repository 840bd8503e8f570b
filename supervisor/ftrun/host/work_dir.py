"""Where PID 1 works: in the run dir itself, or where that is on a network disk in a local folder that a helper copies
there (`helpers/mirror`, ADR 11).  Nothing in here touches a network disk: that is the helper's, and it is given up when
it does not answer."""

import os
import re
import select
import stat as st
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ftrun.host import mounts, procfs
from ftrun.host.helpers import Helpers
from ftrun.host.journal import Journal, RunDirError
from ftrun.host.signals import Signals
from ftrun.messages.codec import Malformed
from ftrun.messages.helpers import Problem

if TYPE_CHECKING:
    from ftrun.messages import mirror

PATIENCE: Final = 10.0  # s for a network disk to say what it holds, before the job starts without
SAVING: Final = 5.0  # s for a note that is written there between two commands
FETCHED: Final = ".fetched"  # in the local folder: what the network disk holds
# What the copying helper has to know of the other side: the token of what was read, or
UNREAD: Final = "-"  # nothing was: what is there is not to be lost
UNMADE: Final = "+"  # it is to be made under a name that nobody has
NOTHING: Final = "none"  # there was nothing of a mirror


class WorkDir(NamedTuple):
    """`path` is where PID 1 works; `given` what the user knows it by, and where it is in the end, if that is known.
    `copied`: what the mirror is started with, where there is one."""

    path: str
    given: str
    copied: Sequence[str] = ()

    @property
    def output(self) -> str:
        """The folder for what the command prints: the helper that writes it may wait for a disk.  It may be large, so
        it does not go through the local folder, unless nobody knows yet what the other one is called."""
        return self.given

    @property
    def left(self) -> str:
        """A line for the user where not all could be copied."""
        return f"not all of this run is in {self.copied[2]}: it is whole in {self.path}"


def open_run_dir(path: str, new: bool, caught: Signals) -> tuple[WorkDir, Journal, str | None]:
    """The place of the run dir `path` for this ftrun alone, and a line for the user where it is not that very folder.
    `new`: a fresh one, named by the time.  RunDirError, OSError.  Waits for a network disk, at most `PATIENCE`."""
    kind = network_kind(path)
    if kind is None:
        return WorkDir(path, path), Journal(path), _on_root(path)
    read = UNMADE if new else UNREAD
    if new:
        done, problem = _ask(("new", path), None, caught, PATIENCE)
        if done is not None:
            path, read = done.path, NOTHING
    local = local_folder(path) if read != UNMADE else _unnamed(local_temp_folder(path))
    try:
        journal = Journal(local)
    except RunDirError as error:
        raise RunDirError(f"{error} (in place of {path})") from None
    if not new:
        done, problem = _ask(("fetch", local, path), journal.log_fd, caught, PATIENCE)
        if done is not None:
            read = done.read
            journal = _replaced(journal) if done.replace else journal
    said = f"{path} is on a network disk ({kind})"
    if done is None and caught.stop is not None:
        if not os.path.exists(f"{local}/state.json"):  # what begins here is not what the next ftrun goes on with
            journal.close()
            journal = Journal(_unnamed(local_temp_folder(path)))
        said += f": stopped before it was read, and nothing is copied there; all is in {journal.path}"
        return WorkDir(journal.path, journal.path), journal, said
    said += f": ftrun works in {local}, which is copied there"
    if done is None:
        said += f"; {problem}, so the job starts without what is in it"
    elif problem:
        said += f"; {problem}, so the job starts without it"
    return WorkDir(local, path if read != UNMADE else local, ("keep", local, path, read)), journal, said


def network_kind(path: str) -> str | None:
    """The file system, as the kernel calls it, of a network disk that PID 1 does not touch, since there is a local
    folder to work in instead; None where PID 1 works in `path` itself."""
    now = mounts.Mounts()
    kind = now.network(path)
    return None if kind is None or (now.on_root(path) and not _local_temporaries(now)) else kind


def _on_root(path: str) -> str | None:
    """A line for the user where PID 1 works on a root file system that is not known as a local one."""
    if (kind := mounts.network_kind(path)) is None:
        return None
    return (
        f"{path} is on the root file system ({kind}), and none of {', '.join(_temporaries())} is a local folder: ftrun "
        "works there; where that disk does not answer, ftrun waits for it as its command does"
    )


class PersistentFile:
    """A small file that outlives the container, and on a network disk does not stop PID 1.  OSError of the local
    disk, RunDirError of both.  `unread`: why what is over there is not known, empty where it is.  `stopped`: it is
    because ftrun is to end; then nothing is written there."""

    unread, stopped = "", False

    def __init__(self, path: str, caught: Signals) -> None:
        """What was written last is read, from where it was written."""
        self._caught, self.given = caught, path
        self.path, self.remote = path, network_kind(os.path.dirname(path)) is not None
        if not self.remote:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            return
        self.path = f"{local_folder(path)}/{os.path.basename(path)}"
        self._unsaved = f"{self.path}.unsaved"  # the other side did not take what is here
        self.aside = ""  # the name that what is over there is to have when something else is written
        done, problem = _ask(("get", path, self.path, self._unsaved), None, caught, PATIENCE)
        self._late = done is None
        self._known = b""  # what is over there
        if not self._late:
            self._agreed()
        elif caught.stop is not None:
            self.unread, self.stopped = "ftrun was stopped", True
        else:
            self.unread, self.aside = problem, _aside(path, "unread")

    def set_aside(self, why: str) -> str:
        """What it says is not ours: it is kept under a name in the same folder, which this gives."""
        kept = _aside(self.path, why)
        os.rename(self.path, kept)
        if self.remote:
            self.aside = kept = self.aside or _aside(self.given, why)
        return os.path.basename(kept)

    def saved(self) -> bool:
        """Have what is here, or that nothing is, in place on the other side too."""
        if not self.remote:
            return True
        if not os.path.exists(self._unsaved):  # whether it is still so tells who is right, later
            with open(self._unsaved, "wb") as stream:
                stream.write(self._known)
        words = ("put", self.path, self.given, *((self.aside,) if self.aside else ()))
        self._late = _ask(words, None, None, SAVING)[0] is None
        if not self._late:
            self.aside = ""
            self._agreed()
        return not self._late

    def _agreed(self) -> None:
        """Both sides are the same."""
        self._known = procfs.read(self.path) or b""
        if os.path.exists(self._unsaved):
            os.unlink(self._unsaved)

    def fresh(self, path: str) -> str:
        """A new folder beside it, by this name or that of a later second."""
        if self._late:
            return path
        done, _ = _ask(("new", path), None, self._caught, PATIENCE)
        return path if done is None else done.path


def local_folder(path: str) -> str:
    """The local one for a path on a network disk, the same each time on this node; it is ours alone.  RunDirError."""
    first = f"{local_temp_folder(path)}/{_name(path, os.getuid())}"
    for found in (first, *(f"{first}-{number}" for number in range(1, 10))):
        try:
            os.mkdir(found, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise RunDirError(f"{found}: {error.strerror}; {path} is on a network disk") from None
        if _alone(found):
            return found
    raise RunDirError(f"{first} is there already, and not a folder of ours alone; nor is any like it")


def _alone(path: str) -> bool:
    """Whether it is a folder that only we can write to: anybody may make one in a shared temp folder."""
    found = os.lstat(path)
    return st.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def default_run_dir() -> str:
    """A run dir for one who asked for none.  RunDirError."""
    given = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
    return _unnamed(given if network_kind(given) is None else local_temp_folder(given))


def _unnamed(temp: str) -> str:
    return f"{temp}/ftrun-{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}"


def local_temp_folder(path: str) -> str:
    """The temp folder, or another one, that is on a local disk and can be written to, for what is not in `path`; where
    there is none, one on the root file system, whatever that is.  RunDirError."""
    now = mounts.Mounts()
    local = _local_temporaries(now)
    for found in local or _writable(found for found in _temporaries() if now.on_root(found)):
        return found
    raise RunDirError(
        f"{path} is on a network disk, and ftrun needs a local folder to work in: it can write to none of "
        f"{', '.join(_temporaries())}; set TMPDIR to one"
    )


def _local_temporaries(now: mounts.Mounts) -> list[str]:
    return _writable(found for found in _temporaries() if now.network(found) is None)


def _writable(folders: Iterable[str]) -> list[str]:
    return [found for found in folders if os.access(found, os.W_OK | os.X_OK)]


def _temporaries() -> list[str]:
    first = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
    return list(dict.fromkeys((first, "/tmp", "/var/tmp", "/dev/shm")))


def local_folders(path: str) -> list[str]:
    """Local folders on this node that a run dir `path` may be worked in; for who only reads."""
    path, now = os.path.abspath(path), mounts.Mounts()
    if now.network(path) is None:
        return []
    found, ours = [], re.compile(rf"ftrun-\d+{_name(path, '')[6:]}(?:-\d)?")
    for temp in _temporaries():
        if now.network(temp) is None or now.on_root(temp):
            names = os.listdir(temp) if os.path.isdir(temp) else []
            found += [f"{temp}/{n}" for n in names if ours.fullmatch(n)]
    return found


def _name(path: str, user: object) -> str:
    """As the other run dirs in the temp folder are called, so that `ftctl` finds it."""
    return f"ftrun-{user}-0-{digest(path)}"


def digest(text: str) -> str:
    """Sixteen characters for any text: FNV-1a in place of a library."""
    number = 0xCBF29CE484222325
    for byte in os.fsencode(text):
        number = (number ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{number:016x}"


def _aside(path: str, why: str) -> str:
    return f"{path}.{why}-{time.time_ns()}"


def _replaced(journal: Journal) -> Journal:
    """What was fetched takes the place of what was there, which is kept if it was anything."""
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
    words: Sequence[str], log: int | None, caught: Signals | None, patience: float
) -> "tuple[mirror.Done | None, str]":
    """What the helper has done, with its last problem or an empty text; or None and why: it has no answer in time, it
    could not start or died, or `caught` tells us to stop.  RunDirError: it refuses."""
    from ftrun.messages import mirror  # only where the run dir is on a network disk

    poll, until = select.poll(), time.monotonic() + patience
    if caught is not None:
        poll.register(caught.fd, select.POLLIN)
    null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    helpers = Helpers(poll, null if log is None else log)
    helpers.add("mirror", *words, once=True)
    helpers.supervise(time.monotonic())
    problem, came = "", b""
    try:
        while (caught is None or caught.stop is None) and helpers.is_running("mirror"):
            if (left := until - time.monotonic()) <= 0:
                return None, problem or "it has not answered in time"
            ready = {fd for fd, _ in poll.poll(left * 1000 + 1)}
            if caught is not None and caught.fd in ready:
                came += caught.read()
            for _, line in helpers.read_lines(ready, time.monotonic()):
                try:
                    message = None if line is None else mirror.EVENTS.load(line)
                except Malformed as error:
                    problem = str(error)
                    continue
                match message:
                    case mirror.Refused(why):
                        raise RunDirError(why)
                    case mirror.Done():
                        return message, problem
                    case Problem(what):
                        problem = what
        return None, problem or "the helper that reads it did not start, or died"
    finally:
        helpers.close()
        if caught is not None:
            caught.requeue(came)
        os.close(null)
