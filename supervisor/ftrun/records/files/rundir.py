"""Finds the run dir, of a running ftrun or of one that is gone."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from itertools import dropwhile
from typing import Any, Final

from ftrun.host import procfs, work_dir
from ftrun.host.journal import RunDirError
from ftrun.records.files import liveness, state

NAMED: Final = 5  # run dirs that a message lists
_PHASES: Final = re.compile(r"phases(-\w+)?\.json", re.ASCII)
_STARTED: Final = re.compile(r"\d{8}_\d{6}_restartable", re.ASCII)


class NoRunDir(Exception):
    """One line: why there is no run dir to read."""


def find(given: str | None, own: bool = False) -> str:
    """The run dir to read: `given`, else `FTRUN_RUN_DIR`, else that of the only running ftrun of this user, else the
    only one under the temp folder.  For root, those of any user; `own`: also for root only its own, since a command
    must not reach the run of another user by chance."""
    path = given or os.environ.get("FTRUN_RUN_DIR")
    if path:
        return _local_folder(path) or _local_folder(found := _within(path)) or found
    existing = {os.path.realpath(folder): folder for folder in in_temp_folder() if not own or _is_own(folder)}
    holders = {real: pid for real, pid in running().items() if not own or _is_own(f"/proc/{pid}")}
    at_work = {
        real: folder
        for real, folder in existing.items()
        if real in holders or liveness.is_running(folder, state.load(folder).rest.run)
    }
    temp_folder = os.environ.get("TMPDIR")
    near = {real: real for real, pid in holders.items() if _temp_folder(pid) == temp_folder}
    # Those that run with another temp folder come last, since a user sets one to be separate.
    for among in (near | at_work, existing, {real: real for real in holders}):
        if among is existing and existing and (main := _foreign([1])):  # an old run is not what runs in this container
            raise NoRunDir(f"{_foreign_line(main)}; a run dir of yours is {_list(sorted(existing.values(), key=_age))}")
        if len(among) == 1:
            return next(iter(among.values()))
        if among is not existing and among:
            raise NoRunDir(f"{len(among)} ftruns are running: name one with --run-dir ({_list(among.values())})")
    if existing:
        newest = sorted(existing.values(), key=_age)
        raise NoRunDir(
            f"no ftrun is running, and {len(existing)} old run dirs exist: name one with --run-dir ({_list(newest)})"
        )
    others = [] if not own else [folder for folder in running() if folder not in holders]
    if others:
        raise NoRunDir(
            f"no ftrun of yours is running, only of other users: name one with --run-dir ({_list(others)}); "
            "a command acts on another user's run only if it is named"
        )
    for folder, pid in _deleted().items():
        if not own or _is_own(f"/proc/{pid}"):
            raise NoRunDir(_deleted_line(folder, pid))
    if foreign := _foreign(process.pid for process in procfs.all_processes()):
        raise NoRunDir(_foreign_line(foreign))
    raise NoRunDir(f"no run dir in {default_folder()}, and no ftrun is running; name one with --run-dir")


def _local_folder(path: str) -> str | None:
    """The local working folder of a running ftrun whose run dir is on a network disk: readable if that disk is not."""
    candidates = (folder for folder in work_dir.local_folders(path) if _is_permitted(folder))
    return next((folder for folder in candidates if liveness.is_locked(f"{folder}/events.jsonl")), None)


def _is_permitted(folder: str) -> bool:
    """Whether it belongs to the user in its name, and that is this user or, for root, any.  The name alone proves
    nothing: any user can create a folder of any name."""
    try:
        owner, me = os.lstat(folder).st_uid, os.getuid()
    except OSError:
        return False
    return owner in (me, int(os.path.basename(folder).split("-")[1])) and me in (0, owner)


def check(path: str) -> None:
    """Raise NoRunDir unless it is a readable run dir."""
    try:
        os.close(os.open(f"{path}/events.jsonl", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        if not os.path.isfile(f"{path}/events.jsonl"):
            raise NoRunDir(f"{path}: not a run dir (its events.jsonl is not a file)")
    except PermissionError:
        raise NoRunDir(f"{path}: not permitted: {_owner(path)}") from None
    except FileNotFoundError:
        if (pid := _deleted().get(os.path.realpath(path))) is not None:
            raise NoRunDir(_deleted_line(path, pid)) from None
        missing = "no such folder" if not os.path.lexists(path) else "not a run dir (it has no events.jsonl)"
        raise NoRunDir(f"{path}: {missing}") from None
    except (OSError, ValueError) as error:
        raise NoRunDir(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _within(path: str) -> str:
    """The run dir in a folder that contains run dirs: that of the present phase, else the newest."""
    try:
        names = os.listdir(path)
    except (OSError, ValueError):
        check(path)
        return path
    if "events.jsonl" in names:
        check(path)
        return path
    phase_files = [name for name in names if _PHASES.fullmatch(name)]
    for phase_file in sorted(phase_files, key=lambda name: _age(f"{path}/{name}")):
        if (found := _current_phase(path, phase_file)) is not None:
            return found
    started = sorted(
        name for name in names if _STARTED.fullmatch(name) and os.path.exists(f"{path}/{name}/events.jsonl")
    )
    path = f"{path}/{started[-1]}" if started else path
    check(path)
    return path


def _current_phase(folder: str, phase_file: str) -> str | None:
    """The run dir of the phase that has started and not succeeded, else of the last one started."""
    try:
        phases = json.loads(procfs.read(f"{folder}/{phase_file}", state.LIMIT) or b"{}")["phases"]
        begun = [(str(one["run_dir"]), one["succeeded"] is True) for one in phases if one["run_dir"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    names = [name for name, done in begun if not done] or [name for name, _ in begun]
    names = [name for name in names if _STARTED.fullmatch(name) and os.path.exists(f"{folder}/{name}/events.jsonl")]
    return f"{folder}/{names[-1]}" if names else None


def in_temp_folder() -> list[str]:
    """The run dirs under the temp folder that belong to this user, or for root to any."""
    folder, me = default_folder(), os.getuid()
    whose = r"\d+" if me == 0 else str(me)
    try:
        names = [name for name in os.listdir(folder) if re.match(rf"ftrun-{whose}-\d+-", name)]
    except OSError:
        return []
    found = []
    for name in names:
        try:
            if _is_permitted(f"{folder}/{name}"):
                found.append(_within(f"{folder}/{name}"))
        except NoRunDir:
            pass
    return found


def default_folder() -> str:
    """The folder in which ftrun creates run dirs here."""
    try:
        return work_dir.default_folder()
    except RunDirError:
        return os.environ.get("TMPDIR") or "/tmp"


def running() -> dict[str, int]:
    """The run dirs of all running ftruns with their pids: each holds the lock of its records."""
    pids = {int(fields[4]) for fields in liveness.held_locks() if fields[4].isdigit()}
    found: dict[str, int] = {}
    for pid in pids:
        for name in _open_files(pid):
            folder, _, file = name.rpartition("/")
            if file == "events.jsonl" and liveness.is_locked(name):
                found[folder] = pid
    return found


def _deleted() -> dict[str, int]:
    """The run dirs that were deleted while their ftruns run, with the pids of those."""
    pids = {int(fields[4]) for fields in liveness.held_locks() if fields[4].isdigit()}
    suffix = "/events.jsonl (deleted)"  # proc_pid_fd(5)
    return {name.removesuffix(suffix): pid for pid in pids for name in _open_files(pid) if name.endswith(suffix)}


def _deleted_line(folder: str, pid: int) -> str:
    return (
        f"{folder}: this run dir was deleted while its ftrun, process {pid}, runs: there is nothing to show; "
        f"`kill {pid}` ends the run"
    )


def _foreign(pids: Iterable[int]) -> dict[int, int]:
    """Which of these processes are ftruns whose files this user may not see, with their users."""
    found: dict[int, int] = {}
    for pid in pids:
        try:
            if _is_ftrun(pid):
                found[pid] = os.stat(f"/proc/{pid}").st_uid
                os.readlink(f"/proc/{pid}/cwd")  # root without SYS_PTRACE lists /proc/<pid>/fd, but reads nothing there
                del found[pid]
        except PermissionError:
            pass
        except OSError:
            found.pop(pid, None)  # it has ended
    return found


def _is_ftrun(pid: int) -> bool:
    """Whether this process is an ftrun, by its command line, which every user may read."""
    words = os.fsdecode(procfs.read(f"/proc/{pid}/cmdline", 4096) or b"").split("\0")
    if os.path.basename(words[0]).startswith("python"):
        words = [*dropwhile(lambda word: word.startswith("-") and word not in ("-c", "-m"), words[1:]), "", ""]
        words = words[1:] if os.path.basename(words[0]) in ("-m", "isolated.py") else words  # host/isolation.py
    return os.path.basename(words[0]) == "ftrun"


def _foreign_line(foreign: dict[int, int]) -> str:
    one = _list((f"process {pid} is ftrun of user {uid}" for pid, uid in foreign.items()), ", ...")
    who = "that user or as root" if os.getuid() else "that user"
    return f"no ftrun of yours is running, but {one}: run ftctl as {who}, or name a run dir with --run-dir"


def _is_own(path: str) -> bool:
    """Whether this user owns the folder of a run or, under /proc, runs the process."""
    try:
        return os.stat(path).st_uid == os.getuid()
    except OSError:
        return False


def _open_files(pid: int) -> Iterator[str]:
    """The open files of a process; empty if it is gone or belongs to another user."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            pass


def _temp_folder(pid: int) -> str | None:
    entries = procfs.environment(pid)
    return next((os.fsdecode(entry[7:]) for entry in entries if entry.startswith(b"TMPDIR=")), None)


def _age(path: str) -> float:
    """A sort key, newest first."""
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
    return "run ftctl as its owner, or as root"


def _list(paths: Any, rest: str = ", ...; `ftctl list` shows all") -> str:
    shown = list(paths)
    return ", ".join(shown[:NAMED]) + (rest if len(shown) > NAMED else "")
