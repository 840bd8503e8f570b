"""Faults of the network between the members of a group, of their disks, and what the platform reports to them."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proof.chaos.faults import Missed
from proof.chaos.group_plan import (
    BLOCKED,
    CONGESTED,
    DISK_FULL,
    FAULTY_PROCESS,
    LINK_CUT,
    NEW_PROCESS,
    OTHER_POD,
    READ_ONLY,
    RESET,
    RESET_FILE,
    TORN,
    GroupFault,
)
from proof.chaos.world import Undo, World, _each, _immutable
from support.hosts import PATHS, PORT, Host, Network

CONGESTIONS = {"slow": ("24kbit", 6000), "lossy": ("64kbit", 2000)}  # the training of a member needs about 200 kbit/s
MINOR = "80C98002"  # a fault that a reset of the chip cures
ENTRY = {
    "memory fault": {"Status": "unrecovered", "ErrorCodeHex": "80E01801", "Policy": "restart"},
    "platform asks for a retry": {"Status": "unrecovered", "ErrorCodeHex": "80CA8000", "Policy": "restart_request"},
    NEW_PROCESS: {"Status": "fault"},
    FAULTY_PROCESS: {"Status": "fault"},
    RESET: {"Status": "unrecovered", "ErrorCodeHex": MINOR},
}


def refusal() -> str:
    """Why the network cannot be disturbed here, or an empty string."""
    script = "tc qdisc add dev lo root tbf rate 24kbit burst 1600 limit 6000; ip rule add ipproto tcp dport 9 blackhole"
    words = ["unshare", "--net", "sh", "-ec", script]
    tried = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": PATHS})
    return f"tc or ip: {tried.stderr.strip()}" if tried.returncode else ""


class GroupNetwork:
    """A host for each member, with a link of its own to one bridge, and a free one.  `places`: the host of each."""

    def __init__(self, members: int, names: Path | None = None) -> None:
        """`names`: a file that gives member 0 a name, as /etc/hosts does; else its address is known."""
        self._networks: list[Network] = []
        self._names, self._places = names, list(range(members))
        self._disturbed: set[tuple[str, int]] = set()
        try:
            switch = self._network()
            switch.join()
            self.hosts = [Host(number, self._network(), switch) for number in range(members + (names is not None))]
        except BaseException:
            self.close()
            raise

        self._name()

    def _network(self) -> Network:
        self._networks.append(Network({}))
        return self._networks[-1]

    def _name(self) -> None:
        if self._names is not None:
            self._names.write_text(f"127.0.0.1 localhost\n{self.host(0).address} member-0\n")

    def host(self, member: int) -> Host:
        return self.hosts[self._places[member]]

    @property
    def endpoint(self) -> str:
        return f"{self.hosts[0].address if self._names is None else 'member-0'}:{PORT}"

    def move(self) -> None:
        """Member 0 to the free host; Missed, if it is there already."""
        if self._places[0] == len(self.hosts) - 1:
            raise Missed
        self._places[0] = len(self.hosts) - 1
        self._name()

    def disturb(self, kind: str, what: str, member: int) -> Undo:
        """Missed, if this link is disturbed in this way already."""
        if (kind, member) in self._disturbed:
            raise Missed
        self._disturbed.add((kind, member))
        host = self.host(member)
        undo: Callable[[], None]
        if kind == LINK_CUT:
            host.cut(what == "silent")
            undo = host.restore
        elif kind == CONGESTED:
            host.congest(*CONGESTIONS[what])
            undo = host.clear
        else:
            assert kind == BLOCKED
            host.block(PORT)
            undo = host.unblock

        def end() -> None:
            undo()
            self._disturbed.remove((kind, member))

        return end

    def close(self) -> None:
        for network in self._networks:
            network.close()


def spoil_disk(world: World, kind: str, what: str) -> Undo:
    """A full or read-only run dir, state dir, or folder of reports."""
    name = "run/reports" if what == "reports" else what
    folder = world.inside(world.folder / name)
    if kind == DISK_FULL:
        return world.fill(folder)
    assert kind == READ_ONLY
    folder.mkdir(exist_ok=True)
    locked = [*(path for path in folder.iterdir() if path.is_file() and not path.is_symlink()), folder]
    _each(_immutable, locked, True)
    return lambda: _each(_immutable, locked, False)


class ResetFile:
    """The `reset.json` of a group, which the platform shows to all containers of the job."""

    def __init__(self, folder: Path, local: int) -> None:
        self.path, self._local = folder / "reset.json", local
        self._pods = self._version = 0
        self._write({"RankList": []})

    def _write(self, content: dict[str, Any] | str) -> None:
        self._version += 1
        text = content if isinstance(content, str) else json.dumps({"RetryTime": self._pods} | content)
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        os.replace(beside, self.path)

    def report(self, one: GroupFault) -> Undo:
        """Ranks are numbered as the platform does, by the pods of a complete job."""
        kind, who = one.fault.kind, {"RankId": one.member * self._local + one.rank, "LogicId": one.rank}
        if kind == OTHER_POD:
            self._pods += 1
            self._write({"RankList": []})
        elif kind == TORN:
            self._write(json.dumps({"RankList": [who | ENTRY[RESET]]})[:-20])
        else:
            assert kind in RESET_FILE
            self._write({"RankList": [who | ENTRY[kind]], "RestartFaultProcess": kind == NEW_PROCESS})
        version = self._version

        def end() -> None:
            if version != self._version:
                return  # something else is reported now
            after = [who | {"Status": "recovered"}] if kind == RESET else []
            self._write({"RankList": after})

        return end


def leftovers(world: World, known: set[str]) -> list[str]:
    """What is in shared memory and in the folder for temporary files, beside what the harness made and ftrun keeps."""
    kept = ("verdict", "output-", "decisions-", "metrics.prom", "hanging", "nvml")
    beside = {path.name for path in world.folder.iterdir()} - known
    found = [str(world.folder / name) for name in sorted(beside) if not name.startswith(kept)]
    with contextlib.suppress(OSError):
        found += [f"/dev/shm/{path.name}" for path in sorted(world.inside(Path("/dev/shm")).iterdir())]
    return found
