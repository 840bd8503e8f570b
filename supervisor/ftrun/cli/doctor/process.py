"""Checks of PID 1, signals, process limits, and whether stacks can be read."""

import os
import resource
import sys
from collections.abc import Iterator
from typing import Any, Final

from ftrun.cli.doctor.finding import Finding
from ftrun.helpers.evidence import stacks
from ftrun.host import mounts, procfs, spawn

SHELLS: Final = ("sh", "bash", "dash", "ash", "zsh", "busybox", "ksh")
KILL, SETUID = 5, 7  # bits of a capability set, capabilities(7)
FILES: Final = 4096  # descriptors
PROCESSES: Final = 4096
# The target for py-spy: it waits for the end of its stdin, which comes when this process exits, and is killed before.
SLEEPER: Final = "import sys; sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"
SPY: Final = 5.0  # s


def first(run: dict[str, Any]) -> Iterator[Finding]:
    """`run`: from the `state.json` of the running ftrun; empty if none is running."""
    one = procfs.stat(1)
    name = "ftrun" if run.get("pid") == 1 else one.name if one else "an invisible process"
    if run.get("pid") == 1:
        yield Finding("PID 1", "ok", "ftrun is PID 1", "it receives every signal and every orphan of this container")
    elif name in SHELLS and os.getppid() != 1:
        remedy = 'start ftrun in place of it: ENTRYPOINT ["ftrun", ...] in exec form, or `exec ftrun ...` in its script'
        means = "a shell does not forward signals: the SIGTERM of the scheduler may not reach ftrun"
        yield Finding("PID 1", "warning", f"PID 1 is a shell, {name}", means, remedy)
    else:
        yield Finding("PID 1", "ok", f"PID 1 is {name}", "ftrun runs below it, as a subreaper")
    if run.get("pid") != 1:
        able = spawn.become_subreaper() and spawn.prctl(spawn.PR_SET_CHILD_SUBREAPER, 0)
        means = (
            "daemons of the command are found and terminated" if able else "daemons of the command outlive a restart"
        )
        remedy = "" if able else "make ftrun PID 1 of the container, or permit prctl in the seccomp profile"
        yield Finding("subreaper", "ok" if able else "missing", "permitted" if able else "refused", means, remedy)


def signalling(run: dict[str, Any]) -> Iterator[Finding]:
    """Whether ftrun can signal a command that changes its user (capabilities(7))."""
    pid = run.get("pid") or "self"
    lines = (procfs.read(f"/proc/{pid}/status", 1 << 16) or b"").decode("ascii", "replace").splitlines()
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), None)
    if effective is None:
        return
    kills, changes = (bool(effective >> bit & 1) for bit in (KILL, SETUID))
    if kills:
        yield Finding(
            "signals", "ok", "CAP_KILL is available", "ftrun can signal and terminate the command, whatever its user is"
        )
    elif not changes:
        means = "ftrun can signal the processes of its user; it cannot signal a set-user-ID program (sudo)"
        yield Finding("signals", "ok", "no CAP_KILL, no CAP_SETUID", means)
    else:
        means = (
            "a command that changes its user (gosu, setpriv) gets no signal, SIGTERM included, and is never restarted"
        )
        remedy = (
            "docker: --cap-add KILL; Kubernetes: securityContext.capabilities.add: [KILL]; or start ftrun as that user"
        )
        yield Finding("signals", "warning", "no CAP_KILL, but CAP_SETUID", means, remedy)


def proc() -> Iterator[Finding]:
    for mount in mounts.listed():
        hidden = [option for option in mount.options if option.startswith("hidepid=") and option != "hidepid=0"]
        if mount.point == "/proc" and hidden and os.getuid() != 0:
            means = "processes of other users in the tree are invisible, and missing in reports"
            yield Finding("/proc", "warning", f"mounted with {hidden[0]}", means, "mount it without hidepid")


def tracing() -> Iterator[Finding]:
    """As the evidence helper does it: py-spy on a process that is not its descendant."""
    means = "reports and `ftctl stacks` show where every Python process is"
    spy = stacks.program()
    if spy is None:
        lost = "no Python stacks in reports"
        yield Finding("py-spy", "missing", "not installed", lost, "pip install py-spy")
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
        yield Finding("py-spy", "ok", "it can read the stack of a test process", means)
        return
    why = stacks.permission() if why == stacks.REFUSED else why
    remedy = "docker: --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]"
    yield Finding("py-spy", "warning", f"it cannot read a test process: {why}", "no Python stacks in reports", remedy)


def limits(run: dict[str, Any], running: bool) -> Iterator[Finding]:
    """The limits of the running ftrun, else those of this process."""
    pid = int(run["pid"]) if running else 0
    soft = {name: _limit(pid, number) for name, number in _LIMITS.items()}
    files, processes, core = soft["nofile"], soft["nproc"], soft["core"]
    means = "many ranks with data workers and sockets need thousands"
    few = files is not None and files < FILES
    yield Finding(
        "open files",
        "warning" if few else "ok",
        _limit_text(files),
        means,
        "ulimit -n 65536; docker: --ulimit nofile=65536" if few else "",
    )
    few = processes is not None and processes < PROCESSES
    means = "each thread of each rank counts; at the limit fork fails"
    yield Finding(
        "processes", "warning" if few else "ok", _limit_text(processes), means, "ulimit -u unlimited" if few else ""
    )
    dumps = core != 0 and not (procfs.read("/proc/sys/kernel/core_pattern", 256) or b"|").startswith(b"|")
    means = "a rank that aborts, as NCCL's watchdog does, first writes all its memory to disk, which delays the restart"
    if dumps:
        yield Finding(
            "core dumps", "warning", f"on, {_limit_text(core)} bytes", means, "ulimit -c 0; docker: --ulimit core=0"
        )
    else:
        yield Finding("core dumps", "ok", "off, or piped to a program", "an aborted process ends at once")


_LIMITS: Final = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "core": resource.RLIMIT_CORE}


def _limit(pid: int, number: int) -> int | None:
    """The soft limit; None: unlimited."""
    try:
        soft = resource.prlimit(pid, number)[0]
    except (OSError, ValueError):
        soft = resource.getrlimit(number)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _limit_text(limit: int | None) -> str:
    return "no limit" if limit is None else f"at most {limit}"
