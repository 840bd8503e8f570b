"""A group of 10,000 real connections: `bin/prove scale [MEMBERS]...`.

Member 0's messenger is the real one.  Each other member is a TCP connection with CURVE of its own, and a few processes
drive them: they connect, report, send heartbeats, and answer each order with a report.  The heartbeats of a member
begin after the first reply to it, as a real member waits for the connection before it sends anything.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / part) for part in ("supervisor", "hooks", "tests")]

import zmq  # noqa: E402

from ftrun import __version__  # noqa: E402
from ftrun.core.group.messages import MemberReport, ReportedState  # noqa: E402
from ftrun.helpers.messenger.member_link import REPLY_TIMEOUT  # noqa: E402
from ftrun.helpers.messenger.transport import secure  # noqa: E402
from ftrun.messages import group_view, peers  # noqa: E402
from ftrun.messages.codec import EXACT  # noqa: E402
from support.helper_process import HelperProcess  # noqa: E402
from support.measured import Measured, save  # noqa: E402
from support.ports import free_port  # noqa: E402

SIZES: Final = (65, 1_000, 10_000)
EACH: Final = 2_500  # members of a process
AT_ONCE: Final = 64  # of them, that connect at the same time: the two ends share the cores of one machine
WAIT: Final = 3_600.0  # s that member 0 waits for the others; reached only if something is broken
REST: Final = 10.0  # s
TICK: Final = os.sysconf("SC_CLK_TCK")
BEFORE: Final = (
    "The messenger of member 0, and members of which each is a TCP connection of its own with authentication and "
    f"encryption, all on this machine, which works for both ends; {AT_ONCE} "
    "connect at the same time. *Up* is "
    "the time until each member has had the first reply; *latest reply*, how long one member waited for it at most. "
    "*Stop* is the time from member 0's failure until the last member has the order to stop, which each answers at "
    "once, and *again*, from then until all have the order to start, for which all answers are needed. The heartbeats "
    "of a member begin after its first reply. *At rest* is the CPU use of the messenger with the heartbeats of all.",
    "In a tree of messengers none has more than 65 connections, whatever the size, so the first row is what each of "
    "its messengers needs; the code that would merge reports is not part of ftrun.",
)
HEAD: Final = (
    "members",
    "up",
    "its CPU",
    "latest reply",
    "stop",
    "again",
    "at rest, % of a core",
    "messenger, MiB",
    "descriptors",
)


class Driver:
    """In a process of its own: the members from `first` to before `last`."""

    def __init__(self, place: peers.MemberAddress, first: int, last: int) -> None:
        self._place, self._first = place, first
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.max_sockets = last - first + 64
        self._ranks = range(first, last)
        self._sockets: list[zmq.Socket[bytes]] = []
        self._poller = zmq.Poller()
        self._rank_of: dict[zmq.Socket[bytes], int] = {}
        self._hellos = [
            peers.dump(peers.MemberHello(__version__, "job", place.size, rank, f"l{rank}", "n")) for rank in self._ranks
        ]
        self._reports = [b""] * len(self._ranks)
        self._seq = 1
        self._asked: dict[int, float] = {}  # when the first message of a member was sent
        self._replied: set[int] = set()
        self._at: dict[tuple[str, int], set[int]] = {}  # by order: who has it
        self.latest = 0.0

    def connect(self) -> float:
        """All of them, a few at a time.  The time of the last first reply."""
        return self.follow("wait", 0, None)

    def _connect(self) -> None:
        """One more member."""
        rank = self._first + len(self._sockets)
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        secure(socket, self._place, False)
        socket.connect(f"tcp://{self._place.endpoint}")
        self._sockets.append(socket)
        self._rank_of[socket] = rank
        self._poller.register(socket, zmq.POLLIN)
        self._asked[rank] = time.monotonic()
        self._report(rank, "ready", 0)
        self._beat(rank)  # sent with the end of the handshake

    def _report(self, rank: int, state: ReportedState, epoch: int) -> None:
        """From now on the member reports that."""
        report = MemberReport(rank, f"l{rank}", self._seq, "n", "b", epoch, state)
        self._reports[rank - self._first] = peers.dump(report)

    def _beat(self, rank: int) -> None:
        number = rank - self._first
        pulse = b'{"rank": %d, "step": 5, "age": 0.25}' % rank
        stamp = peers.dump_time(time.monotonic())
        self._sockets[number].send_multipart([self._hellos[number], self._reports[number], pulse, stamp])

    def follow(self, what: str, epoch: int, answer: ReportedState | None, seconds: float = 0.0) -> float:
        """Heartbeats until all have that order, or without one for so many seconds.  The time of the last one.  Each
        member reports `answer` as soon as it has the order."""
        self._seq += 1
        have = self._at.setdefault((what, epoch), set())
        began = time.monotonic()
        last, sent = began, 0
        while len(have) < len(self._ranks) if what else time.monotonic() < began + seconds:
            while len(self._sockets) < min(len(self._ranks), len(self._replied) + AT_ONCE):
                self._connect()
            for socket, _ in self._poller.poll(50):
                last = self._receive(socket, what, epoch, answer, last)
            # The heartbeats are spread evenly over the period.
            due = (time.monotonic() - began) / peers.period(self._place.size) * len(self._ranks)
            while sent < due:
                rank = self._first + sent % len(self._ranks)
                sent += 1
                if rank in self._replied:
                    self._beat(rank)
        return last

    def _receive(
        self, socket: "zmq.Socket[bytes]", what: str, epoch: int, answer: ReportedState | None, last: float
    ) -> float:
        rank = self._rank_of[socket]
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return last
            if frames[0] in group_view.KINDS:
                continue  # about the view of the group, and about what its members wait for
            assert frames[0] == peers.ORDER, frames
            if rank not in self._replied:
                self._replied.add(rank)
                self.latest = max(self.latest, time.monotonic() - self._asked[rank])
            order = json.loads(frames[1])
            have = self._at.setdefault((order["what"], order["epoch"]), set())
            if rank not in have:
                have.add(rank)
                if (order["what"], order["epoch"]) == (what, epoch):
                    last = time.monotonic()
                    if answer is not None:
                        self._report(rank, answer, epoch)
                        self._beat(rank)

    def close(self) -> None:
        self._context.destroy(linger=0)


def drive(place: peers.MemberAddress, first: int, last: int) -> None:
    """Each line of stdin is a request; the reply is one line with the time of the last order."""
    driver = Driver(place, first, last)
    for line in sys.stdin:
        request = json.loads(line)
        if request["what"] == "connect":
            at = driver.connect()
        else:
            at = driver.follow(request["what"], request["epoch"], request["answer"], request["seconds"])
        print(json.dumps({"at": at, "latest": driver.latest}), flush=True)
    driver.close()


class Drivers:
    """The processes that drive the members.  A context manager: they end with it."""

    def __init__(self, place: peers.MemberAddress) -> None:
        bounds = [*range(1, place.size, EACH), place.size]
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--drive", json.dumps(place._asdict()), str(first), str(last)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first, last in pairwise(bounds)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def begin(self, what: str, epoch: int = 0, answer: ReportedState | None = None, seconds: float = 0.0) -> None:
        for process in self._processes:
            assert process.stdin is not None
            request = {"what": what, "epoch": epoch, "answer": answer, "seconds": seconds}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()

    def finish(self, messenger: HelperProcess) -> tuple[float, float]:
        """When the last member had the order, and how long a first reply took at most."""
        found: list[dict[str, Any]] = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"a driver ended with {process.wait()}; the messenger: {messenger.problems}"
            messenger.read(0.0)
            found.append(json.loads(line))
        return max(one["at"] for one in found), max(one["latest"] for one in found)


class Own:
    """Member 0's own reports, as its PID 1 gives them to its messenger."""

    def __init__(self, messenger: HelperProcess) -> None:
        self._messenger, self._seq = messenger, 0

    def say(self, state: ReportedState, epoch: int) -> None:
        self._seq += 1
        self._messenger.ask(ask="report", report=EXACT.plain(MemberReport(0, "l0", self._seq, "n0", "b", epoch, state)))
        self._messenger.read(0.0)


def used(messenger: HelperProcess) -> float:
    fields = Path(f"/proc/{messenger.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def measure(size: int) -> tuple[str, ...]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftrun-bench-")))
        (folder / "events.jsonl").touch()
        (folder / "secret").write_text("a secret of more than sixteen bytes")
        where = f"127.0.0.1:{free_port()}"
        place = peers.MemberAddress(
            size, 0, where, str(folder / "secret"), WAIT, 10, 300, "job", "l0", "n0", "b", silence=WAIT
        )
        messenger = stack.enter_context(
            HelperProcess("messenger", str(folder), str(folder), json.dumps(place._asdict()))
        )
        own, drivers = Own(messenger), stack.enter_context(Drivers(place))
        began, spent = time.monotonic(), used(messenger)
        drivers.begin("connect")
        at_, latest = drivers.finish(messenger)
        up, cpu = at_ - began, used(messenger) - spent
        own.say("ready", 0)
        drivers.begin("run", 1, "running")
        drivers.finish(messenger)
        own.say("running", 1)
        drivers.begin("", seconds=REST)
        spent, began = used(messenger), time.monotonic()
        drivers.finish(messenger)
        share = (used(messenger) - spent) / (time.monotonic() - began)
        began = time.monotonic()
        drivers.begin("stop", 1, "ready")
        own.say("stopping", 1)
        stopped, _ = drivers.finish(messenger)
        own.say("ready", 1)
        drivers.begin("run", 2, "running")
        again, _ = drivers.finish(messenger)
        pid = messenger.process.pid
        status = Path(f"/proc/{pid}/status").read_text().split()
        resident = int(status[status.index("VmRSS:") + 1]) / 1024
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        print(f"problems of the messenger: {messenger.problems}")
    times = f"{up:.1f} s", f"{cpu:.1f} s", f"{latest:.2f} s", f"{stopped - began:.2f} s", f"{again - stopped:.2f} s"
    return f"{size:,}", *times, f"{share:.1%}", f"{resident:.0f}", f"{descriptors:,}"


def main() -> None:
    parser = argparse.ArgumentParser("bin/prove scale", description=__doc__)
    parser.add_argument("sizes", type=int, nargs="*", metavar="MEMBERS", help=f"[{SIZES}]")
    parser.add_argument("--dry", action="store_true", help="publish nothing")
    parser.add_argument("--drive", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.drive:
        place, first, last = given.drive
        drive(peers.MemberAddress(**json.loads(place)), int(first), int(last))
        return
    rows = []
    for size in given.sizes or SIZES:
        rows.append(measure(size))
        print(dict(zip(HEAD, rows[-1], strict=True)), flush=True)
    if not given.dry:
        load = os.getloadavg()[0]
        after = (
            f"A real member renews its connection when a reply takes more than {REPLY_TIMEOUT:.0f} s, and so connects "
            f"once more; the members of this benchmark do not. The load of the machine was {load:.0f}: other work ran.",
        )
        found = Measured("15-sockets", "Real connections", "bin/prove scale", BEFORE, HEAD, tuple(rows), after)
        print(save("scale", found))


if __name__ == "__main__":
    main()
