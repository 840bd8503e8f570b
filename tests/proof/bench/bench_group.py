"""What a group costs at rank 0: `python tests/proof/bench/bench_group.py [MEMBERS]` (1,000).

A real messenger of rank 0, and members that are one socket each, with CURVE, all on this machine.  The barrier: from
the last `ready` to the moment at which all have `run`; once with all others ready long before, and once, as after a
restart, with all becoming ready at once.  Then the messenger's CPU and memory at rest.
"""

import json
import os
import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / part) for part in ("supervisor", "hooks", "tests")]

import zmq  # noqa: E402

from ftrun import __version__  # noqa: E402
from ftrun.core.group.messages import Report, State  # noqa: E402
from ftrun.helpers.messenger.transport import secure  # noqa: E402
from ftrun.messages import group_view, peers  # noqa: E402
from ftrun.messages.codec import EXACT  # noqa: E402
from support.helper_process import HelperProcess  # noqa: E402

REST = 30.0  # s
LATE = 60.0  # s
PORT = 29471
TICK = os.sysconf("SC_CLK_TCK")


class Members:
    def __init__(self, place: peers.MemberAddress, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.sockets, self.hellos, self.reports = [], [], [b""] * place.size
        self.size, self.beaten = place.size, time.monotonic()
        for rank in range(1, place.size):
            socket = context.socket(zmq.DEALER)
            socket.linger = 0
            secure(socket, place, False)
            socket.connect(f"tcp://{place.endpoint}")
            self.sockets.append(socket)
            self.hellos.append(peers.dump(peers.Hello(__version__, "job", place.size, rank, f"l{rank}", "n")))

    def say(self, seq: int, state: State, epoch: int) -> None:
        for rank in range(1, self.size):
            self.reports[rank] = peers.dump(Report(rank, f"l{rank}", seq, "n", "b", epoch, state))
            self.beat(rank)

    def beat(self, rank: int) -> None:
        pulse = b'{"rank": %d, "step": 5, "age": 0.25}' % rank
        stamp = peers.dump_time(time.monotonic())
        self.sockets[rank - 1].send_multipart([self.hellos[rank - 1], self.reports[rank], pulse, stamp])

    def all_have(self, what: str, epoch: int) -> float:
        """When.  Meanwhile they beat: who is silent is taken for gone.  zmq.Again after a minute."""
        self.beaten = began = time.monotonic()
        for socket in self.sockets:
            while True:
                while time.monotonic() - self.beaten > peers.period(self.size) or not socket.poll(500):
                    self.beaten = time.monotonic()
                    if self.beaten > began + LATE:
                        raise zmq.Again
                    for rank in range(1, self.size):
                        self.beat(rank)
                frames = socket.recv_multipart()
                if frames[0] in group_view.KINDS:
                    continue  # about the view of the group, and about what its members wait for
                assert frames[0] == peers.ORDER, frames
                order = json.loads(frames[1])
                if order["what"] == what and order["epoch"] == epoch:
                    break
        return time.monotonic()

    def rest(self, seconds: float) -> None:
        """Heartbeats, evenly; each is answered."""
        began, count = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            due = (time.monotonic() - began) / peers.period(self.size) * self.size
            while count < due:
                rank = 1 + count % (self.size - 1)
                self.beat(rank)
                count += 1
                while self.sockets[rank - 1].poll(0):
                    self.sockets[rank - 1].recv_multipart()
            time.sleep(0.02)


def main(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "events.jsonl").touch()
        (folder / "secret").write_text("a secret of more than sixteen bytes")
        secret = str(folder / "secret")
        place = peers.MemberAddress(size, 0, f"127.0.0.1:{PORT}", secret, 600.0, 10.0, 300.0, "job", "l0", "n0", "b")
        messenger = stack.enter_context(
            HelperProcess("messenger", str(folder), str(folder), json.dumps(place._asdict()))
        )
        own = Own(messenger)
        time.sleep(1)  # a pause: its memory is measured at rest, and it says nothing until a member speaks
        print(f"messenger alone: RSS {memory(messenger)} MiB")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        context.max_sockets = size * 2 + 100
        stack.callback(context.destroy, linger=0)
        members = Members(place, context)
        began = time.monotonic()
        members.say(1, "ready", 0)
        print(f"{size} members here, all heard after {members.all_have('wait', 0) - began:.2f} s")
        began = time.monotonic()
        own.say("ready", 0)
        print(f"barrier, last ready to all having run: {members.all_have('run', 1) - began:.3f} s (goal: < 1)")
        members.say(2, "running", 1)
        own.say("running", 1)
        members.rest(3)
        cpu, began = used(messenger), time.monotonic()
        members.rest(REST)
        share = (used(messenger) - cpu) / (time.monotonic() - began)
        print(f"at rest: {share:.1%} of a core (goal: < 5), RSS {memory(messenger)} MiB (goal: < 64)")
        own.say("stopping", 1)
        began = time.monotonic()
        print(f"stop, first word to all having it: {members.all_have('stop', 1) - began:.3f} s")
        cpu, began = used(messenger), time.monotonic()
        own.say("ready", 1)
        members.say(3, "ready", 1)
        sent = time.monotonic()
        done = members.all_have("run", 2)
        print(
            f"barrier, all ready at once, sent within {sent - began:.3f} s: all have run {done - sent:.3f} s after"
            f" the last, {used(messenger) - cpu:.2f} s of CPU (goal: < 1)"
        )
        print(f"afterwards: RSS {memory(messenger)} MiB; problems: {messenger.problems[:3]}")


class Own:
    def __init__(self, messenger: HelperProcess) -> None:
        self._messenger, self._seq = messenger, 0

    def say(self, state: State, epoch: int) -> None:
        self._seq += 1
        self._messenger.ask(
            ask="changed_report", report=EXACT.plain(Report(0, "l0", self._seq, "n0", "b", epoch, state))
        )
        self._messenger.read(0.0)


def used(messenger: HelperProcess) -> float:
    fields = Path(f"/proc/{messenger.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory(messenger: HelperProcess) -> str:
    fields = Path(f"/proc/{messenger.process.pid}/status").read_text().split()
    return f"{int(fields[fields.index('VmRSS:') + 1]) / 1024:.1f}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
