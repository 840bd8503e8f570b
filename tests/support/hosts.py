"""Several hosts on this machine: each is a network namespace with a link of its own to one bridge, and a container on
it is a real ftrun as PID 1 of its own namespaces.

Nothing of it has a name outside: each namespace lives as long as the program that holds it, which ends with its stdin,
so that nothing stays even of tests that were killed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.runs import DEADLINE, FTRUN, Run, carrying, children, end_all, status, wait_for

PORT = 29470
PATHS = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # Debian keeps `ip` there, also for those who have no such PATH
ONE_LIFE = ("setpriv", "--pdeathsig", "KILL")  # what is started ends with us
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--uts", "--ipc", "--kill-child")
# The end of the making of a container: names of the hosts, and shared memory of its own.
FURNISH = 'mount --bind "$1" /etc/hosts; mount -t tmpfs tmpfs /dev/shm; hostname "$2"; shift 2; exec "$@"'


class Network:
    """A network namespace."""

    def __init__(self, mark: Mapping[str, str]) -> None:
        # `cat` ends when nobody holds the other end of its stdin any more.
        self.holder = subprocess.Popen(
            [*ONE_LIFE, "unshare", "--net", "cat"],
            env={"PATH": PATHS, **mark},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        ours = os.readlink("/proc/self/ns/net")
        wait_for(lambda: self._made() not in ("", ours), "a network namespace", 30)

    def _made(self) -> str:
        assert self.holder.poll() is None, "no network namespace"
        try:
            return os.readlink(f"/proc/{self.holder.pid}/ns/net")
        except OSError:
            return ""

    @property
    def enter(self) -> list[str]:
        """A prefix: what follows it runs in there."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"]

    def ip(self, *lines: str) -> None:
        """As `ip` says it, one a line."""
        self._batch("ip", lines)

    def tc(self, *lines: str) -> None:
        """As `tc` says it, one a line."""
        self._batch("tc", lines)

    def _batch(self, program: str, lines: Sequence[str]) -> None:
        words = [*self.enter, program, "-batch", "-"]
        made = subprocess.run(words, input="\n".join(lines), text=True, capture_output=True, env={"PATH": PATHS})
        assert made.returncode == 0, made.stderr

    def join(self) -> None:
        """Make it the bridge that hosts are linked to."""
        self.ip(
            "link set lo up",
            "link add bridge type bridge forward_delay 0",
            "addr add 10.77.0.254/24 dev bridge",
            "link set bridge up",
        )

    def close(self) -> None:
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        self.holder.wait(DEADLINE)


class Host:
    """A host, its address, and the link to the others."""

    def __init__(self, number: int, network: Network, switch: Network) -> None:
        self.number, self.name, self.address = number, f"host-{number}", f"10.77.0.{number + 1}"
        self.network, self._switch, self._port = network, switch, f"port{number}"
        switch.ip(
            f"link add {self._port} type veth peer name eth0 netns {network.holder.pid}",
            f"link set {self._port} master bridge up",
        )
        network.ip("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up")

    def cut(self, silent: bool = False) -> None:
        """No packet passes.  Its own link is down, unless `silent`: then it cannot detect that."""
        if silent:
            self._switch.ip(f"link set {self._port} nomaster")
        else:
            self.network.ip("link set eth0 down")

    def narrow(self, size: int) -> None:
        """Silently drop incoming packets of more than `size` bytes."""
        self._switch.ip(f"link set {self._port} mtu {size}")

    def restore(self) -> None:
        self._switch.ip(f"link set {self._port} master bridge")
        self.network.ip("link set eth0 up")

    def congest(self, rate: str, queue: int) -> None:
        """Each way not more than `rate` passes, as `tc` says it; of what comes faster `queue` bytes wait, and the rest
        is lost."""
        shaped = f"root tbf rate {rate} burst 1600 limit {queue}"
        self._switch.tc(f"qdisc replace dev {self._port} {shaped}")
        self.network.tc(f"qdisc replace dev eth0 {shaped}")

    def clear(self) -> None:
        """The end of `congest`."""
        self._switch.tc(f"qdisc del dev {self._port} root")
        self.network.tc("qdisc del dev eth0 root")

    def block(self, port: int) -> None:
        """Drop what is sent here to or from a TCP port; what others send to it still arrives."""
        self.network.ip(
            f"rule add pref 10 ipproto tcp dport {port} blackhole",
            f"rule add pref 11 ipproto tcp sport {port} blackhole",
        )

    def unblock(self) -> None:
        """The end of `block`."""
        self.network.ip("rule del pref 10", "rule del pref 11")


class Container(Run):
    """One ftrun, PID 1 of its own; `process` is the `unshare` around it and ends as it does."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, rank: int) -> None:
        super().__init__(process, folder / "run", folder / "stdout", folder / "stderr")
        self.rank, self.termination_log = rank, folder / "termination-log"
        self._found = 0

    @property
    def pid(self) -> int:
        """ftrun's, as seen from here."""
        if not self._found:
            found = wait_for(lambda: children(self.process.pid) or self.process.poll() is not None, "PID 1")
            assert found is not True, self.log()
            (self._found,) = found
        return self._found

    @property
    def command(self) -> int:
        """Of its newest start, as seen from here."""
        self.until("spawned")

        def look() -> int:
            within = self.named("spawned")[-1]["pid"]
            inner = {pid: status(pid).get("NSpid", "").split()[-1:] for pid in children(self.pid)}
            return next((pid for pid, number in inner.items() if number == [str(within)]), 0)

        return int(wait_for(look, "the command of this container"))

    @property
    def messenger(self) -> int:
        """The pid of the messenger, as seen from here."""
        return int(wait_for(lambda: self.helper("messenger"), "the messenger"))

    def ask(self, number: int) -> None:
        """Send ftrun a signal once its helpers run."""
        wait_for(lambda: self.messenger, "its helpers")
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the container with all of its processes, as the failure of its host does."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(DEADLINE)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def verdict(self) -> dict[str, Any]:
        """Of the termination log; empty where none was written."""
        try:
            found: dict[str, Any] = json.loads(self.termination_log.read_bytes())
        except (OSError, ValueError):
            return {}
        return found

    def log(self) -> str:
        known = ("schema", "time", "attempt")
        records = [{name: value for name, value in r.items() if name not in known} for r in self.records]
        lines = "\n".join(str(record)[:400] for record in records if record["event"] != "progress")
        return f"container {self.rank}: code {self.process.poll()}\n{self.stderr[-2000:]}\n{lines}"


class Hosts:
    """`size` hosts with a secret of their own, and the containers on them."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.marker = f"TEST_RUN={uuid.uuid4().hex}"
        self._mark = dict([self.marker.split("=")])
        self.started: list[Container] = []
        self._networks: list[Network] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.secret = folder / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_text(secrets.token_hex(32))
        try:
            self._switch = self._network()
            self._switch.join()
            self.hosts = [Host(number, self._network(), self._switch) for number in range(size)]
        except BaseException:
            self.close()
            raise
        self.name_of_rank_0 = ""  # in place of its address
        self.names = folder / "etc-hosts"
        lines = [f"{host.address} {host.name}" for host in self.hosts]
        self.names.write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", *lines, ""]))

    def _network(self) -> Network:
        self._networks.append(Network(self._mark))
        return self._networks[-1]

    @property
    def endpoint(self) -> str:
        return f"{self.name_of_rank_0 or self.hosts[0].address}:{PORT}"

    def group(self, rank: int, size: int | str, wait: str = "10s") -> list[str]:
        """The options that make it one."""
        given = {"size": str(size), "rank": str(rank), "endpoint": self.endpoint}
        given |= {"secret-file": str(self.secret)}
        return [word for name, value in given.items() for word in (f"--group-{name}", value)] + ["--wait-peer", wait]

    def start(
        self,
        rank: int,
        *words: str,
        again: bool = False,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
        ftrun: Sequence[str] = FTRUN,
    ) -> Container:
        """A container on the host of that number, with the options and the command in `words`.  `again`: in the place,
        and with the run dir, of the one before it there; else all of it is new.  `program`: in place of ftrun.
        `ftrun`: a changed one."""
        where = self.hosts[rank]
        earlier = [container for container in self.started if container.rank == rank]
        folder = self.folder / f"container-{rank}-{len(earlier)}"
        if again:
            folder = earlier[-1].run_dir.parent
        folder.mkdir(exist_ok=True)
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "SLURM_", "PYTHON"))}
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        plain |= {"PATH": PATHS, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        plain |= {"RANK": str(rank), "WORLD_SIZE": str(self.size), "MASTER_ADDR": self.hosts[0].address}
        plain |= {"MASTER_PORT": "23456", "HOST_ADDR": where.address, **self._mark, **(environment or {})}
        options = ["--run-dir", str(folder / "run"), "--termination-log", str(folder / "termination-log")]
        furnish = ["sh", "-ec", FURNISH, "sh", str(self.names), where.name]
        with (folder / "stdout").open("ab") as out, (folder / "stderr").open("ab") as err:
            process = subprocess.Popen(
                [*ONE_LIFE, *where.network.enter, *CONTAINER, *furnish, *(program or (*ftrun, *options)), *words],
                env=plain,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.started.append(Container(process, folder, rank))
        return self.started[-1]

    @property
    def last(self) -> list[Container]:
        """The newest of each rank."""
        return list({container.rank: container for container in self.started}.values())

    def log(self) -> str:
        return "\n\n".join(container.log() for container in self.started)

    def close(self) -> None:
        """End all processes, by pid."""
        for container in self.started:
            container.process.kill()  # and with it, its PID 1
            container.process.wait(DEADLINE)
        holders = {network.holder.pid for network in self._networks}
        end_all(lambda: set(carrying(self.marker)) - holders)
        for network in self._networks:
            network.close()


@cache
def refusal() -> str:
    """Why network namespaces are not possible here; empty where they are."""
    for program in ("ip", "unshare", "nsenter", "setpriv"):
        if not shutil.which(program, path=PATHS):
            return f"there is no `{program}` here"
    script = (
        "ip link add port9 type veth peer name eth9; ip link add bridge9 type bridge; ip link set port9 master bridge9"
    )
    words = [*CONTAINER, "--net", "sh", "-ec", f"mount -t tmpfs tmpfs /dev/shm; {script}"]
    tried = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, env={"PATH": PATHS})
    return tried.stderr.strip() or "not permitted" if tried.returncode else ""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[[int], Hosts]]:
    """Makes hosts for one test."""
    if why := refusal():
        pytest.skip(f"no hosts in network namespaces: {why}")
    made: list[Hosts] = []

    def make(size: int) -> Hosts:
        made.append(Hosts(tmp_path / f"hosts-{len(made)}", size))
        return made[-1]

    yield make
    for one in made:
        one.close()
        assert not carrying(one.marker)
