"""The time to end a process tree, by its size, compared with the kernel's own teardown; and the processes left."""

from __future__ import annotations

import contextlib
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
from support.measured import Measured, spread
from support.runs import objects

NAME = "70-teardown"
SIZES = {10: 7, 100: 7, 1000: 5, 5000: 3}  # processes: samples
DEADLINE = 60.0  # s
LAG = (2.0, 0.2)  # s, in full and in short; processes that remain so long after the program has ended stay
HERE = Path(__file__).parent
RANKS = str(HERE / "ranks.py")
KERNEL, HANG = "`kill -9 -1` in a PID namespace", "ftrun, after a hang"
DECIDED = ("--hang-timeout=500ms", "--grace=off", "--max-restarts=0", "--quiet")
OPTIONS = {"ftrun": ("--quiet",), "tini": ("-g",)}
BEFORE = (
    "A tree has N processes, all of which die of the first SIGTERM. The time in milliseconds is measured from a "
    "SIGTERM to the program until the end of the last process; for ftrun also from its decision (the record of the "
    "hang) with `--grace off`, where it sends SIGKILL to the whole tree in place, as before a restart. The lower bound "
    "is the time that the kernel needs after a SIGKILL to all other processes by PID 1 of a namespace. Each program "
    "runs below an init that only reaps, so that the processes that the program leaves behind can be counted; if the "
    "program were PID 1 of a container, the kernel would end them with it.",
)
AFTER = (
    "**After a hang ftrun is slower than the kernel, and than one signal to a process group**: it freezes the tree "
    "(SIGSTOP to each process, until a scan of /proc finds no new one), so that no process can escape by forking, "
    "sends SIGKILL to each process, and scans again until none is left. The time to read /proc grows with the size of "
    "the tree. A signal to a process group is one system call, and does not reach a process that has left the group: "
    "one `setsid` is enough, as the previous section shows. The time of ftrun also includes the record of its "
    "decision, which is on disk before the first signal.",
    "When ftrun receives SIGTERM, it forwards the signal to the command, which therefore ends as it does without "
    "ftrun, and then ends the processes that the command has left behind. Without a supervisor (*bare*) only the "
    "command itself ends. The same is true of circusd, which signals the command before its children "
    "(`stop_children`), and does not find the children of a command that is already dead.",
)


class Ended(NamedTuple):
    """`ms` to the end of the last process.  None: the program has ended (or `late`: has not) and `left` processes
    remain."""

    ms: float | None
    left: int = 0
    late: bool = False


def measure(short: bool) -> Measured:
    sizes = {10: 1} if short else SIZES
    ways = [(KERNEL, peers.BARE), (HANG, peers.OURS), *((peer.titled, peer) for peer in peers.installed())]
    seen: dict[tuple[str, int], list[Ended]] = {(name, size): [] for name, _ in ways for size in sizes}
    late: set[str] = set()  # programs that took too long once are not measured again
    for size, rounds in sizes.items():
        for _ in range(rounds):
            for name, peer in ways:
                if name not in late:
                    seen[name, size].append(one := ended(name, peer, size, LAG[short]))
                    late |= {name} if one.late else set()
    rows = [(name, *(cell(seen[name, size]) for size in sizes)) for name, _ in ways]
    return Measured(
        NAME,
        "Time to end a process tree, by its size",
        made_by(NAME),
        BEFORE,
        ("ended by", *(f"{size:,} processes" for size in sizes)),
        tuple(rows),
        AFTER,
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
        output = init.stdout.fileno()
        happened = _first_of(gone, output, DEADLINE)
        late = happened is None
        if happened == output:  # the program has ended; the tree may end in the same moment
            happened = _first_of(gone, -1, lag)
        now = time.monotonic()
        if happened != gone:
            return Ended(None, len(_left(init.pid)), late)
        if name == HANG:
            records = objects(folder / "run" / "events.jsonl")
            began = next(one["mono"] for one in records if one["event"] == "hang")
        return Ended((now - began) * 1e3)


@contextlib.contextmanager
def tree(name: str, peer: peers.Peer, size: int) -> Iterator[tuple[subprocess.Popen[bytes], Path, int]]:
    """A running tree: the process of `unshare`, the folder of the program, and a pipe that ends with the tree."""
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as name_of_folder:
        folder = Path(name_of_folder)
        os.mkfifo(folder / "tree")
        gone = os.open(folder / "tree", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        options = DECIDED if name == HANG else OPTIONS.get(peer.name, ())
        program = peer.command(folder, *peers.PYTHON, RANKS, str(size), str(folder / "tree"), options=options)
        init = subprocess.Popen(
            [*CONTAINER, *peers.PYTHON, str(HERE / "init.py"), *by_plain(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("wb"),
            cwd=folder,
            env=settled() | {"TMPDIR": name_of_folder},
            start_new_session=True,
            bufsize=0,
        )
        try:
            assert _readable(gone, DEADLINE), f"{name}: no tree: {(folder / 'stderr').read_text()[-2000:]}"
            assert os.read(gone, 16) == b"up\n"
            yield init, folder, gone
        finally:
            end(init)
            init.communicate()
            os.close(gone)


def _first_of(gone: int, output: int, timeout: float) -> int | None:
    """`gone` if the tree has ended, else `output` if the init has printed the end of the program, else None."""
    poll = select.poll()
    poll.register(gone, 0)  # a hang-up is always reported
    if output >= 0:
        poll.register(output, select.POLLIN)
    happened = dict(poll.poll(timeout * 1e3))
    return gone if gone in happened else next(iter(happened), None)


def _readable(end: int, timeout: float) -> bool:
    return bool(select.select([end], [], [], timeout)[0])


def _child(pid: int) -> int:
    """The first child."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _left(unshare: int) -> list[int]:
    """The pids of the tree that still exist in the namespace."""
    space, found = os.readlink(f"/proc/{_child(unshare)}/ns/pid"), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            arguments = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if os.readlink(f"/proc/{name}/ns/pid") == space and arguments[3:4] == [RANKS.encode()]:
                found.append(int(name))
    return found
