"""Run one job of a group with the faults of its plan, in their order, and return its outcome."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from proof.chaos.faults import Missed, Scene, inject, wait_requests
from proof.chaos.group_faults import GroupNetwork, ResetFile, leftovers, spoil_disk
from proof.chaos.group_plan import (
    ALL_SUSPENDED,
    DISK_FULL,
    DISKS,
    FOLDER,
    FOLDER_LIES,
    FOLDER_LOCKED,
    FOLDER_STALLS,
    FOR_EVER,
    MACHINE_LOST,
    NETWORK,
    READ_ONLY,
    REPLACED,
    RESET_FILE,
    TWO_LOST,
    GroupFault,
    GroupJob,
    GroupOutcome,
    GroupRun,
)
from proof.chaos.plan import Record
from proof.chaos.play import Stopped, Tail, _json, _keep, _lines, _status
from proof.chaos.world import Undo, World, _each, _signal
from support.device.nvml import RECOVERY
from support.runs import HOUSE, alive, children, status, words

FAR = 4e9  # s since 1970: in the future
LOOK = 0.01  # s
PATIENCE = 4.0  # s that a fault waits for its record, after which it is injected anyway; and for its target
SETTLING = 60.0  # s that the training waits until each member works, or is a spare
DEADLINE = 300.0  # s for a job; most take fifteen
REACHED = 12.0  # s that a member 0 which was replaced is there again
NAMES = "names"  # in place of /etc/hosts

WORK = str(HOUSE / "tests" / "proof" / "chaos" / "rank_work.py")
RESET = 1  # what the driver asks for


class Container(World):
    """One of a member, which may be started several times.  `number`: of those of this member."""

    def __init__(self, job: GroupJob, shared: Path, network: GroupNetwork, member: int, number: int) -> None:
        self.group, self.shared, self._network, self.devices = job, shared, network, job.local
        self.member, self.number, self.host = member, number, network.host(member)
        folder = shared / f"{self.node}"
        folder.mkdir()
        super().__init__(job.container(), folder)
        self._own_files = {path.name for path in folder.iterdir()}
        self.tail, self.first, self.began = Tail(self), 0, 0.0
        self.process = self.start()

    @property
    def node(self) -> str:
        return f"member-{self.member}-{self.number}"

    def start(self) -> "subprocess.Popen[bytes]":
        self.tail.read()
        self.first, self.began = len(self.tail.records), time.monotonic()
        self.process = super().start()
        return self.process

    def command(self) -> list[str]:
        return [sys.executable, WORK, str(self.shared), json.dumps(self.group.base.plan())]

    def environment(self) -> dict[str, str]:
        mine = {"CHAOS_NODE": self.node, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.group.local)))}
        if self.group.is_group:
            mine |= {"FTRUN_GROUP_RANK": str(self.member), "FTRUN_GROUP_SIZE": self.group.shape.option}
            mine |= {"FTRUN_GROUP_ENDPOINT": self._network.endpoint, "FTRUN_NODE_NAME": f"node-{self.host.number}"}
            mine |= {"FTRUN_GROUP_SECRET_FILE": str(self.shared / "secret")}
        if self.group.has(None, RESET_FILE):
            mine |= {"FTRUN_RESET_FILE": str(self.shared / "reset.json")}
        return super().environment() | mine | {"MA_SCHEDULE_CNT": str(self.number + 1)}

    def _enter(self) -> list[str]:
        return [*super()._enter(), f"--net=/proc/{self.host.network.holder.pid}/ns/net"]

    def _mounts(self) -> list[str]:
        """Disks that can be full, where this is planned.  Others are not in memory, where a file that is open can be
        written also if it is read-only."""
        own = ("run", "state") if self.group.has(self.member, (DISK_FULL,)) else ()
        made = [f"mount -t tmpfs -o size=4m,mode=700 chaos {self.folder / name}" for name in own]
        made += [f"mount --bind {self.shared / NAMES} /etc/hosts"] if self.group.moves else []
        if self.group.shares:  # what is mounted there later is seen by an ftrun, which has a mount namespace of its own
            where = self.shared / "state"
            made += [f"mount --bind {where} {where}", f"mount --make-shared {where}"]
        return [*super()._mounts(), *made]

    def _mount_disks(self) -> None:
        """The shared folder, through a file system of its own, which can stall or go away."""
        if self.group.shares:
            self.mount_folder(self.shared / "disk", self.shared / "state")

    def spoil_folder(self, kind: str) -> Undo:
        servers = [server for server in self.fuse if server.poll() is None]
        if not servers:
            raise Missed
        if kind == FOLDER_STALLS:
            for server in servers:
                server.send_signal(signal.SIGSTOP)
            return lambda: _each(_signal, [server.pid for server in servers], signal.SIGCONT)
        if kind == FOLDER_LOCKED:
            self._remount("ro")
            return lambda: self._remount("rw")
        if kind == FOLDER_LIES:
            for one in (self.shared / "disk").rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    os.utime(one, (FAR, FAR) if len(one.name) % 2 else (0.0, 0.0))
            return lambda: None
        for server in servers:
            server.kill()
            server.wait()

        def mount_again() -> None:
            subprocess.run([*World._enter(self), "umount", "-l", str(self.shared / "state")], check=True)
            self._mount_disks()

        return mount_again

    def _remount(self, how: str) -> None:
        """It may be away meanwhile."""
        words = [*World._enter(self), "mount", "-o", f"remount,{how}", str(self.shared / "state")]
        subprocess.run(words, stderr=subprocess.DEVNULL, check=False)

    def remains(self) -> list[str]:
        """Files of ftrun that should not outlive it."""
        return leftovers(self, self._own_files)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def settled(self) -> bool:
        """Whether it works, or waits as a spare."""
        fresh = self.tail.records[self.first :]
        return any(r["event"] == "spawned" or (r["event"], r.get("what")) == ("group", "run") for r in fresh)

    def rank(self, number: int) -> int | None:
        """The pid, out here, of the rank with this local number."""
        try:
            inside = int((self.shared / f"pid-{self.node}-{number}").read_text())
        except (OSError, ValueError):
            return None
        found = self.outside(inside)
        return found if found and WORK in words(found) else None

    def children(self, command: int) -> list[int]:
        return children(command)

    def standby(self) -> int | None:
        ranks = {self.rank(number) for number in range(self.group.local)}
        waiting = [process.pid for process in self.processes() if not process.what and process.pid not in ranks]
        own = children(self.ftrun() or 0)
        return next((pid for pid in waiting if pid in own and WORK in words(pid) and alive(pid)), None)

    def executed(self, pid: int) -> bool:
        """Whether the records call this process a rank."""
        started = [r for r in self.tail.records[self.first :] if r["event"] in ("spawned", "rank_spawned")]
        return any(pid in (one["pid"], *one.get("pids", ())) for one in started)


class Later(NamedTuple):
    at: float
    call: Callable[[], object]


class Player:
    def __init__(self, job: GroupJob, folder: Path, stop: threading.Event) -> None:
        self.job, self.folder, self._stop = job, folder, stop
        self._network = GroupNetwork(job.shape.size, folder / NAMES if job.moves else None)
        self._reset_file = ResetFile(folder, job.local)
        self.containers: list[Container] = []
        self.runs: list[GroupRun] = []
        self.struck: list[Record] = []
        self.requests: list[subprocess.Popen[bytes]] = []
        self._asked: list[tuple[int, subprocess.Popen[bytes]]] = []  # requests: which fault, and its ftctl
        self._later: list[Later] = []  # what undoes a fault, and containers that come back
        self._repairs: dict[int, Undo] = {}  # what makes the run dir of a member writable again
        self._coming: dict[int, float] = {}  # members whose container comes back, and since when it is away
        self._lost: set[int] = set()
        self._killed: set[int] = set()  # the processes that were killed with their ftrun
        self._stopped: list[tuple[Container, int, int]] = []  # a rank that was stopped, and its pid
        self._open: set[int] = set()  # processes whose end is not recorded yet
        self._queue = list(job.outer)
        self._seen: list[int] = []
        self._since = time.monotonic()
        self._due: float | None = None
        self._again = self._late = 0.0
        self._standbys: list[tuple[int, Container, int]] = []  # those that were killed: which fault, and its pid there
        self._settling: float | None = None

    # --- containers ---------------------------------------------------------------------------------------------------

    def _of(self, member: int) -> Container:
        return next(one for one in reversed(self.containers) if one.member == member)

    @property
    def _current(self) -> list[Container]:
        return [self._of(member) for member in range(self.job.shape.size)]

    def _new(self, member: int) -> None:
        number = sum(one.member == member for one in self.containers)
        self.containers.append(Container(self.job, self.folder, self._network, member, number))
        self._open.add(self.containers[-1].process.pid)

    def _come_back(self, fault: GroupFault) -> None:
        self._coming.pop(fault.member)
        if fault.back == "again":
            self._repairs.pop(fault.member, lambda: None)()  # in a read-only run dir it would refuse to start
            self._open.add(self._of(fault.member).start().pid)
        else:
            self._new(fault.member)

    def _record_ends(self) -> None:
        for one in self.containers:
            one.tail.read()
            if one.ended and one.process.pid in self._open:
                self._open.remove(one.process.pid)
                self.runs.append(self._run(one, one.process.returncode))

    def _run(self, one: Container, code: int | None) -> GroupRun:
        one.tail.read()
        output = (one.folder / f"output-{len(one.started) - 1}").read_text(errors="replace")
        status, records = _status(code, output), tuple(one.tail.records[one.first :])
        killed = one.process.pid in self._killed
        verdict = _json(one.folder / "verdict")
        over = time.monotonic()
        decided = one.decisions
        return GroupRun(one.member, one.number, records, status, killed, one.began, verdict, output, decided, over)

    # --- playing ------------------------------------------------------------------------------------------------------

    def play(self) -> GroupOutcome:
        began = before = time.monotonic()
        for member in range(self.job.shape.size):
            self._new(member)
        while self._open or self._coming:
            now = time.monotonic()
            self._late, before = max(self._late, now - before - LOOK), now
            if self._stop.is_set():
                raise Stopped
            if now > began + DEADLINE:
                break
            self._record_ends()
            self._do_later(now)
            self._inject_due(now)
            self._continue_done()
            self._let_end(now)
            time.sleep(LOOK)
        ended = not self._open
        for which, one, pid in self._standbys:
            if one.executed(pid):  # it was about to become one
                self.struck[which]["kind"] = "starting rank killed"
        self._do_later(time.monotonic(), True)
        wait_requests(self.requests)
        for which, asked in self._asked:
            self.struck[which]["answer"] = asked.returncode
        self.runs += [self._run(one, None) for one in self._current if one.process.pid in self._open]
        for one in self._current if not ended else []:
            _keep(one, one.folder)
        return GroupOutcome(
            self.job,
            tuple(self.runs),
            (*self.struck, *_lines(self.folder / "struck")),
            tuple(self._written("steps")),
            tuple(self._written("rounds")),
            {int(path.name[6:]): int(path.read_text()) for path in self.folder.glob("final-*") if not path.suffix},
            tuple(self._left() if ended else ()),
            tuple(sorted(self._lost)),
            time.monotonic() - began,
            self._late,
        )

    def _written(self, name: str) -> Iterator[Record]:
        """What the training wrote.  One ftrun alone has no epochs: its attempts, by the records, take their place."""
        records = [record for run in self.runs for record in run.records]
        begins = [record["mono"] for record in records if record["event"] in ("started", "restart")]
        for one in _lines(self.folder / name):
            attempt = sum(begin <= one["mono"] for begin in begins)
            yield one if self.job.is_group else one | {"epoch": attempt}

    def _left(self) -> list[str]:
        """The processes of all containers, and the folders of those whose ftrun ended by itself."""
        found = []
        for one in self.containers:
            found += one.left()
            if one.process.pid not in self._killed:
                found += one.remains()
        return found

    def _do_later(self, now: float, all_of_them: bool = False) -> None:
        for one in [one for one in self._later if all_of_them or one.at <= now]:
            self._later.remove(one)
            one.call()

    def _let_end(self, now: float) -> None:
        """The training may end once nothing is planned any more, and each member works or is a spare: one that comes
        when all have ended would wait in vain."""
        planned = self._queue or self._later or self._coming or any(one.poll() is None for one in self.requests)
        if planned or (self.folder / "enough").exists():
            return
        self._settling = self._settling or now
        if all(one.ended or one.settled for one in self._current) or now > self._settling + SETTLING:
            (self.folder / "enough").touch()

    def _continue_done(self) -> None:
        """A rank whose training is over is not watched, so one that was stopped after that has to be continued."""
        over = {path.name for path in self.folder.glob("over-*")} if self._stopped else set()
        if len(over) >= 1 and all(not one.ended for one, _, _ in self._stopped) and (self.folder / "enough").exists():
            for _, _, pid in self._stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self._stopped.clear()

    # --- faults -------------------------------------------------------------------------------------------------------

    def _inject_due(self, now: float) -> None:
        if not self._queue:
            return
        one, records = self._queue[0], [len(container.tail.records) for container in self.containers]
        if self._due is None:
            on = one.fault.on
            if on and now < self._since + PATIENCE and not self._fresh(on):
                return
            self._due = (now if on else self._since) + one.fault.after
        if now < max(self._due, self._again):
            return
        done = self._inject(one)
        if not done and now < self._due + PATIENCE:
            self._again = now + 0.03
            return
        self._queue.pop(0)
        self._due, self._since, self._seen = None, now, records

    def _fresh(self, event: str) -> bool:
        """Whether any member has such a record since the last fault."""
        seen = [*self._seen, *[0] * len(self.containers)]
        return any(
            record.get("event") == event
            for container, first in zip(self.containers, seen, strict=False)
            for record in container.tail.records[first:]
        )

    def _inject(self, one: GroupFault) -> bool:
        """False: its target does not exist."""
        target = self._of(one.member)
        if target.ended or target.is_frozen or len(target.tail.records) <= target.first:
            return False
        kinds = {"standby killed": self._kill_standby, "device asks for a reset": self._ask_for_reset}
        kinds |= dict.fromkeys(NETWORK, self._disturb)
        kinds |= dict.fromkeys(DISKS, self._spoil)
        kinds |= dict.fromkeys(RESET_FILE, self._report)
        kinds |= dict.fromkeys(FOLDER, self._spoil_folder)
        kinds |= {REPLACED: self._replace, MACHINE_LOST: self._lose_machine}
        kinds |= {TWO_LOST: self._lose_two, ALL_SUSPENDED: self._suspend_all}
        began = time.monotonic()
        try:
            if one.fault.kind in kinds:
                pid, undo = kinds[one.fault.kind](target, one)
            else:
                pid, undo = inject(one.fault, Scene(target, target.rank(one.rank), self.requests))
        except Missed:
            return False
        what = one.fault.what if one.fault.kind != "ftrun killed" else one.back or "for ever"
        fault = {"mono": began, "kind": one.fault.kind, "what": what, "member": one.member, "rank": one.rank}
        fault |= {"container": target.number, "lasting": one.fault.lasting if undo is not None else 0.0}
        self.struck.append(fault | {"pid": int(status(pid).get("NSpid", "0").split()[-1]) if pid else 0})
        if one.fault.kind == "operator request":
            self._asked.append((len(self.struck) - 1, self.requests[-1]))
        if undo is not None and one.fault.lasting < FOR_EVER:
            self._later.append(Later(began + one.fault.lasting, undo))
        if one.fault.kind == "command stopped":
            self._stopped.append((target, one.rank, pid))
        if one.fault.kind == "ftrun killed":
            self._after_kill(target, one)
        return True

    def _kill(self, target: Container, what: str) -> None:
        """On record as a fault of its own."""
        if target.ended:
            return
        self._killed.add(target.process.pid)
        fault = {"mono": time.monotonic(), "kind": "ftrun killed", "what": what, "member": target.member, "rank": 0}
        self.struck.append(fault | {"container": target.number, "lasting": 0.0, "pid": 0})
        if (pid := target.ftrun()) is not None:
            os.kill(pid, signal.SIGKILL)
        target.process.wait()

    def _spoil_folder(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        spoiled = [target] if one.fault.what == "of member 0" else [each for each in self._current if not each.ended]
        undo = [each.spoil_folder(one.fault.kind) for each in spoiled]
        return 0, lambda: [each() for each in undo]

    def _replace(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        """A platform does not reach the host of member 0 any more, and creates its container elsewhere.  In the end
        the old one is killed, or can be reached again and is killed later."""
        old = target.host
        self._network.move()
        old.cut(silent=True)
        self._coming[0] = time.monotonic()

        def begin() -> None:
            self._coming.pop(0)
            self._new(0)

        def end() -> None:
            self._kill(target, "the one that was replaced")

        def undo() -> None:
            if one.fault.what == "killed":
                end()
            else:
                self._later.append(Later(time.monotonic() + REACHED, end))
            old.restore()

        self._later.append(Later(time.monotonic() + one.away, begin))
        return 0, undo

    def _lose_machine(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        """It answers nothing any more."""
        target.host.cut(silent=True)
        self._kill(target, "for ever")
        self._lost.add(target.member)
        return 0, None

    def _lose_two(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        """Member 0 and `rank`, whose containers come back."""
        if any(self._of(member).ended for member in (0, one.rank)):
            raise Missed
        for member in (0, one.rank):
            self._kill(self._of(member), one.back)
            back = one._replace(member=member)
            self._coming[member] = time.monotonic()
            self._later.append(Later(time.monotonic() + one.away, functools.partial(self._come_back, back)))
        return 0, None

    def _suspend_all(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        alive = [each for each in self.containers if not each.ended]
        undo = [each.freeze() if one.fault.what == "freezer" else each.stop_all() for each in alive]
        return 0, lambda: [each() for each in undo]

    def _after_kill(self, target: Container, one: GroupFault) -> None:
        self._killed.add(target.process.pid)
        target.process.wait()
        if one.back:
            self._coming[one.member] = time.monotonic()
            self._later.append(Later(time.monotonic() + one.away, lambda: self._come_back(one)))
        else:
            self._lost.add(one.member)

    def _kill_standby(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        pid = target.standby()
        if pid is None:
            raise Missed
        inside = int(status(pid).get("NSpid", "0").split()[-1])
        os.kill(pid, signal.SIGKILL)
        self._standbys.append((len(self.struck), target, inside))
        return pid, None

    def _ask_for_reset(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        """The driver asks for a reset of a device until the fault is over."""
        target.driver.set(one.rank, **{RECOVERY: RESET})
        return 0, lambda: target.driver.set(one.rank, **{RECOVERY: 0})

    def _disturb(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        return 0, self._network.disturb(one.fault.kind, one.fault.what, one.member)

    def _spoil(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        undo = spoil_disk(target, one.fault.kind, one.fault.what)
        if (one.fault.kind, one.fault.what) == (READ_ONLY, "run"):
            self._repairs[one.member] = undo
        return 0, undo

    def _report(self, target: Container, one: GroupFault) -> tuple[int, Undo | None]:
        """Only what happens to a rank that is at work."""
        pid = target.rank(one.rank)
        if pid is None:
            raise Missed
        return pid, self._reset_file.report(one)

    def close(self) -> None:
        self._later.clear()
        wait_requests(self.requests)
        for one in self.containers:
            one.close()
        self._network.close()


def play(job: GroupJob, folder: Path, stop: threading.Event) -> GroupOutcome:
    """Run it; raises Stopped if `stop` was set meanwhile.  Nothing of it runs afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("disk", "state"):
        (folder / name).mkdir()
    (folder / "secret").touch(mode=0o600)
    (folder / "secret").write_text("a secret of this job")
    player = Player(job, folder, stop)
    try:
        return player.play()
    finally:
        player.close()
