"""The surroundings of one job: a mount namespace with a /dev/shm of its own, two cgroups, disks that can be spoiled,
and the ftruns that are started in it."""

import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from proof.chaos.plan import Job
from support.device.nvml import FakeNvml
from support.runs import HOUSE, alive, carrying, state_of, status

CGROUPS = Path("/sys/fs/cgroup")
KINDS = ("pids", "freezer")
CLOCK = Path(__file__).with_name("clock.c")
UPTIMES = (0, 10_000_000, 500_000, 20_000_000)  # s that the clocks of a start are ahead, in a place with another uptime
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, IMMUTABLE = 0x80086601, 0x40086602, 0x10
FILLER = "filler"
FINISHING = 15.0  # s
SLOW = {"slow checkpoints": "checkpoints", "slow logs": "logs", "slow state": "state", "slow run dir": "run"}
# /proc as container runtimes make it, as far as the machine has such files; and as systemd does for a service with
# ProtectProc=invisible and ProcSubset=pid.  Both come with the capabilities of a container of Docker, so that not even
# root can read a process that has changed its user, or see it in the latter.
MASKED = """
for one in kcore keys timer_list sched_debug interrupts; do
  [ ! -e /proc/$one ] || mount --bind /dev/null /proc/$one
done
for one in acpi scsi asound; do [ ! -e /proc/$one ] || mount -t tmpfs -o ro masked /proc/$one; done
for one in sys bus fs irq sysrq-trigger; do
  [ ! -e /proc/$one ] || { mount --bind /proc/$one /proc/$one && mount -o remount,bind,ro /proc/$one; }
done"""
HIDDEN = "mount -t proc -o hidepid=2,gid=65534,subset=pid hidden /proc"
PROCS = {"masked /proc": MASKED, "hidden /proc": HIDDEN}
CAPABILITIES = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot setfcap"
CONFINED = f'exec setpriv --inh-caps=-all --bounding-set=-all,+{CAPABILITIES.replace(" ", ",+")} -- "$@"'
LEADING = ("sh", "nsenter", "unshare", "setpriv")  # programs that only lead to ftrun
JOIN = 'for file in {files}; do echo $$ > "$file"; done\nexec "$@"'
Undo = Callable[[], object]


class Process(NamedTuple):
    """`what`: ftrun, a helper's name, or "" for what is the training's."""

    pid: int
    what: str


def refusal() -> str | None:
    """Why no world can be made here, or None."""
    for name in ("unshare", "nsenter", "bindfs", "cc"):
        if shutil.which(name) is None:
            return f"no {name}"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    if tried.returncode:
        return "namespaces are not permitted"
    for kind in KINDS:
        if not os.access(CGROUPS / kind / "cgroup.procs", os.W_OK):
            return f"no cgroup v1 {kind} that may be written"
    return None


class World:
    """To be closed, whatever happened in it."""

    program = (sys.executable, str(Path(__file__).with_name("kept_decisions.py")))
    devices = 1

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder = job, folder
        self.mark = f"CHAOS={uuid.uuid4().hex}"
        self.started: list[subprocess.Popen[bytes]] = []
        self.fuse: list[subprocess.Popen[bytes]] = []
        self._stdin = -1
        self._cgroups = [CGROUPS / kind / f"chaos-{uuid.uuid4().hex[:12]}" for kind in KINDS]
        for name in ("run", "checkpoints", "logs", "state", "below"):
            (folder / name).mkdir()
        (folder / "clock").write_bytes(bytes(8))
        (folder / "input").write_text("a line of the input\n" * 100)
        if job.place == "moving clock":
            library = ["cc", "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so"), str(CLOCK)]
            subprocess.run(library, check=True, stdin=subprocess.DEVNULL)
        for path in self._cgroups:
            path.mkdir()
        try:
            self._holder = self._hold()
            self.root = Path(f"/proc/{self._holder.pid}/root")
            self._mount_disks()
        except BaseException:
            self.close()
            raise

    def _hold(self) -> "subprocess.Popen[bytes]":
        """A process that keeps the mount namespace, and ends with us."""
        script = [*self._mounts(), "echo ready", "exec cat"]
        held = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us
        )
        assert held.stdout is not None
        if held.stdout.readline() != b"ready\n":
            raise RuntimeError(f"no mount namespace for {self.job.name}")
        return held

    def _mounts(self) -> list[str]:
        """The commands that mount what is small."""
        made = ["mount -t tmpfs -o size=6m chaos /dev/shm"]
        if self.job.place == "small disk":
            made.append(f"mount -t tmpfs -o size=1m,mode=700 chaos {self.folder / 'run'}")
        return made

    def _mount_disks(self) -> None:
        """A FUSE file system over the folder that is going to be slow."""
        if (name := SLOW.get(self.job.place)) is not None:
            self.mount_folder(self.folder / "below", self.folder / name)

    def mount_folder(self, what: Path, where: Path) -> None:
        """As a FUSE file system, whose server is the newest of `fuse`."""
        words = [*World._enter(self), "bindfs", "-f", "-o", "nonempty", str(what), str(where)]
        self.fuse.append(subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL))
        until = time.monotonic() + 20
        while not any(f" {where} " in line and " - fuse" in line for line in self._mounted()):
            if time.monotonic() > until or self.fuse[-1].poll() is not None:
                raise RuntimeError("bindfs does not mount")
            time.sleep(0.01)

    def _mounted(self) -> list[str]:
        return Path(f"/proc/{self._holder.pid}/mountinfo").read_text().splitlines()

    def _enter(self) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", f"--wd={self.folder}"]

    def start(self) -> "subprocess.Popen[bytes]":
        """An ftrun on the run dir."""
        number = len(self.started)
        uptime = self.uptime(number)
        join = JOIN.format(files=" ".join(f"{path}/cgroup.procs" for path in self._cgroups))
        words = ["sh", "-c", join, "sh", *self._enter()]
        if uptime:
            words += ["unshare", "--time", f"--monotonic={uptime}", f"--boottime={uptime}", "--fork"]
        if self.job.mode == "pid1":
            words += ["unshare", "--pid", "--fork", "--mount-proc", "--propagation", "slave"]
        if (mounts := PROCS.get(self.job.place)) is not None:
            words += ["unshare", "--mount", "--propagation", "slave", "sh", "-ec", f"{mounts}\n{CONFINED}", "sh"]
        words += [*self.program, "--termination-log", str(self.folder / "verdict")]
        words += [] if self._logs else ["--run-dir", str(self.folder / "run")]
        for name, text in self.job.options:
            words += [f"--{name}={text.format(self.folder, folder=self.folder)}" if text else f"--{name}"]
        words += ["--", *self.command()]
        with (self.folder / f"output-{number}").open("wb") as output, (self.folder / "input").open("rb") as given:
            process = subprocess.Popen(
                words, env=self.environment(), stdin=given, stdout=output, stderr=output, start_new_session=True
            )
        self.started.append(process)
        return process

    def command(self) -> list[str]:
        work, plan = HOUSE / "tests" / "proof" / "chaos" / "work.py", json.dumps(self.job.training._asdict())
        return [sys.executable, "-S", "-E", str(work), str(self.folder), plan]

    def uptime(self, number: int) -> int:
        return UPTIMES[number % len(UPTIMES)] if self.job.place == "other uptime" else 0

    def environment(self) -> dict[str, str]:
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "SLURM_", "PYTHON"))}
        plain |= {"TMPDIR": str(self.folder)} | dict([self.mark.split("=")])
        plain["CHAOS_DECISIONS"] = str(self._decisions(len(self.started)))
        if self.job.place == "devices":
            plain |= self.driver.environment()
        if self.job.place == "moving clock":
            plain |= {"LD_PRELOAD": str(self.folder / "clock.so"), "CHAOS_CLOCK": str(self.folder / "clock")}
        return plain

    def _decisions(self, number: int) -> Path:
        return self.folder / f"decisions-{number}"

    @property
    def decisions(self) -> bytes:
        """What PID 1 of the newest ftrun decided on, as kept_decisions.py writes it."""
        path = self._decisions(len(self.started) - 1)
        return path.read_bytes() if path.exists() else b""

    @functools.cached_property
    def driver(self) -> FakeNvml:
        """The driver of the place `devices`: idle GPUs."""
        return FakeNvml(self.folder, self.devices)

    @property
    def _logs(self) -> bool:
        return any(name == "log-dir" for name, _ in self.job.options)

    @property
    def run_dir(self) -> Path:
        """As it is seen from out here: where ftrun works, if it makes a folder of its own."""
        if self.job.place in ("slow logs", "slow run dir"):
            made = [path for path in self.folder.glob("ftrun-*") if not path.suffix]
        elif self._logs:
            made = sorted(self.folder.glob("logs/*_restartable"))
        else:
            made = [self.inside(self.folder / "run")]
        return made[-1] if made else self.folder / "none"

    def copied(self) -> bool:
        """Whether the run dir on a slow disk holds what the local one does; asked when the disk is well."""
        if self.job.place not in ("slow logs", "slow run dir"):
            return True
        (there,) = [*self.folder.glob("below/events.jsonl"), *self.folder.glob("below/*/events.jsonl")]
        return there.read_bytes() == (self.run_dir / "events.jsonl").read_bytes()

    # --- looking ------------------------------------------------------------------------------------------------------

    def inside(self, path: Path) -> Path:
        """As it is seen in there."""
        return self.root / path.relative_to("/")

    def processes(self) -> list[Process]:
        """All that run in there, ftrun first; what only led to it is left out."""
        found = []
        for pid in map(int, (self._cgroups[0] / "cgroup.procs").read_text().split()):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if not words[0] or not alive(pid) or Path(os.fsdecode(words[0])).name in LEADING:
                continue
            found.append(Process(pid, _name([os.fsdecode(word) for word in words], self.program[1])))
        return sorted(found, key=lambda process: process.what != "ftrun")

    def ftrun(self) -> int | None:
        return next((process.pid for process in self.processes() if process.what == "ftrun"), None)

    def children(self, command: int) -> list[int]:
        """The processes of the training but its first."""
        return [process.pid for process in self.processes() if not process.what and process.pid != command]

    def outside(self, pid: int) -> int | None:
        """The pid, here, of the training's process that its namespace calls `pid`."""
        for process in self.processes():
            if process.what == "" and status(process.pid).get("NSpid", "").split()[-1:] == [str(pid)]:
                return process.pid
        return None

    def left(self) -> list[str]:
        """Processes that are still there, by the cgroup and by their environment; those that finish what an ftrun has
        left to them on a disk that was dead have a while for that."""
        until = time.monotonic() + FINISHING
        while any(process.what for process in self.processes()) and time.monotonic() < until:
            time.sleep(0.02)
        found = {process.pid for process in self.processes()} | set(carrying(self.mark))
        return [f"{pid} {status(pid).get('Name')} {state_of(pid)}" for pid in sorted(found) if alive(pid)]

    def beat_folders(self) -> list[str]:
        return sorted(path.name for path in self.inside(Path("/dev/shm")).glob("ftrun-beats-*"))

    # --- spoiling -----------------------------------------------------------------------------------------------------

    def fill(self, folder: Path) -> Undo:
        """Not a byte more; gives what frees it."""
        path = folder / FILLER
        with path.open("wb") as stream, contextlib.suppress(OSError):
            while True:
                os.write(stream.fileno(), b"x" * 65536)
        with path.open("ab") as stream, contextlib.suppress(OSError):
            while True:
                os.write(stream.fileno(), b"x")
        return lambda: _free(path)

    def lock(self) -> Undo:
        """Nothing in the run dir can be written, also by who has it open."""
        paths = [path for path in self.run_dir.iterdir() if path.is_file() and path.name != FILLER] + [self.run_dir]
        _each(_immutable, paths, True)
        return lambda: _each(_immutable, paths, False)

    def limit_processes(self) -> Undo:
        limit = self._cgroups[0] / "pids.max"
        limit.write_text("0")
        return lambda: limit.write_text("max")

    def freeze(self) -> Undo:
        state = self._cgroups[1] / "freezer.state"
        state.write_text("FROZEN")
        return lambda: state.write_text("THAWED")

    @property
    def is_frozen(self) -> bool:
        """Nothing in there can be killed meanwhile."""
        return (self._cgroups[1] / "freezer.state").read_text() != "THAWED\n"

    def stop_all(self) -> Undo:
        """Send SIGSTOP to all running processes; processes that were stopped before remain stopped."""
        pids = [process.pid for process in self.processes() if state_of(process.pid) != "T"]
        _each(_signal, pids, signal.SIGSTOP)
        return lambda: _each(_signal, pids[::-1], signal.SIGCONT)

    # --- the end ------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Whatever runs in there."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            pids = [int(pid) for path in self._cgroups for pid in (path / "cgroup.procs").read_text().split()]
            pids += carrying(self.mark)
            if not pids:
                break
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.01)

    def close(self) -> None:
        """Nothing of it stays: processes, mounts, cgroups; the folder is the caller's."""
        for fuse in self.fuse:
            fuse.kill()  # a process that waits for it gets an error
            fuse.wait()
        with contextlib.suppress(OSError):
            (self._cgroups[1] / "freezer.state").write_text("THAWED")
        self.kill()
        for process in self.started:
            process.kill()
            process.wait()
        if holder := getattr(self, "_holder", None):
            for stream in (holder.stdin, holder.stdout):
                stream.close()
            holder.kill()
            holder.wait()
        for path in self._cgroups:
            with contextlib.suppress(OSError):
                path.rmdir()
        for folder in (self.folder / "run", self.folder / "state"):
            for path in (folder, *folder.glob("*"), *folder.glob("reports/*")):
                with contextlib.suppress(OSError):
                    _immutable(path, False)


@contextlib.contextmanager
def world(job: Job, folder: Path) -> Iterator[World]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = World(job, folder)
    try:
        yield made
    finally:
        made.close()


def _name(words: list[str], program: str) -> str:
    code = next((word for word in words if "from ftrun.helpers." in word), "")
    if code:
        return code.partition("from ftrun.helpers.")[2].partition(".")[0]
    return "ftrun" if program in words[:3] else ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


T = TypeVar("T")
A = TypeVar("A")


def _each(do: Callable[[T, A], None], whom: Iterable[T], argument: A) -> None:
    for one in whom:
        do(one, argument)


def _free(filler: Path) -> None:
    """Its space, also while nothing can be removed from its folder."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(filler, 0)
    with contextlib.suppress(PermissionError):
        filler.unlink(missing_ok=True)


def _immutable(path: Path, on: bool) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return  # it was there for a moment
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(fd, FS_IOC_GETFLAGS, struct.pack("l", 0)))
        flags = flags | IMMUTABLE if on else flags & ~IMMUTABLE
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", flags))
    finally:
        os.close(fd)
