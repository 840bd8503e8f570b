"""Finding a run dir, of a running ftrun or of one that is gone."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any, Final

from ftrun.host import procfs, work_dir
from ftrun.views import liveness, state

NAMED: Final = 5  # run dirs in a message
_PHASES: Final = re.compile(r"phases(-\w+)?\.json", re.ASCII)
_STARTED: Final = re.compile(r"\d{8}_\d{6}_restartable", re.ASCII)


class NoRunDir(Exception):
    """One line: why there is nothing to read."""


def find(given: str | None) -> str:
    """The run dir to read: as given, else `FTRUN_RUN_DIR`, else that of the only ftrun of this user that runs, else the
    only one under the temp folder.  For root, of any user."""
    path = given or os.environ.get("FTRUN_RUN_DIR")
    if path:
        return _near(path) or _near(found := _within(path)) or found
    left = {_real(folder): folder for folder in _left()}
    holders = _holders()
    running = {real: folder for real, folder in left.items() if real in holders or _runs(folder)}
    temporary = os.environ.get("TMPDIR")
    near = {real: real for real, pid in holders.items() if _temporary(pid) == temporary}
    # Any that runs elsewhere comes last: whoever sets another temp folder wants to be apart.
    for among in (near | running, left, {real: real for real in holders}):
        if len(among) == 1:
            return next(iter(among.values()))
        if among is not left and among:
            raise NoRunDir(f"{len(among)} ftruns run: name one with --run-dir ({_named(among.values())})")
    if left:
        newest = sorted(left.values(), key=_age)
        raise NoRunDir(f"no ftrun runs, and {len(left)} are gone: name one with --run-dir ({_named(newest)})")
    raise NoRunDir(f"no run dir in {temporary or '/tmp'}, and no ftrun runs; name one with --run-dir")


def _near(path: str) -> str | None:
    """Where an ftrun works whose run dir is on a network disk, here: it can be asked there, also while that is dead."""
    ours = (folder for folder in work_dir.local_folders(path) if _whose(folder))
    return next((folder for folder in ours if liveness.is_locked(f"{folder}/events.jsonl")), None)


def _whose(folder: str) -> bool:
    """Whether it belongs to the user in its name, and is ours, or for root anybody's.  Anybody can make one of any
    name."""
    try:
        owner, me = os.lstat(folder).st_uid, os.getuid()
    except OSError:
        return False
    return owner in (me, int(os.path.basename(folder).split("-")[1])) and me in (0, owner)


def check(path: str) -> None:
    """NoRunDir unless it is one that we may read."""
    try:
        os.close(os.open(f"{path}/events.jsonl", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        if not os.path.isfile(f"{path}/events.jsonl"):
            raise NoRunDir(f"{path}: no run dir (its events.jsonl is no file)")
    except PermissionError:
        raise NoRunDir(f"{path}: not permitted: {_owner(path)}") from None
    except FileNotFoundError:
        missing = (
            "there is no such folder" if not os.path.lexists(path) else "no run dir (there is no events.jsonl in it)"
        )
        raise NoRunDir(f"{path}: {missing}") from None
    except (OSError, ValueError) as error:
        raise NoRunDir(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _within(path: str) -> str:
    """Of a folder that has run dirs in it the one under way, else the newest."""
    try:
        names = os.listdir(path)
    except (OSError, ValueError):
        check(path)
        return path
    if "events.jsonl" in names:
        check(path)
        return path
    notes = [name for name in names if _PHASES.fullmatch(name)]
    for note in sorted(notes, key=lambda name: _age(f"{path}/{name}")):
        if (found := _under_way(path, note)) is not None:
            return found
    started = sorted(
        name for name in names if _STARTED.fullmatch(name) and os.path.exists(f"{path}/{name}/events.jsonl")
    )
    path = f"{path}/{started[-1]}" if started else path
    check(path)
    return path


def _under_way(folder: str, note: str) -> str | None:
    """The phase that has begun and is not done, else the last that has."""
    try:
        stages = json.loads(procfs.read(f"{folder}/{note}", state.LIMIT) or b"{}")["phases"]
        begun = [(str(one["run_dir"]), one["succeeded"] is True) for one in stages if one["run_dir"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    names = [name for name, done in begun if not done] or [name for name, _ in begun]
    names = [name for name in names if _STARTED.fullmatch(name) and os.path.exists(f"{folder}/{name}/events.jsonl")]
    return f"{folder}/{names[-1]}" if names else None


def _left() -> list[str]:
    """All under the temp folder that are ours, or for root anybody's."""
    folder, me = os.environ.get("TMPDIR") or "/tmp", os.getuid()
    whose = r"\d+" if me == 0 else str(me)
    try:
        names = [name for name in os.listdir(folder) if re.match(rf"ftrun-{whose}-\d+-", name)]
    except OSError:
        return []
    found = []
    for name in names:
        try:
            if _whose(f"{folder}/{name}"):
                found.append(_within(f"{folder}/{name}"))
        except NoRunDir:
            pass
    return found


def _holders() -> dict[str, int]:
    """The run dirs of those that run, wherever they are, and their pids: each holds the lock of its records."""
    pids = {int(words[4]) for words in liveness.held_locks() if words[4].isdigit()}
    found: dict[str, int] = {}
    for pid in pids:
        for name in _open_files(pid):
            folder, _, file = name.rpartition("/")
            if file == "events.jsonl" and liveness.is_locked(name):
                found[folder] = pid
    return found


def _open_files(pid: int) -> Iterator[str]:
    """None of a process that is gone, or of another user."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            pass


def _runs(folder: str) -> bool:
    return liveness.is_running(folder, state.load(folder).part("run"))


def _temporary(pid: int) -> str | None:
    entries = (procfs.environment(pid) or b"").split(b"\0")
    return next((os.fsdecode(entry[7:]) for entry in entries if entry.startswith(b"TMPDIR=")), None)


def _age(path: str) -> float:
    """The newest first."""
    try:
        return -os.stat(path).st_mtime
    except OSError:
        return 0.0


def _owner(path: str) -> str:
    for known in (f"{path}/events.jsonl", path):
        try:
            uid = os.stat(known).st_uid
        except OSError:
            continue
        if uid != os.getuid():
            return f"it belongs to user {uid}"
    return "its owner, or root, may"


def _real(path: str) -> str:
    return os.path.realpath(path)


def _named(paths: Any) -> str:
    shown = list(paths)
    return ", ".join(shown[:NAMED]) + (", ..." if len(shown) > NAMED else "")
