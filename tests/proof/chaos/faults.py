"""What each kind of fault does, and what undoes it."""

import os
import resource
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from proof.chaos.plan import Fault
from proof.chaos.world import Undo, World, _signal
from support.runs import FTCTL, state_of


class Missed(Exception):
    """There is no target: the fault does not happen, and does not count."""


class Scene(NamedTuple):
    """`command`: its pid outside of the namespace, if it runs.  `requests`: the ftctl processes that were started."""

    world: World
    command: int | None
    requests: list["subprocess.Popen[bytes]"]


def inject(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    """Inject it.  Returns the pid of the target, and what undoes it; Missed if there is no target."""
    return KINDS[fault.kind](fault, scene)


def _number(fault: Fault) -> int:
    return int(signal.Signals[f"SIG{fault.what}"])


def _kill(pid: int | None, number: int) -> int:
    if pid is None:
        raise Missed
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise Missed from None
    return pid


def _command_killed(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    if scene.command is None or state_of(scene.command) == "T":
        raise Missed  # a stopped process would receive it later
    return _kill(scene.command, _number(fault)), None


def _child_signalled(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    found = scene.world.children(scene.command) if scene.command is not None else []
    return _kill(next(iter(found), None), _number(fault)), None


def _helper(fault: Fault, scene: Scene) -> int | None:
    """The helper that the fault names, else any running helper."""
    running = [process for process in scene.world.processes() if process.what not in ("", "ftrun")]
    running.sort(key=lambda process: process.what != fault.what)
    return running[0].pid if running else None


def _helper_stopped(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    pid = _kill(_helper(fault, scene), signal.SIGSTOP)
    return pid, lambda: _signal(pid, signal.SIGCONT)


def _container_stopped(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    if scene.world.ftrun() is None:
        raise Missed
    return 0, scene.world.freeze() if fault.what == "freezer" else scene.world.stop_all()


def _forwarded(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    if scene.command is None:
        raise Missed
    return _kill(scene.world.ftrun(), _number(fault)), None


def _request(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    """A pause is followed by a resume."""
    run_dir = scene.world.run_dir
    if not (run_dir / "ftctl.sock").exists():
        raise Missed

    def send(verb: str) -> "subprocess.Popen[bytes]":
        arguments = [*FTCTL, verb, "--run-dir", str(run_dir)]
        null = subprocess.DEVNULL
        process = subprocess.Popen(arguments, stdin=null, stdout=null, stderr=null, start_new_session=True)
        scene.requests.append(process)
        return process

    def resume() -> None:
        wait_requests([sent])  # two concurrent requests may arrive in any order
        send("resume")

    sent = send(fault.what)
    return sent.pid, resume if fault.what == "pause" else None


def _no_descriptors(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    """Leave only so many free descriptors, those with the lowest numbers."""
    pid = scene.world.ftrun()
    if pid is None:
        raise Missed
    try:
        taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        free = [number for number in range(max(taken) + 4) if number not in taken]
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        limit = free[int(fault.what)]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    except (ProcessLookupError, FileNotFoundError):
        raise Missed from None

    def undo() -> None:
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        except ProcessLookupError:
            pass

    return pid, undo


def _clock(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    with (scene.world.folder / "clock").open("r+b") as stream:
        stream.write(struct.pack("l", int(fault.what)))
    return 0, None


def _disk_dead(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    (fuse,) = scene.world.fuse
    pid = _kill(fuse.pid, signal.SIGSTOP)
    return pid, lambda: _signal(pid, signal.SIGCONT)


def _device_fault(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    """The driver reports an Xid of its only GPU, where something listens."""
    if scene.command is None or not any(process.what == "probe" for process in scene.world.processes()):
        raise Missed
    scene.world.driver.xid(0, int(fault.what))
    return 0, None


def _driver_blocked(fault: Fault, scene: Scene) -> tuple[int, Undo | None]:
    scene.world.driver.set("-", blocks="*")
    return 0, lambda: scene.world.driver.set("-", blocks=None)


KINDS: dict[str, Callable[[Fault, Scene], tuple[int, Undo | None]]] = {
    "command killed": _command_killed,
    "command stopped": lambda fault, scene: (_kill(scene.command, signal.SIGSTOP), None),
    "child signalled": _child_signalled,
    "ftrun killed": lambda fault, scene: (_kill(scene.world.ftrun(), signal.SIGKILL), None),
    "helper killed": lambda fault, scene: (_kill(_helper(fault, scene), signal.SIGKILL), None),
    "helper stopped": _helper_stopped,
    "container stopped": _container_stopped,
    "termination signal": lambda fault, scene: (_kill(scene.world.ftrun(), _number(fault)), None),
    "signal forwarded": _forwarded,
    "operator request": _request,
    "disk full": lambda fault, scene: (0, scene.world.fill(scene.world.run_dir)),
    "run dir read-only": lambda fault, scene: (0, scene.world.lock()),
    "/dev/shm full": lambda fault, scene: (0, scene.world.fill(scene.world.inside(Path("/dev/shm")))),
    "no more processes": lambda fault, scene: (0, scene.world.limit_processes()),
    "no more descriptors": _no_descriptors,
    "clock jumps": _clock,
    "disk unresponsive": _disk_dead,
    "device fault": _device_fault,
    "driver blocked": _driver_blocked,
}


def wait_requests(requests: list["subprocess.Popen[bytes]"], seconds: float = 20.0) -> list[int]:
    """The exit codes of ftctl; one that does not end is killed."""
    until = time.monotonic() + seconds
    for process in requests:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return [process.returncode for process in requests]
