"""Checks of the folders that ftrun writes to, and of inotify."""

import os
from collections.abc import Iterator
from typing import Final

from ftctl.doctor.finding import CheckOutcome, warn_if
from ftrun.host import mounts, procfs, work_dir
from ftrun.host.inotify import Inotify
from ftrun.records.files import rundir

LITTLE: Final = 100 << 20  # bytes
WATCHES: Final = 8192
MESSAGE: Final = "/dev/termination-log"


def folder(run_dir: str | None) -> Iterator[CheckOutcome]:
    """Check the run dir, or the folder in which it would be created."""
    path = run_dir or rundir.default_folder()
    name = "run dir" if run_dir else "temp folder"
    remedy = "use --run-dir on a local disk; put what must outlive the pod into --state-dir"
    try:
        found = os.statvfs(path)
        free = found.f_frsize * found.f_bavail
        near = mounts.network_kind(os.path.abspath(path)) is None
    except OSError as error:
        yield CheckOutcome(
            name, "missing", f"{path}: {error.strerror}", "records and reports cannot be written", remedy
        )
        return
    text = f"{path}, {_kind(path)}, {free >> 20} MiB free"
    if not os.access(path, os.W_OK):
        yield CheckOutcome(name, "missing", f"{text}, not writable", "records and reports cannot be written", remedy)
    elif not near:
        means = "ftrun works in a local folder and copies it there; only the copy waits if the server does not answer"
        if work_dir.network_kind(os.path.abspath(path)) is None:
            means = "no local folder is writable, so ftrun works there, and waits if that disk does not answer"
        yield CheckOutcome(name, "warning", f"{text}, not known as a local file system", means, remedy)
    elif free < LITTLE:
        yield CheckOutcome(
            name, "warning", text, "reports may not fit; the job continues without them", "free space there"
        )
    else:
        yield CheckOutcome(name, "ok", text, "records and reports are kept there")


def message() -> Iterator[CheckOutcome]:
    means = "the verdict is reported to Kubernetes as the termination message of the container"
    if os.path.exists(MESSAGE):
        able = os.access(MESSAGE, os.W_OK)
        remedy = "run as the user that owns it, or --termination-log elsewhere with terminationMessagePath"
        yield warn_if(not able, "termination", f"{MESSAGE}, {'' if able else 'not '}writable", means, remedy)
    elif "KUBERNETES_SERVICE_HOST" in os.environ:
        remedy = f"set terminationMessagePath: {MESSAGE} in the container spec"
        yield CheckOutcome("termination", "missing", f"no {MESSAGE}", "the verdict is only in the run dir", remedy)
    else:
        means = "the verdict is in the run dir and the exit code"
        yield CheckOutcome("termination", "ok", "not running in Kubernetes", means)


def inotify() -> Iterator[CheckOutcome]:
    means = "--progress detects new checkpoint files at once"
    slower = "--progress lists the folders instead, and detects new checkpoint files later"
    names = ("max_user_instances", "max_user_watches")
    instances, watches = ((procfs.read(f"/proc/sys/fs/inotify/{name}", 32) or b"").strip() for name in names)
    text = f"{instances.decode() or 'unknown'} instances, {watches.decode() or 'unknown'} watches per user"
    try:
        Inotify().close()
    except OSError as error:
        remedy = "sysctl fs.inotify.max_user_instances=1024 on the node"
        yield CheckOutcome("inotify", "warning", f"{text}; none available: {error.strerror}", slower, remedy)
        return
    few = watches.isdigit() and int(watches) < WATCHES
    yield warn_if(
        few, "inotify", text, slower if few else means, "sysctl fs.inotify.max_user_watches=65536 on the node"
    )


def _kind(path: str) -> str:
    """The type of the file system, from /proc/self/mountinfo."""
    device, kind = os.stat(path).st_dev, "unknown file system"
    for mount in mounts.listed():
        if mount.device == f"{os.major(device)}:{os.minor(device)}":
            kind = mount.type
    return kind
