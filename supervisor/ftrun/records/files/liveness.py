"""Whether an ftrun is running in a run dir.  Its lock is never taken, as that would make a starting ftrun fail."""

import fcntl
import os
import struct

from ftrun.host import mounts, procfs
from ftrun.messages.run_state import RunFacts


def is_running(run_dir: str, run: RunFacts) -> bool:
    """Whether an ftrun is running there, by the process that `state.json` names; if that is in another PID namespace,
    by the lock on the records; on a network disk by the lock of the mirror, which may be on another node."""
    return is_local(run) or is_locked(f"{run_dir}/events.jsonl") or is_mirrored(run_dir)


def is_local(run: RunFacts) -> bool:
    """Whether that ftrun is running and in this PID namespace, so that its pids are valid here."""
    process = procfs.stat(run.pid) if run.pid is not None and run.pid > 0 and same_boot(run) else None
    return process is not None and process.start == run.pid_start and not process.ended


def stopped(run: RunFacts) -> int | None:
    """The pid of that ftrun, if it runs here and a signal has stopped it: it watches nothing then."""
    process = procfs.stat(run.pid) if is_local(run) and run.pid is not None else None
    return run.pid if process is not None and process.state in "Tt" else None


def same_boot(run: RunFacts) -> bool:
    """Whether its monotonic times are comparable with the clock here."""
    return run.boot in ("", procfs.boot_id())


def is_locked(path: str) -> bool:
    """Whether /proc/locks shows a flock on this file."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    held = {fields[5] for fields in held_locks()}
    if not any(name.endswith(b":%d" % found.st_ino) for name in held):
        return False
    return any(b"%02x:%02x:%d" % (*device, found.st_ino) in held for device in _devices(path, found.st_dev))


def is_mirrored(run_dir: str) -> bool:
    """Whether a mirror is running there (ADR 11).  fcntl(2): F_GETLK asks the server, if any, and takes no lock."""
    try:
        fd = os.open(f"{run_dir}/mirror.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        query = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = struct.unpack("hhqqi", fcntl.fcntl(fd, fcntl.F_GETLK, query))[0]
        return kind != fcntl.F_UNLCK
    except OSError:
        return False
    finally:
        os.close(fd)


def held_locks() -> list[list[bytes]]:
    """Every flock that is held, as the fields of fs/locks.c: `1: FLOCK  ADVISORY  WRITE 4711 fd:01:131 0 EOF`."""
    # The kernel returns the list a page at a time: if it changes meanwhile, a line may be missing.
    lines = {line for _ in range(3) for line in (procfs.read("/proc/locks", 1 << 20) or b"").split(b"\n")}
    split = (line.split() for line in lines)
    return [fields for fields in split if len(fields) > 5 and fields[1] == b"FLOCK"]  # a waiter has an arrow there


def _devices(path: str, device: int) -> set[tuple[int, int]]:
    """The device numbers of `stat` and of the mount: btrfs and overlays report another number for their files."""
    path, best, of_mount = os.path.realpath(path), "", (os.major(device), os.minor(device))
    for mount in mounts.listed():
        point = mount.point.rstrip("/")
        if path.startswith(f"{point}/") and len(point) >= len(best):
            major, _, minor = mount.device.partition(":")
            best, of_mount = point, (int(major), int(minor))
    return {(os.major(device), os.minor(device)), of_mount}
