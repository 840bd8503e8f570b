"""What stands between PID 1 and a run dir on a network disk, started by PID 1 (ADR 11).  It may block for as long as
the disk does not answer: PID 1 gives it up, or does not wait for it at all.

    mirror new PATH                  makes a folder that nobody has, of this name or that of a later second
    mirror fetch LOCAL REMOTE        brings what a new container goes on with, into LOCAL/.fetched
    mirror get REMOTE LOCAL UNSAVED  one file, that there is none included; but the other way round where UNSAVED is
                                     there and says what REMOTE still is: LOCAL was to take the place of that
    mirror put LOCAL REMOTE [ASIDE]  LOCAL takes the place of REMOTE, which keeps the name ASIDE
    mirror keep LOCAL REMOTE READ    copies LOCAL to REMOTE until stdin ends, and then what is left (keeping.py);
                                     READ: the token of what was fetched, `none` where nothing was there, `-` for not
                                     asked in time, `+` for a REMOTE that is yet to be made, as by `new`
What it says is in messages/mirror.py: `Done` with the `path` of `new`; with `read` and `replace` of `fetch`
(LOCAL/.fetched is to take the place of LOCAL; `read` is `-` where there is a state that is not brought); `Refused` for
what is not ours to write.  It ends with 0 when all is done, or nobody reads any more, with 1 after a problem that it
did not expect.
"""

import errno
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ftrun.helpers.lines import Lines, run
from ftrun.helpers.mirror import files
from ftrun.helpers.mirror.synchronization import RECORDS, Synchronization
from ftrun.host.work_dir import FETCHED, NOTHING, UNREAD
from ftrun.messages.mirror import EVENTS, Done, Refused
from ftrun.views import liveness

MOST: Final = 64 << 20  # bytes of a file that is fetched
STATE: Final = "state.json"
FETCHED_NAMES: Final = (STATE, *RECORDS, "devices.json")  # what an ftrun reads, or goes on with
NAMED: Final = "%Y%m%d_%H%M%S"
WRONG: Final = (  # with the path: to wait would change nothing
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
    errno.EAGAIN,
)
LEAVING: Final = 5.0  # s for the mirror of an ftrun that has just been killed to end
TURN: Final = 0.05  # s between looks whether it has


def main(argv: Sequence[str]) -> int:
    return run(partial(_run, argv), EVENTS)


def _run(argv: Sequence[str], lines: Lines) -> None:
    verb, *words = argv
    try:
        match verb:
            case "new":
                lines.send(Done(path=fresh(words[0])))
            case "fetch":
                read, replaced = fetch(*words, lines=lines)
                lines.send(Done(read=read, replace=replaced))
            case "get":
                get(*words)
                lines.send(Done())
            case "put":
                put(*words)
                lines.send(Done())
            case _:
                local, remote, read = words
                Synchronization(local, remote, read, make=fresh, lines=lines).run()
    except OSError as error:
        if verb == "keep" or error.errno not in WRONG:
            raise
        lines.send(Refused(f"run dir {error.filename or words[-1]}: {error.strerror}"))


def fresh(path: str) -> str:
    """`FOLDER/<time>_restartable`, made here and now: those of several nodes get different names."""
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    folder, name = os.path.split(path)
    stamp, _, rest = name.rpartition("_")
    at = time.mktime(time.strptime(stamp, NAMED))
    while True:
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            at += 1
            path = f"{folder}/{time.strftime(NAMED, time.localtime(at))}_{rest}"


def fetch(local: str, remote: str, *, lines: Lines) -> tuple[str, bool]:
    """The token of what is there, and whether it takes the place of what is in `local`: unless that has a state which
    was never copied, or nobody else has written there since it was.  A file that we may not read is a problem.  OSError
    where another ftrun of this node works there: its state names processes, and they are not to be ended."""
    os.makedirs(remote, 0o700, exist_ok=True)
    until = time.monotonic() + LEAVING
    # That of another node may be gone with it, and its lock stays for a while; nor can we end anything there.
    while liveness.is_mirrored(remote) and files.load(remote).get("node") == os.uname().nodename:
        if time.monotonic() > until:
            raise BlockingIOError(errno.EAGAIN, "another ftrun works in it", remote)
        time.sleep(TURN)
    theirs, note = files.load(remote).get("token", NOTHING), files.load(local)
    if note and theirs in (note["token"], note.get("before")):  # `before`: a mirror was killed as it took it over
        return theirs, False
    if not note and os.path.exists(f"{local}/{STATE}"):
        return UNREAD, False
    brought = f"{local}/{FETCHED}"
    os.makedirs(brought, 0o700, exist_ok=True)
    for name in os.listdir(brought):
        os.unlink(f"{brought}/{name}")
    # Whose folder it is can do as he likes there; of a squashing NFS server he is also who wrote all.
    believed = (0, os.geteuid(), os.stat(remote).st_uid)
    for name in FETCHED_NAMES:
        found = files.regular(f"{remote}/{name}")
        if found is None or found.st_size > MOST or found.st_uid not in believed:
            continue
        try:
            files.replace(f"{remote}/{name}", f"{brought}/{name}")
        except PermissionError as error:
            lines.problem(f"{remote}/{name}: {error.strerror}")
            if name == STATE:
                return UNREAD, False
    return theirs, True


def get(remote: str, local: str, unsaved: str) -> None:
    """Make the two the same.  What is over there is right, unless it is what `unsaved` says, where there is that."""
    known = files.content(unsaved)
    if known is not None and (files.content(remote) or b"") == known:
        put(local, remote)
    else:
        take(remote, local)


def put(local: str, remote: str, aside: str = "") -> None:
    os.makedirs(os.path.dirname(remote), 0o700, exist_ok=True)
    if aside and not os.path.lexists(aside) and files.regular(remote) is not None:  # else we were killed over it
        os.rename(remote, aside)
    take(local, remote)


def take(source: str, target: str) -> None:
    """Make `target` what `source` is, be it nothing."""
    if files.regular(source) is not None:
        files.replace(source, target)
    elif files.regular(target) is not None:
        os.unlink(target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
