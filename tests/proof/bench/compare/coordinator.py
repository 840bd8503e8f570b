"""What agreeing costs at rank 0, by the number of members."""

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
from ftrun.messages import peers as words
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
    "One process coordinates all nodes; a member is a node. *Decision*: the pure coordinator alone, the CPU from the "
    "first member that is ready to the order that starts all. *Barrier*: from the word of the last member to all "
    "having the answer, over real sockets (CURVE) on this machine, all members in one process; *at once*: where all "
    "become ready together, as after a restart. *At rest*: the messenger of rank 0, with the heartbeats of all.",
    "torchrun's `c10d` has a store (TCPStore, not encrypted, which decides nothing), for which the barrier is a "
    "counter and a key, and a rendezvous on top of it, in which each member rewrites the state of all: its members "
    "are threads of one process here. It has no word for 'restart all now': agents find out by polling. tini, "
    "dumb-init, supervisord and circus know one node only; nvidia-resiliency-ext uses torch's store.",
)
OURS = ("decision, ms", "its state, KiB", "barrier, ms", "at once, ms", "at rest, % of a core", "messenger, MiB")
THEIRS = ("TCPStore: barrier, ms", "its process, MiB", "c10d rendezvous, ms")
NOT_AGREED = "not in a minute"
LINES = {
    "ftrun, barrier": OURS[2],
    "ftrun, all at once": OURS[3],
    "TCPStore, barrier": THEIRS[0],
    "c10d rendezvous, all at once": THEIRS[2],
}
AFTER = (
    "**A bare TCPStore is about as fast**: it is C++ and compares nothing; its barrier is the floor of one socket a "
    "member. ftrun's answer is a decision over what all members have said (who is in which epoch, whose trouble was "
    "first), made by Python in one thread, and each word of it is encrypted. The figure that it has to be held "
    "against is the rendezvous, which is what torchrun's agents wait for at each restart.",
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
        "What coordinating many nodes costs",
        made_by(NAME),
        BEFORE,
        ("members", *OURS, *(THEIRS if compared else ())),
        tuple(rows),
        AFTER if compared else (),
        Plot("lines", "members", "ms", tuple(Series(who, tuple(of)) for who, of in lines.items()), True, True),
    )


def pure(size: int) -> dict[str, float]:
    """The second barrier of a group that runs, as after a restart; and the memory of the state."""
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
    """A real one, and members that are a socket each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftrun-bench-")))
        (folder / "events.jsonl").touch()
        (folder / "secret").write_text("a secret of more than sixteen bytes")
        place = words.MemberAddress(
            size, 0, f"127.0.0.1:{_port()}", str(folder / "secret"), 600, 10, 300, "job", "l0", "n0", "b"
        )
        hub = stack.enter_context(HelperProcess("messenger", str(folder), str(folder), json.dumps(place._asdict())))
        own = Own(hub)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        context.max_sockets = size * 2 + 100
        stack.callback(context.destroy, linger=0)
        members = Members(place, context)
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
    """In a network of its own, where there is one: the store asks the name server who each client is."""
    program = [
        *(ALONE if permitted(*ALONE) else ()),
        sys.executable,
        str(Path(__file__).with_name("c10d.py")),
        str(size),
    ]
    asked = [*program, "rendezvous"] if rendezvous else program
    try:
        answer = subprocess.run(asked, env=settled(), capture_output=True, check=True, timeout=CAP).stdout
    except subprocess.TimeoutExpired:
        return {}
    found: dict[str, float] = json.loads(answer)
    return {THEIRS[index]: value for index, value in enumerate(found.values()) if value is not None}


def _port() -> int:
    """One that is free."""
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return int(at.getsockname()[1])
