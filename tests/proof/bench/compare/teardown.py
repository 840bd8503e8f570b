"""How long it takes to end a tree, by its size, against the kernel's own teardown; and what is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proof.bench.compare import peers
from proof.bench.compare.kit import CONTAINER, end, made_by, settled
from proof.bench.compare.plain import by_plain
from support.measured import Measured, Plot, Series, spread

NAME = "70-teardown"
SIZES = {10: 7, 100: 7, 1000: 5, 5000: 3}  # processes: samples
DEADLINE = 60.0  # s
LAG = (2.0, 0.2)  # s, and in short; what is still there so long after the program has ended stays
HERE = Path(__file__).parent
RANKS = str(HERE / "ranks.py")
KERNEL, HANG = "`kill -9 -1` in a PID namespace", "ftrun, at a hang"
DECIDED = ("--hang-timeout=500ms", "--grace=off", "--max-restarts=0", "--quiet")
OPTIONS = {"ftrun": ("--quiet",), "tini": ("-g",)}
BEFORE = (
    "A tree of N processes that all die of the first SIGTERM, and from SIGTERM at the program to the end of the last "
    "of them, in milliseconds; of ftrun also from its decision (the record of the hang) with `--grace off`, where "
    "all of it is SIGKILLed in place, as before a restart. The floor is the kernel's own: SIGKILL to everybody else, "
    "by PID 1 of a namespace. Each ran below an init that only reaps, so that what it leaves behind is seen; as PID "
    "1 of a container their own end would let the kernel take the rest.",
)
AFTER = (
    "**At a hang ftrun is slower than the kernel, and than one signal to a process group**: it freezes the tree "
    "(SIGSTOP to each, until a look at /proc shows nobody new), so that nobody can fork away, sends SIGKILL to each, "
    "and looks again until none is left. Reading /proc is what grows with the size. A group is one system call, and "
    "ends whoever has not left it: one `setsid` is enough, as the survivors' figure shows. The record of the decision, "
    "which is on disk before the first signal, is in ftrun's time as well.",
    "Asked to stop (SIGTERM), ftrun passes the signal on to the command, as without it, and then ends what the "
    "command has left behind. A command on its own (*bare*) leaves all but itself; so does circusd, which sends "
    "to the command before its children (`stop_children`), and does not find them below one that has died.",
)


class Ended(NamedTuple):
    """`ms` to the end of the last process; or none: how many were `left`, by a program that has ended unless `late`."""

    ms: float | None
    left: int = 0
    late: bool = False


def measure(short: bool) -> Measured:
    sizes = {10: 1} if short else SIZES
    ways = [(KERNEL, peers.BARE), (HANG, peers.OURS), *((peer.titled, peer) for peer in peers.installed())]
    seen: dict[tuple[str, int], list[Ended]] = {(name, size): [] for name, _ in ways for size in sizes}
    late: set[str] = set()  # who took too long once is not asked for more
    for size, rounds in sizes.items():
        for _ in range(rounds):
            for name, peer in ways:
                if name not in late:
                    seen[name, size].append(one := ended(name, peer, size, LAG[short]))
                    late |= {name} if one.late else set()
    rows = [(name, *(cell(seen[name, size]) for size in sizes)) for name, _ in ways]
    lines = []
    for name, _ in ways:
        known = [(size, tuple(one.ms for one in seen[name, size] if one.ms is not None)) for size in sizes]
        lines.append(Series(name.replace("`", ""), tuple((size, samples) for size, samples in known if samples)))
    return Measured(
        NAME,
        "Kill time against the size of the tree",
        made_by(NAME),
        BEFORE,
        ("who ends it", *(f"{size:,} processes" for size in sizes)),
        tuple(rows),
        AFTER,
        Plot("lines", "processes", "ms", tuple(line for line in lines if line.points), log_x=True, log_y=True),
    )


def cell(seen: list[Ended]) -> str:
    times = [one.ms for one in seen if one.ms is not None]
    if any(one.late for one in seen) or not seen:
        return f"more than {DEADLINE:.0f} s"
    left = max(one.left for one in seen)
    if not times:
        return f"{left:,} left"
    return spread(times) + (f"; {len(seen) - len(times)} times up to {left:,} left" if left else "")


def ended(name: str, peer: peers.Peer, size: int, lag: float) -> Ended:
    with tree(name, peer, size) as (init, folder, gone):
        assert init.stdin is not None
        assert init.stdout is not None
        began = time.monotonic()
        if name == KERNEL:
            init.stdin.write(b"kill")
        elif name != HANG:
            os.kill(_child(_child(init.pid)), signal.SIGTERM)
        told = init.stdout.fileno()
        happened = _first_of(gone, told, DEADLINE)
        late = happened is None
        if happened == told:  # the program has ended, or says so in the same moment
            happened = _first_of(gone, -1, lag)
        now = time.monotonic()
        if happened != gone:
            return Ended(None, len(_left(init.pid)), late)
        if name == HANG:
            records = (folder / "run" / "events.jsonl").read_text().splitlines()
            began = next(one["mono"] for one in map(json.loads, records) if one["event"] == "hang")
        return Ended((now - began) * 1e3)


@contextlib.contextmanager
def tree(name: str, peer: peers.Peer, size: int) -> Iterator[tuple[subprocess.Popen[bytes], Path, int]]:
    """It stands: what the init was started by, the folder of the program, and a pipe that ends with the tree."""
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as told:
        folder = Path(told)
        os.mkfifo(folder / "tree")
        gone = os.open(folder / "tree", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        options = DECIDED if name == HANG else OPTIONS.get(peer.name, ())
        words = peer.command(folder, *peers.PYTHON, RANKS, str(size), str(folder / "tree"), options=options)
        init = subprocess.Popen(
            [*CONTAINER, *peers.PYTHON, str(HERE / "init.py"), *by_plain(words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "said").open("wb"),
            cwd=folder,
            env=settled() | {"TMPDIR": told},
            start_new_session=True,
            bufsize=0,
        )
        try:
            assert _readable(gone, DEADLINE), f"{name}: no tree: {(folder / 'said').read_text()[-2000:]}"
            assert os.read(gone, 16) == b"up\n"
            yield init, folder, gone
        finally:
            end(init)
            init.communicate()
            os.close(gone)


def _first_of(gone: int, told: int, timeout: float) -> int | None:
    """Whether the tree is gone, or the program has told its end; the first if both."""
    poll = select.poll()
    poll.register(gone, 0)  # its end, which needs no asking
    if told >= 0:
        poll.register(told, select.POLLIN)
    happened = dict(poll.poll(timeout * 1e3))
    return gone if gone in happened else next(iter(happened), None)


def _readable(end: int, timeout: float) -> bool:
    return bool(select.select([end], [], [], timeout)[0])


def _child(pid: int) -> int:
    """The first."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _left(unshare: int) -> list[int]:
    """Of the tree, in the namespace."""
    space, found = os.readlink(f"/proc/{_child(unshare)}/ns/pid"), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if os.readlink(f"/proc/{name}/ns/pid") == space and words[3:4] == [RANKS.encode()]:
                found.append(int(name))
    return found
