"""Checks of the processes, the limits, the memory and the installed packages of this container."""

import os
import platform
import resource
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from ftctl.common import GIB, size
from ftctl.doctor.finding import CheckOutcome, warn_if
from ftrun import __version__
from ftrun.host import beats, installation, mounts, oom, procfs, spawn
from ftrun_hooks.layout import FILE_BYTES
from waitproof import stacks

SHELLS: Final = ("sh", "bash", "dash", "ash", "zsh", "busybox", "ksh")
KILL, SETUID = 5, 7  # bits of a capability set, capabilities(7)
MANY: Final = 4096  # file descriptors, processes and threads
# The target for py-spy: it waits for the end of its stdin, which comes when this process exits, and is killed before.
SLEEPER: Final = "import sys; sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"
SPY: Final = 5.0  # s
THREADS: Final = "each thread of each rank counts; at the limit fork fails"
WORKERS: Final = GIB  # bytes of /dev/shm: data workers pass batches in it
UNLIMITED: Final = 1 << 60  # bytes; version 1 reports a number of that order if there is no limit
# The verbs or options that need it, and the extra of ftrun with which it is installed; empty: always.
PACKAGES: Final = {
    "pyzmq": ("restart, stop, pause and resume", ""),
    "rich": ("top", ""),
    "psutil": ("processor time and memory of the ranks in top and serve", ""),
    "prometheus-client": ("--metrics", "metrics"),
    "starlette": ("serve", "page"),
    "uvicorn": ("serve", "page"),
}


def first(pid: int | None) -> Iterator[CheckOutcome]:
    """`pid`: of the running ftrun; None if none is running."""
    one = procfs.stat(1)
    name = "ftrun" if pid == 1 else one.name if one else "an invisible process"
    if pid == 1:
        yield CheckOutcome(
            "PID 1", "ok", "ftrun is PID 1", "it receives every signal and every orphan of this container"
        )
    elif name in SHELLS and os.getppid() != 1:
        remedy = 'start ftrun in place of it: ENTRYPOINT ["ftrun", ...] in exec form, or `exec ftrun ...` in its script'
        means = "a shell does not forward signals: the SIGTERM of the scheduler may not reach ftrun"
        yield CheckOutcome("PID 1", "warning", f"PID 1 is a shell, {name}", means, remedy)
    else:
        yield CheckOutcome("PID 1", "ok", f"PID 1 is {name}", "ftrun runs below it, as a subreaper")
    if pid != 1:
        able = spawn.become_subreaper() and spawn.prctl(spawn.PR_SET_CHILD_SUBREAPER, 0)
        if able:
            yield CheckOutcome("subreaper", "ok", "permitted", "daemons of the command are found and terminated")
        else:
            remedy = "make ftrun PID 1 of the container, or permit prctl in the seccomp profile"
            yield CheckOutcome("subreaper", "missing", "refused", "daemons of the command outlive a restart", remedy)


def signalling(pid: int | None) -> Iterator[CheckOutcome]:
    """Whether ftrun can signal a command that changes its user (capabilities(7))."""
    lines = (procfs.read(f"/proc/{pid or 'self'}/status", 1 << 16) or b"").decode("ascii", "replace").splitlines()
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), None)
    if effective is None:
        return
    kills, changes = (bool(effective >> bit & 1) for bit in (KILL, SETUID))
    if kills:
        means = "ftrun can signal and terminate the command, whatever its user is"
        yield CheckOutcome("signals", "ok", "CAP_KILL is available", means)
    elif not changes:
        means = "ftrun can signal the processes of its user; it cannot signal a set-user-ID program (sudo)"
        yield CheckOutcome("signals", "ok", "no CAP_KILL, no CAP_SETUID", means)
    else:
        yield CheckOutcome(
            "signals",
            "warning",
            "no CAP_KILL, but CAP_SETUID",
            "a command that changes its user (gosu, setpriv) gets no signal, SIGTERM included, and is never restarted",
            "docker: --cap-add KILL; Kubernetes: securityContext.capabilities.add: [KILL]; or start ftrun as that user",
        )


def proc() -> Iterator[CheckOutcome]:
    for mount in mounts.listed():
        hidden = [option for option in mount.options if option.startswith("hidepid=") and option != "hidepid=0"]
        if mount.point == "/proc" and hidden and os.getuid() != 0:
            means = "processes of other users in the tree are invisible, and missing in reports"
            yield CheckOutcome("/proc", "warning", f"mounted with {hidden[0]}", means, "mount it without hidepid")


def tracing() -> Iterator[CheckOutcome]:
    """Whether stacks can be read as the evidence helper reads them: by py-spy, of a process that is not its
    descendant."""
    spy = stacks.program()
    if spy is None:
        yield CheckOutcome("py-spy", "missing", "not installed", "no Python stacks in reports", "pip install py-spy")
        return
    with open(os.devnull, "wb") as null:
        child = spawn.spawn_helper([sys.executable, "-I", "-S", "-c", SLEEPER], null.fileno())
    try:
        os.set_blocking(child.output, True)
        os.read(child.output, 1)  # it is running
        seen = stacks.collect(spy, [child.pid], SPY)
    finally:
        os.kill(child.pid, 9)
        os.waitpid(child.pid, 0)
        os.close(child.output)
        os.close(child.held)
    why = seen.missing.get(child.pid)
    if why is None:
        means = "reports and `ftctl stacks` show where every Python process is"
        yield CheckOutcome("py-spy", "ok", "it can read the stack of a test process", means)
        return
    why = stacks.permission() if why == stacks.REFUSED else why
    remedy = "docker: --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]"
    yield CheckOutcome(
        "py-spy", "warning", f"it cannot read a test process: {why}", "no Python stacks in reports", remedy
    )


def limits(pid: int | None) -> Iterator[CheckOutcome]:
    """The limits of the running ftrun, else those of this process."""
    files, processes, core = (
        _limit(pid or 0, number) for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE)
    )
    means = "many ranks with data workers and sockets need thousands"
    remedy = "ulimit -n 65536; docker: --ulimit nofile=65536"
    yield warn_if(files is not None and files < MANY, "open files", _limit_text(files), means, remedy)
    few = processes is not None and processes < MANY
    yield warn_if(few, "processes", _limit_text(processes), THREADS, "ulimit -u unlimited")
    dumps = core != 0 and not (procfs.read("/proc/sys/kernel/core_pattern", 256) or b"|").startswith(b"|")
    means = "a rank that aborts, as NCCL's watchdog does, first writes all its memory to disk, which delays the restart"
    if dumps:
        remedy = "ulimit -c 0; docker: --ulimit core=0"
        yield CheckOutcome("core dumps", "warning", f"on, {_limit_text(core)} bytes", means, remedy)
    else:
        yield CheckOutcome("core dumps", "ok", "off, or piped to a program", "an aborted process ends at once")


def _limit(pid: int, number: int) -> int | None:
    """The soft limit; None: unlimited."""
    try:
        soft = resource.prlimit(pid, number)[0]
    except (OSError, ValueError):
        soft = resource.getrlimit(number)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _limit_text(limit: int | None) -> str:
    return "no limit" if limit is None else f"at most {limit}"


def shared() -> Iterator[CheckOutcome]:
    """Heartbeats and data workers need it; the check creates a beat folder in it and removes it."""
    remedy = "docker: --shm-size=8g; Kubernetes: an emptyDir with medium Memory at /dev/shm"
    folders = mounts.memory_folders()
    try:
        made = beats.create()
        folder, note = os.path.dirname(made.path), made.note
        made.close()
    except (beats.BeatsError, OSError) as error:
        where = folders[0] if folders else "/dev/shm"
        yield CheckOutcome(where, "missing", str(error), "ftrun does not start without room for the beat file", remedy)
        return
    if note is not None:
        where, means = folders[0] if folders else "/dev/shm", "heartbeats arrive; PyTorch's data workers use /dev/shm"
        yield CheckOutcome(where, "warning", note, means, remedy)
        return
    found = os.statvfs(folder)
    whole, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    means = f"the beat file needs {FILE_BYTES // 1024} KiB; the rest is for PyTorch's data workers"
    if folder != "/dev/shm":
        means = "the beat file fits; PyTorch's data workers use /dev/shm, which is not a memory file system here"
    elif free < WORKERS:
        means = "the beat file fits; PyTorch's data workers need far more, and die of SIGBUS without it"
    few = folder != "/dev/shm" or free < WORKERS
    yield warn_if(few, folder, f"{size(whole)}, {size(free)} free", means, remedy)


def groups() -> Iterator[CheckOutcome]:
    text = os.fsdecode(procfs.read("/proc/self/cgroup", 1 << 20) or b"")
    events = [path for path in oom.files(text, mounts.listed()) if os.path.exists(path)]
    if not events:
        means = "a rank killed by the OOM killer cannot be distinguished from any other SIGKILL"
        yield CheckOutcome("cgroup", "warning", "not visible", means, "mount /sys/fs/cgroup; read-only is enough")
        return
    folder, version = os.path.dirname(events[0]), 2 if events[0].endswith("memory.events") else 1
    most = _number(folder, "memory.max" if version == 2 else "memory.limit_in_bytes")
    used = _number(folder, "memory.current" if version == 2 else "memory.usage_in_bytes")
    kills = oom.oom_kills()
    limit = "no memory limit" if most is None or most > UNLIMITED else f"memory limit {size(most)}"
    now = "" if used is None else f", {size(used)} used"
    killed = f", {kills} OOM kills so far" if kills else ""
    means = "ftrun distinguishes an OOM kill of a rank from other failures"
    remedy = "raise the memory limit, or use less memory: fewer data workers, a smaller cache"
    yield warn_if(bool(kills), "cgroup", f"version {version}, {limit}{now}{killed}", means, remedy)
    yield from oom_group(folder)
    pids = _pids(text, folder, version)
    remedy = "docker: --pids-limit -1; Kubernetes: podPidsLimit of the kubelet"
    yield warn_if(pids is not None and pids < MANY, "pids limit", _limit_text(pids), THREADS, remedy)


def oom_group(folder: str) -> Iterator[CheckOutcome]:
    """Whether an OOM kill of one rank kills its control group (cgroup-v2.rst, `memory.oom.group`).  Child groups
    are killed with it, so a separate group for the command would not protect ftrun."""
    if not oom.killed_together(folder):
        return
    if oom.can_be_exempted():
        means = "an OOM kill of a rank kills all of the command, but not ftrun (oom_score_adj)"
        yield CheckOutcome("oom group", "ok", "memory.oom.group is 1, ftrun is exempt", means)
        return
    means = "an OOM kill of a rank kills ftrun as well: no restart in place, no verdict"
    remedy = "Kubernetes: singleProcessOOMKill: true in the configuration of the kubelet; or CAP_SYS_RESOURCE for ftrun"
    yield CheckOutcome("oom group", "warning", "memory.oom.group is 1", means, remedy)


def _pids(text: str, folder: str, version: int) -> int | None:
    """The smallest limit of this group and the visible ones above."""
    if version == 2:
        return _number(folder, "pids.max")
    path = next((line.split(":", 2)[2] for line in text.splitlines() if ":pids:" in line), "/")
    found = [_number(f"/sys/fs/cgroup/pids{inner}", "pids.max") for inner in ("", path.rstrip("/"))]
    return min((number for number in found if number is not None), default=None)


def _number(folder: str, name: str) -> int | None:
    """The number in this file of a control group; None for `max`, and if there is no such file."""
    text = (procfs.read(f"{folder}/{name}", 64) or b"").strip()
    return int(text) if text.isdigit() else None


def versions(running: str) -> Iterator[CheckOutcome]:
    """`running`: the version of the running ftrun, empty if none is running."""
    text = f"ftctl {__version__}, Python {platform.python_version()}, Linux {os.uname().release}"
    if running and running != __version__:
        means = "ftctl may not understand all that this ftrun writes"
        yield CheckOutcome(
            "versions", "warning", f"{text}; the running ftrun is {running}", means, f"use ftctl {running}"
        )
    else:
        yield CheckOutcome("versions", "ok", text, "they match")
    present, absent = [], []
    for package in PACKAGES:
        try:
            present.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            absent.append(package)
    if absent:
        needed = ", ".join(dict.fromkeys(PACKAGES[name][0] for name in absent))
        remedy = installation.command(*(extra for name in absent if (extra := PACKAGES[name][1])))
        yield CheckOutcome("packages", "missing", f"not installed: {', '.join(absent)}", f"without: {needed}", remedy)
    else:
        yield CheckOutcome("packages", "ok", ", ".join(present), "all verbs work")
