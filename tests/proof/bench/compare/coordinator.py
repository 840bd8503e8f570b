"""The cost of coordination at rank 0, by the number of members."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
from contextlib import ExitStack
from pathlib import Path

import zmq

from core.many import Many
from ftrun.messages.peers import MemberAddress
from proof.bench.bench_group import Members, Own, memory, used
from proof.bench.compare import peers
from proof.bench.compare.kit import made_by, settled
from support.helper_process import HelperProcess
from support.measured import Measured, Plot, Series
from support.measured import short as rounded
from support.runs import permitted

NAME = "80-coordinator"
SIZES = (1, 8, 64, 512, 1000, 4000)
REST = 10.0  # s
CAP = 180.0  # s
ALONE = ("unshare", "--net", "sh", "-ec", 'ip link set lo up; exec "$@"', "sh")
BEFORE = (
    "One process coordinates all nodes; a member is a node. *Decision* is the CPU time of the pure coordinator alone, "
    "from the first member that is ready to the request that starts all members. *Barrier* is the time from the "
    "message of the last member until all members have the reply, over real sockets (CURVE) on this machine, with all "
    "members in one process; for *barrier at once* all members become ready at the same time, as after a restart. *At "
    "rest* is the CPU use of the messenger of rank 0 with the heartbeats of all members; its memory is in the column "
    "*messenger*.",
    "`c10d` of torchrun has a store (TCPStore, which is not encrypted and decides nothing), where a barrier is a "
    "counter and a key, and on top of it a rendezvous, in which each member rewrites the state of all members; here "
    "the members of the rendezvous are threads of one process. `c10d` has no message for 'restart all now': the agents "
    "notice by polling. tini, dumb-init, supervisord and circus manage a single node; nvidia-resiliency-ext uses the "
    "store of torch.",
)
OURS = (
    "decision, ms",
    "coordinator state, KiB",
    "barrier, ms",
    "barrier at once, ms",
    "at rest, % of a core",
    "messenger, MiB",
)
THEIRS = ("TCPStore barrier, ms", "TCPStore process, MiB", "c10d rendezvous, ms")
NOT_AGREED = "not within a minute"
LINES = {
    "ftrun, barrier": OURS[2],
    "ftrun, barrier at once": OURS[3],
    "TCPStore, barrier": THEIRS[0],
    "c10d rendezvous, all at once": THEIRS[2],
}
AFTER = (
    "**A bare TCPStore is about as fast**: it is written in C++ and compares nothing; its barrier is the lower bound "
    "for one socket per member. The reply of ftrun is a decision over the reports of all members (the epoch of each, "
    "and whose failure was first), which one Python thread makes, and every message is encrypted. The comparable "
    "figure is the rendezvous, for which the agents of torchrun wait at each restart.",
)


def measure(short: bool) -> Measured:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    compared = peers.TORCHRUN.installed and not short
    rows: list[tuple[str, ...]] = []
    lines: dict[str, list[tuple[float, tuple[float, ...]]]] = {}
    agrees = True
    for size in (1, 8) if short else SIZES:
        found = pure(size)
        if size > 1:
            with contextlib.suppress(zmq.Again):
                found |= messenger(size, 0.5 if short else REST)
        cells = [rounded(found[key]) if key in found else NOT_AGREED if size > 1 else "no group" for key in OURS]
        if compared:
            theirs = c10d(size, agrees)
            cells += [rounded(theirs[key]) if key in theirs else NOT_AGREED for key in THEIRS]
            agrees = agrees and THEIRS[-1] in theirs
            found |= theirs
        for name, key in LINES.items():
            if key in found:
                lines.setdefault(name, []).append((size, (found[key],)))
        rows.append((f"{size:,}", *cells))
    return Measured(
        NAME,
        "The cost of coordinating many nodes",
        made_by(NAME),
        BEFORE,
        ("members", *OURS, *(THEIRS if compared else ())),
        tuple(rows),
        AFTER if compared else (),
        Plot("lines", "members", "ms", tuple(Series(who, tuple(of)) for who, of in lines.items()), True, True),
    )


def pure(size: int) -> dict[str, float]:
    """The CPU time of the second barrier of a running group, as after a restart; and the memory of the state."""
    tracemalloc.start()
    many = Many(size)
    many.all("ready")
    many.all("running", 1)
    kept = tracemalloc.get_traced_memory()[0] / 1024
    tracemalloc.stop()
    many.fail(size // 2)
    ready = many.reports("ready", 1, range(size))
    began = time.process_time()
    many.hear(ready)
    took = time.process_time() - began
    assert many.coordinator.epoch == 2
    return {OURS[0]: took * 1e3, OURS[1]: kept}


def messenger(size: int, rest: float) -> dict[str, float]:
    """A real messenger, and members of which each is a socket."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftrun-bench-")))
        (folder / "events.jsonl").touch()
        (folder / "secret").write_text("a secret of more than sixteen bytes")
        address = MemberAddress(
            size, 0, f"127.0.0.1:{_port()}", str(folder / "secret"), 600, 10, 300, "job", "l0", "n0", "b"
        )
        hub = stack.enter_context(HelperProcess("messenger", str(folder), str(folder), json.dumps(address._asdict())))
        own = Own(hub)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        context.max_sockets = size * 2 + 100
        stack.callback(context.destroy, linger=0)
        members = Members(address, context)
        members.say(1, "ready", 0)
        members.all_have("wait", 0)
        began = time.monotonic()
        own.say("ready", 0)
        barrier = members.all_have("run", 1) - began
        members.say(2, "running", 1)
        own.say("running", 1)
        members.rest(min(3.0, rest))
        spent, began = used(hub), time.monotonic()
        members.rest(rest)
        share = (used(hub) - spent) / (time.monotonic() - began)
        own.say("stopping", 1)
        members.all_have("stop", 1)
        own.say("ready", 1)
        members.say(3, "ready", 1)
        began = time.monotonic()
        again = members.all_have("run", 2) - began
        figures = (barrier * 1e3, again * 1e3, share * 100, float(memory(hub)))
        return dict(zip(OURS[2:], figures, strict=True))


def c10d(size: int, rendezvous: bool) -> dict[str, float]:
    """In a network namespace of its own, if permitted: the store asks the name server for the name of each client."""
    program = [
        *(ALONE if permitted(*ALONE) else ()),
        sys.executable,
        str(Path(__file__).with_name("c10d.py")),
        str(size),
    ]
    arguments = [*program, "rendezvous"] if rendezvous else program
    try:
        answer = subprocess.run(arguments, env=settled(), capture_output=True, check=True, timeout=CAP).stdout
    except subprocess.TimeoutExpired:
        return {}
    found: dict[str, float] = json.loads(answer)
    return {THEIRS[index]: value for index, value in enumerate(found.values()) if value is not None}


def _port() -> int:
    """A free port."""
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return int(at.getsockname()[1])
