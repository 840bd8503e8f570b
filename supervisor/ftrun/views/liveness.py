"""Whether an ftrun works in a run dir now.  Its lock is looked at, never taken: one that starts would be refused."""

import fcntl
import os
import struct
from typing import Any

from ftrun.host import procfs


def lives(run_dir: str, run: dict[str, Any]) -> bool:
    """By the process that `state.json` names; where that is none of ours, as in a container, by who holds the lock; on
    a network disk by who copies there, from whatever node."""
    return here(run) or locked(f"{run_dir}/events.jsonl") or copied(run_dir)


def here(run: dict[str, Any]) -> bool:
    """Whether that ftrun lives and is in our PID namespace, so that its pids are ours."""
    pid, start = run.get("pid"), run.get("pid_start")
    process = procfs.stat(pid) if type(pid) is int and pid > 0 and same_boot(run) else None
    return process is not None and process.start == start and not process.ended


def same_boot(run: dict[str, Any]) -> bool:
    """Whether its times are on our clock."""
    return run.get("boot") in (None, boot())


def boot() -> str:
    return (procfs.read("/proc/sys/kernel/random/boot_id", 64) or b"").decode("ascii", "replace").strip()


def locked(path: str) -> bool:
    """Whether somebody whom /proc/locks shows us holds a flock on this file."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    held = {words[5] for words in locks()}
    if not any(name.endswith(b":%d" % found.st_ino) for name in held):
        return False
    return any(b"%02x:%02x:%d" % (*device, found.st_ino) in held for device in _devices(path, found.st_dev))


def copied(run_dir: str) -> bool:
    """Whether a mirror works there (ADR 11).  fcntl(2): F_GETLK asks the server, if any, and takes nothing."""
    try:
        fd = os.open(f"{run_dir}/mirror.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        asked = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = struct.unpack("hhqqi", fcntl.fcntl(fd, fcntl.F_GETLK, asked))[0]
        return kind != fcntl.F_UNLCK
    except OSError:
        return False
    finally:
        os.close(fd)


def locks() -> list[list[bytes]]:
    """Every flock that is held, in the words of fs/locks.c: `1: FLOCK  ADVISORY  WRITE 4711 fd:01:131 0 EOF`."""
    # The kernel hands the list out a page at a time: one that others change meanwhile lacks a line now and then.
    lines = {line for _ in range(3) for line in (procfs.read("/proc/locks", 1 << 20) or b"").split(b"\n")}
    split = (line.split() for line in lines)
    return [words for words in split if len(words) > 5 and words[1] == b"FLOCK"]  # one that waits has an arrow


def _devices(path: str, told: int) -> set[tuple[int, int]]:
    """As `stat` has it, and as the mount has it: btrfs and overlays tell another number for their files."""
    path, best, of_mount = os.path.realpath(path), "", (os.major(told), os.minor(told))
    for line in procfs.mount_lines(procfs.read("/proc/self/mountinfo", 1 << 20)):
        words = line.split(" ")
        point = words[4].rstrip("/")
        if path.startswith(f"{point}/") and len(point) >= len(best):
            major, _, minor = words[2].partition(":")
            best, of_mount = point, (int(major), int(minor))
    return {(os.major(told), os.minor(told)), of_mount}
