"""All access to a run dir on a network disk, started by PID 1 (ADR 11).  It may block for as long as the disk does not
respond: PID 1 gives it up, or does not wait for it at all.

    mirror new PATH                  creates a folder with this name, or that of a later second if the name is taken
    mirror fetch LOCAL REMOTE        copies what a new container continues with to LOCAL/.fetched
    mirror get REMOTE LOCAL UNSAVED  copies one file, or its absence; in the other direction if UNSAVED exists and has
                                     the content of REMOTE: then LOCAL was about to replace REMOTE
    mirror put LOCAL REMOTE [ASIDE]  LOCAL replaces REMOTE, which keeps the name ASIDE
    mirror keep LOCAL REMOTE READ    copies LOCAL to REMOTE until stdin ends, and then the rest (synchronization.py);
                                     READ: the token of what was fetched, `none` if there was nothing, `-` if it was not
                                     read in time, `+` for a REMOTE that has yet to be created, as by `new`
The messages are in messages/output.py: `MirrorDone` with the `path` of `new`, or the `read` and `replace` of `fetch`
(`read` is `-` if there is a state that could not be copied); `MirrorRefused` for a folder that ftrun may not write to.
"""

import errno
import os
import time
from typing import Final

from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.helpers.mirror import files
from ftrun.helpers.mirror.synchronization import RECORDS, Synchronization
from ftrun.host.work_dir import FETCHED, NOTHING, UNREAD
from ftrun.messages.output import MIRROR_EVENTS, MirrorDone, MirrorRefused
from ftrun.records.files import liveness

MAX_FETCHED: Final = 64 << 20  # bytes of a file that is fetched
STATE: Final = "state.json"
FETCHED_NAMES: Final = (STATE, *RECORDS, "devices.json")  # the files that ftrun reads or continues
NAMED: Final = "%Y%m%d_%H%M%S"
PERMANENT: Final = (  # errors of the path that waiting does not change
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
    errno.EAGAIN,
)
EXIT_TIMEOUT: Final = 5.0  # s for the mirror of an ftrun that has just been killed to end
TURN: Final = 0.05  # s between checks for its end


@helper(MIRROR_EVENTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    verb, *arguments = argv
    try:
        match verb:
            case "new":
                lines.send(MirrorDone(path=new_folder(arguments[0])))
            case "fetch":
                read, replaced = fetch(*arguments, lines=lines)
                lines.send(MirrorDone(read=read, replace=replaced))
            case "get":
                get(*arguments)
                lines.send(MirrorDone())
            case "put":
                put(*arguments)
                lines.send(MirrorDone())
            case _:
                local, remote, read = arguments
                Synchronization(local, remote, read, make=new_folder, lines=lines).run()
    except OSError as error:
        if verb == "keep" or error.errno not in PERMANENT:
            raise
        lines.send(MirrorRefused(f"run dir {error.filename or arguments[-1]}: {error.strerror}"))


def new_folder(path: str) -> str:
    """Create `FOLDER/<time>_restartable`.  Several nodes get different names."""
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


def fetch(local: str, remote: str, *, lines: ProtocolLines) -> tuple[str, bool]:
    """The token of the remote folder, and whether its content replaces that of `local`: not if `local` has a state that
    was never copied, or if no other ftrun has written there since.  A file without read permission is a problem.
    OSError if another ftrun of this node uses the folder, whose state names live processes."""
    os.makedirs(remote, 0o700, exist_ok=True)
    until = time.monotonic() + EXIT_TIMEOUT
    # A mirror of another node may have died with the node, whose lock stays for a while; it cannot be ended from here.
    while liveness.is_mirrored(remote) and files.load(remote).get("node") == os.uname().nodename:
        if time.monotonic() > until:
            raise BlockingIOError(errno.EAGAIN, "another ftrun works in it", remote)
        time.sleep(TURN)
    remote_token, note = files.load(remote).get("token", NOTHING), files.load(local)
    if note and remote_token in (note["token"], note.get("before")):  # `before`: a mirror was killed while it took over
        return remote_token, False
    if not note and os.path.exists(f"{local}/{STATE}"):
        return UNREAD, False
    fetched = f"{local}/{FETCHED}"
    os.makedirs(fetched, 0o700, exist_ok=True)
    for name in os.listdir(fetched):
        os.unlink(f"{fetched}/{name}")
    # The owner of the folder controls it anyway; on an NFS server with root squashing all files have that owner.
    trusted = (0, os.geteuid(), os.stat(remote).st_uid)
    for name in FETCHED_NAMES:
        found = files.regular(f"{remote}/{name}")
        if found is None or found.st_size > MAX_FETCHED or found.st_uid not in trusted:
            continue
        try:
            files.replace(f"{remote}/{name}", f"{fetched}/{name}")
        except PermissionError as error:
            lines.problem(f"{remote}/{name}: {error.strerror}")
            if name == STATE:
                return UNREAD, False
    return remote_token, True


def get(remote: str, local: str, unsaved: str) -> None:
    """Make both files equal.  The remote one is authoritative, unless it has the content that `unsaved` records."""
    known = files.content(unsaved)
    if known is not None and (files.content(remote) or b"") == known:
        put(local, remote)
    else:
        copy(remote, local)


def put(local: str, remote: str, aside: str = "") -> None:
    os.makedirs(os.path.dirname(remote), 0o700, exist_ok=True)
    # If `aside` exists, an earlier run was killed after the rename.
    if aside and not os.path.lexists(aside) and files.regular(remote) is not None:
        os.rename(remote, aside)
    copy(local, remote)


def copy(source: str, target: str) -> None:
    """Make `target` a copy of `source`, or remove it if `source` is missing."""
    if files.regular(source) is not None:
        files.replace(source, target)
    elif files.regular(target) is not None:
        os.unlink(target)
