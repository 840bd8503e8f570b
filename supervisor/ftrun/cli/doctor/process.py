"""PID 1, the limits of processes, and whether a stack can be read."""

import os
import resource
import sys
from collections.abc import Iterator
from typing import Any, Final

from ftrun.cli.doctor.finding import Finding
from ftrun.helpers.evidence import stacks
from ftrun.host import procfs, spawn

SHELLS: Final = ("sh", "bash", "dash", "ash", "zsh", "busybox", "ksh")
KILL, SETUID = 5, 7  # bits of a capability set, capabilities(7)
FILES: Final = 4096  # descriptors
PROCESSES: Final = 4096
# What py-spy is tried on: it waits for the end of its stdin, which comes with our end, and is killed before.
SLEEPER: Final = "import sys; sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"
SPY: Final = 5.0  # s


def first(run: dict[str, Any]) -> Iterator[Finding]:
    """`run`: of the ftrun that runs, as its `state.json` says; empty without one."""
    one = procfs.stat(1)
    name = "ftrun" if run.get("pid") == 1 else one.name if one else "nobody that we see"
    if run.get("pid") == 1:
        yield Finding("PID 1", "ok", "ftrun is PID 1", "it gets every signal and every orphan of this container")
    elif name in SHELLS and os.getppid() != 1:
        remedy = 'start ftrun in place of it: ENTRYPOINT ["ftrun", ...] in exec form, or `exec ftrun ...` in its script'
        means = "a shell passes no signals on: the scheduler's SIGTERM may not reach ftrun"
        yield Finding("PID 1", "warning", f"PID 1 is a shell, {name}", means, remedy)
    else:
        yield Finding("PID 1", "ok", f"PID 1 is {name}", "ftrun works below it, as a subreaper")
    if run.get("pid") != 1:
        able = spawn.become_subreaper() and spawn.prctl(spawn.PR_SET_CHILD_SUBREAPER, 0)
        means = "daemons of the command are found and ended" if able else "daemons of the command outlive a restart"
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
        yield Finding("signals", "ok", "CAP_KILL is there", "ftrun can signal and end the command whatever its user is")
    elif not changes:
        means = "ftrun can signal its own user's processes; only a set-user-ID program (sudo) is out of its reach"
        yield Finding("signals", "ok", "no CAP_KILL, and no right to change the user", means)
    else:
        means = (
            "a command that changes its user (gosu, setpriv) gets no signal, SIGTERM included, and is never restarted"
        )
        remedy = (
            "docker: --cap-add KILL; Kubernetes: securityContext.capabilities.add: [KILL]; or start ftrun as that user"
        )
        yield Finding("signals", "warning", "no CAP_KILL, but the right to change the user", means, remedy)


def proc() -> Iterator[Finding]:
    for line in procfs.mount_lines(procfs.read("/proc/self/mountinfo", 1 << 20)):
        words = line.split(" ")
        hidden = [word for word in words[-1].split(",") if word.startswith("hidepid=") and word != "hidepid=0"]
        if words[4] == "/proc" and hidden and os.getuid() != 0:
            means = "processes of other users in the tree are not seen, and not named in reports"
            yield Finding("/proc", "warning", f"mounted with {hidden[0]}", means, "mount it without hidepid")


def tracing() -> Iterator[Finding]:
    """As the evidence does it: py-spy on a process that is not below it."""
    means = "reports and `ftctl stacks` show where every Python process is"
    spy = stacks.program()
    if spy is None:
        lost = "no Python stacks in reports"
        yield Finding("py-spy", "missing", "not installed", lost, "pip install py-spy")
        return
    with open(os.devnull, "wb") as nowhere:
        child = spawn.spawn_helper([sys.executable, "-I", "-S", "-c", SLEEPER], nowhere.fileno())
    try:
        os.set_blocking(child.output, True)
        os.read(child.output, 1)  # it is up
        seen = stacks.collect(spy, [child.pid], SPY)
    finally:
        os.kill(child.pid, 9)
        os.waitpid(child.pid, 0)
        os.close(child.output)
        os.close(child.held)
    why = seen.missing.get(child.pid)
    if why is None:
        yield Finding("py-spy", "ok", "it reads the stack of a process of ours", means)
        return
    told = stacks.permission() if why == stacks.REFUSED else why
    remedy = "docker: --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]"
    yield Finding(
        "py-spy", "warning", f"it cannot read a process of ours: {told}", "no Python stacks in reports", remedy
    )


def limits(run: dict[str, Any], running: bool) -> Iterator[Finding]:
    """Those of the ftrun that runs, else our own."""
    pid = int(run["pid"]) if running else 0
    soft = {name: _limit(pid, number) for name, number in _LIMITS.items()}
    files, processes, core = soft["nofile"], soft["nproc"], soft["core"]
    means = "many ranks with data workers and sockets need thousands"
    few = files is not None and files < FILES
    yield Finding(
        "open files",
        "warning" if few else "ok",
        _told(files),
        means,
        "ulimit -n 65536; docker: --ulimit nofile=65536" if few else "",
    )
    few = processes is not None and processes < PROCESSES
    means = "each thread of each rank counts; at the limit forks fail"
    yield Finding(
        "processes", "warning" if few else "ok", _told(processes), means, "ulimit -u unlimited" if few else ""
    )
    dumps = core != 0 and not (procfs.read("/proc/sys/kernel/core_pattern", 256) or b"|").startswith(b"|")
    means = "a rank that aborts, as NCCL's watchdog does, first writes all of its memory to disk; the restart waits"
    if dumps:
        yield Finding(
            "core dumps", "warning", f"on, {_told(core)} bytes", means, "ulimit -c 0; docker: --ulimit core=0"
        )
    else:
        yield Finding("core dumps", "ok", "off, or piped to a program", "an abort ends at once")


_LIMITS: Final = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "core": resource.RLIMIT_CORE}


def _limit(pid: int, number: int) -> int | None:
    """The soft one; None: there is none."""
    try:
        soft = resource.prlimit(pid, number)[0]
    except (OSError, ValueError):
        soft = resource.getrlimit(number)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _told(limit: int | None) -> str:
    return "no limit" if limit is None else f"at most {limit}"
