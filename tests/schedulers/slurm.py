"""A private Slurm with three nodes on this host, as any user.  Outside of its folder it uses only ports."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil

from support.device.npu_smi import FakeNpuSmi
from support.ports import free_ports
from support.runs import DEADLINE, HOUSE, carrying, end_all, end_process, wait_for

FILES = HOUSE / "docs" / "schedulers" / "slurm"
NODES = ("n1", "n2")  # of the partition in which jobs run that ask for none
ALL = (*NODES, "n3")  # of the partition `wide`
USER = pwd.getpwuid(os.getuid()).pw_name
DAEMONS = ("munged", "slurmctld", "slurmd")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "SPECIAL_EXIT"}
PATH = os.pathsep.join([str(Path(sys.executable).parent), str(HOUSE / "bin"), os.environ["PATH"], "/usr/sbin", "/sbin"])

# `include` reads the file for users unchanged; later lines override it.  An epilog gets no SLURM_CONF, and /etc has no
# configuration, so a wrapper sets it.  A requeue waits for cred_expire, by default 120 s and at least 5 s.
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={sockets}/munge,cred_expire=5
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
StateSaveLocation={folder}/controller
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={sockets}/%n
SlurmdParameters=config_overrides
ReturnToService=2
include {files}/slurm.conf
EpilogSlurmctld={files}/epilog.sh
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000 Weight=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1000 Weight=2
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=2 RealMemory=1000 Weight=3
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
PartitionName=wide Nodes=n[1-3] MaxTime=INFINITE State=UP
"""

# Slurm waits for a slurmstepd that is not reaped yet as if it were running; PID 1 of a container may take seconds.
REAPER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
daemon = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: os.kill(daemon, signal.SIGTERM))
while os.wait()[0] != daemon: pass
"""


def missing() -> str:
    """What is not installed here, for the reason of a skip."""
    names = (*DAEMONS, "sbatch", "scontrol")
    return ", ".join(name for name in names if shutil.which(name, path=PATH) is None)


class Cluster:
    """Runs while the context is entered.  Jobs get its nodes in order: n1 first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = f"TEST_SLURM={uuid.uuid4().hex}"  # in the environment of all that it starts
        named = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "SLURM_", "SBATCH_"))}
        named.pop("NODE_NAME", None)  # of a pod that the tests run in
        self.environment = named | {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        self.environment |= dict([self.marker.split("=")])
        self._stack = ExitStack()
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        try:
            self._begin()
        except BaseException:
            print(self.log(), file=sys.stderr)
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        # Sockets have their own folder: their paths may have 107 characters.
        sockets = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp")))
        sockets.chmod(0o755)  # munged requires it
        self._stack.callback(self._end_what_is_left)
        (self.folder / "controller").mkdir()
        host = socket.gethostname().partition(".")[0]
        values = {"folder": self.folder, "sockets": sockets, "files": FILES, "host": host}
        conf = CONF.format(**values, user=USER, ports=free_ports(1 + len(ALL)))
        (self.folder / "slurm.conf").write_text(conf)
        epilog = self.folder / "epilog"
        epilog.write_text(f"#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {FILES}/epilog.sh\n")
        epilog.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key": key, "pid": self.folder / "munged.pid", "seed": self.folder / "munge.seed"}
        options = [f"--{name}-file={path}" for name, path in files.items()]
        self._daemon("munged", "munged", "--foreground", "--force", f"--socket={sockets}/munge", *options)
        self._until((sockets / "munge").exists, "the socket of munged")
        self._daemon("slurmctld", "slurmctld", "-D")
        for node in ALL:
            (sockets / node).mkdir()
            self._start_node(node)
        self._until(self._idle, "idle nodes")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            assert all(daemon.poll() is None for daemon in self._daemons), "a daemon has ended"
            return condition()

        wait_for(look, what)

    def _start_node(self, name: str) -> None:
        self._nodes[name] = self._daemon(f"slurmd.{name}", sys.executable, "-c", REAPER, "slurmd", "-D", "-N", name)

    def fail_node(self, name: str) -> None:
        """The node loses power, and slurmctld knows it at once; without `scontrol` after SlurmdTimeout.  `clear` brings
        it back."""
        daemon = self._nodes.pop(name)
        self._daemons.remove(daemon)
        marked = psutil.Process(daemon.pid)
        for process in [marked, *marked.children(recursive=True)]:
            end_process(process.pid)
        daemon.wait()

        end_all(lambda: {*carrying(f"SLURMD_NODENAME={name}")} & {*carrying(self.marker)})
        self.output("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=power")

    def _daemon(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a daemon, which is ended and waited for in the end."""
        with (self.folder / f"{name}.out").open("wb") as out:
            daemon = subprocess.Popen(
                command, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self._daemons.append(daemon)
        self._stack.callback(end, daemon)
        return daemon

    def _end_what_is_left(self) -> None:
        """The slurmstepd of a job outlives slurmd."""
        end_all(lambda: carrying(self.marker))

    def _idle(self) -> bool:
        return self.output("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * (len(NODES) + len(ALL))

    def output(self, *command: str) -> str:
        """The output of a command of Slurm; empty if it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=DEADLINE)
        return done.stdout if done.returncode == 0 else ""

    def node(self, name: str) -> dict[str, str]:
        return fields(self.output("scontrol", "show", "node", name))

    def clear(self) -> None:
        """Cancel all jobs, and make all nodes available again."""
        self.output("scancel", "--user", USER)
        wait_for(lambda: not self.output("squeue", "-h"), "that no job is left")
        for node in ALL:
            if node not in self._nodes:
                self._start_node(node)
                self.output("scontrol", "update", f"NodeName={node}", "State=RESUME")
            if "DRAIN" in self.node(node)["State"]:
                self.output("scontrol", "update", f"NodeName={node}", "State=RESUME")
        wait_for(self._idle, "idle nodes")

    def log(self) -> str:
        """The last lines of the daemons' output."""
        return "\n".join(f"--- {path.name}\n{tail(path)}" for path in sorted(self.folder.glob("*.out")))


class Submit:
    """Starts jobs with a script for users; their files are in `folder`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.jobs: list[Job] = []

    def __call__(
        self, *command: str, nodes: str = "1", script: str = "job.sh", partition: str = "main", **environment: str
    ) -> Job:
        options = ["--parsable", f"--nodes={nodes}", f"--partition={partition}"]
        arguments = ["sbatch", *options, str(FILES / script), *command]
        environment = self.cluster.environment | {"TMPDIR": str(self.folder)} | environment
        done = subprocess.run(
            arguments, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=DEADLINE
        )
        assert done.returncode == 0, done.stderr
        self.jobs.append(Job(self.cluster, done.stdout.strip(), self.folder))
        return self.jobs[-1]


class Job:
    """A submitted job."""

    def __init__(self, cluster: Cluster, number: str, folder: Path) -> None:
        self.cluster, self.number, self.folder = cluster, number, folder
        self.state_dir = folder / f"ftrun-{number}"
        self.requeued: list[str] = []  # the exit code before each

    @property
    def output(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.folder.glob(f"*-{self.number}.out"))

    def show(self) -> dict[str, str]:
        return fields(self.cluster.output("scontrol", "show", "job", self.number))

    def prints(self, text: str, times: int) -> None:
        """Wait until the text is so often in the output, which has the lines of all nodes and of ftrun."""
        wait_for(lambda: self.output.count(text) >= times, f"{text!r}, {times} times")

    def end(self) -> dict[str, str]:
        """The last state, after all requeues, which start at once."""

        def ended() -> bool:
            time.sleep(0.1)  # each call is a process
            shown = self.show()
            if shown.get("JobState") == "PENDING" and len(self.requeued) < int(shown["Restarts"]):
                self.requeued.append(shown["ExitCode"])
                assert len(self.requeued) < 9, "it is requeued endlessly"
                # Not `now`: slurmd refuses a start in the second in which the job ended.
                self.cluster.output("scontrol", "update", f"JobId={self.number}", "StartTime=now+1")
            return shown.get("JobState") in ENDED

        wait_for(ended, f"the end of job {self.number}")
        return self.show()

    def log(self) -> str:
        shown = " ".join(f"{name}={value}" for name, value in self.show().items())
        state = "\n".join(f"--- {path.name}\n{tail(path)}" for path in sorted(self.state_dir.glob("*.json")))
        return f"{shown}\n{self.output}\n{state}"


def drained(submit: Submit) -> list[str]:
    return [name for name in ALL if "DRAIN" in submit.cluster.node(name)["State"]]


def failing_npu_smi(folder: Path, node: str) -> Path:
    """The folder of an npu-smi that reports a critical fault, on this node and once there is a file `broken`."""
    healthy, faulty = FakeNpuSmi(folder / "healthy"), FakeNpuSmi(folder / "faulty")
    faulty.set(health="Alarm", codes=[("80818C00", "a core computes wrongly")])
    tool = folder / "bin" / "npu-smi"
    tool.parent.mkdir()
    broken = f'[ "$SLURMD_NODENAME" = {node} ] && [ -e {folder}/broken ]'
    tool.write_text(f'#!/bin/sh\n{broken} && exec {faulty.folder}/npu-smi "$@"\nexec {healthy.folder}/npu-smi "$@"\n')
    tool.chmod(0o755)
    return tool.parent


def fields(text: str) -> dict[str, str]:
    """`Name=value ...` as scontrol shows it; a Reason contains spaces."""
    found = dict(re.findall(r"(?:^|\s)([\w:/]+)=(\S*)", text))
    return found | dict(re.findall(r"^ +(Reason)=(.*)$", text, re.MULTILINE))


def end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def tail(path: Path, lines: int = 40) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
