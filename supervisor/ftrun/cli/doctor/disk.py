"""Where ftrun writes, and what watches files."""

import os
from collections.abc import Iterator
from typing import Final

from ftrun.cli.doctor.finding import Finding
from ftrun.helpers.checkpoint_watcher import disk
from ftrun.host import procfs, work_dir
from ftrun.host.inotify import Inotify
from ftrun.host.journal import RunDirError

LITTLE: Final = 100 << 20  # bytes
WATCHES: Final = 8192
MESSAGE: Final = "/dev/termination-log"


def folder(run_dir: str | None) -> Iterator[Finding]:
    """Of the run dir, else where it would be."""
    path = run_dir or _temporary()
    name = "run dir" if run_dir else "temp folder"
    remedy = "--run-dir on a local disk; what is to outlive the pod into --state-dir"
    try:
        found = os.statvfs(path)
        free = found.f_frsize * found.f_bavail
        near = disk.local(path)
    except OSError as error:
        yield Finding(name, "missing", f"{path}: {error.strerror}", "records and reports have no place", remedy)
        return
    told = f"{path}, {_kind(path)}, {free >> 20} MiB free"
    if not os.access(path, os.W_OK):
        yield Finding(name, "missing", f"{told}, not ours to write", "records and reports have no place", remedy)
    elif not near:
        means = "ftrun works in a local folder and copies it there: the copy waits for a server that does not answer"
        if work_dir.network_kind(os.path.abspath(path)) is None:
            means = "no local folder can be written to, so ftrun works there, and waits where that disk does not answer"
        yield Finding(name, "warning", f"{told}, not known as a local file system", means, remedy)
    elif free < LITTLE:
        yield Finding(name, "warning", told, "reports may not fit; the job goes on without", "make room there")
    else:
        yield Finding(name, "ok", told, "records and reports are kept there")


def _temporary() -> str:
    try:
        return os.path.dirname(work_dir.default_run_dir())
    except RunDirError:
        return os.environ.get("TMPDIR") or "/tmp"


def message() -> Iterator[Finding]:
    means = "the verdict is told to Kubernetes as the container's termination message"
    if os.path.exists(MESSAGE):
        able = os.access(MESSAGE, os.W_OK)
        remedy = (
            "" if able else "run as the user that owns it, or --termination-log elsewhere with terminationMessagePath"
        )
        yield Finding(
            "termination",
            "ok" if able else "warning",
            f"{MESSAGE}, {'' if able else 'not '}ours to write",
            means,
            remedy,
        )
    elif "KUBERNETES_SERVICE_HOST" in os.environ:
        remedy = f"terminationMessagePath: {MESSAGE} in the container's spec"
        yield Finding("termination", "missing", f"no {MESSAGE}", "the verdict is in the run dir alone", remedy)
    else:
        yield Finding("termination", "ok", "no Kubernetes here", "the verdict is in the run dir, and in the exit code")


def inotify() -> Iterator[Finding]:
    means = "--progress sees new checkpoint files at once"
    slower = "--progress lists the folders instead, and sees new checkpoint files later"
    names = ("max_user_instances", "max_user_watches")
    instances, watches = ((procfs.read(f"/proc/sys/fs/inotify/{name}", 32) or b"").strip() for name in names)
    told = f"{instances.decode() or 'unknown'} instances, {watches.decode() or 'unknown'} watches a user"
    try:
        Inotify().close()
    except OSError as error:
        remedy = "sysctl fs.inotify.max_user_instances=1024 on the node"
        yield Finding("inotify", "warning", f"{told}; none is to be had: {error.strerror}", slower, remedy)
        return
    if watches.isdigit() and int(watches) < WATCHES:
        yield Finding("inotify", "warning", told, slower, "sysctl fs.inotify.max_user_watches=65536 on the node")
    else:
        yield Finding("inotify", "ok", told, means)


def _kind(path: str) -> str:
    """The file system, as /proc/self/mountinfo names it."""
    device, kind = os.stat(path).st_dev, "unknown file system"
    for line in procfs.mount_lines(procfs.read("/proc/self/mountinfo", 1 << 20)):
        left, _, right = line.partition(" - ")
        words = left.split(" ")
        if len(words) > 4 and words[2] == f"{os.major(device)}:{os.minor(device)}":
            kind = right.split(" ", 1)[0]
    return kind
