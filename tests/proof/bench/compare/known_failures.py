"""Known failures of programs that supervise training, tried with ftrun and with the most similar program."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from proof.bench.compare.hang import FREQUENT
from proof.bench.compare.kit import Contained, contained, made_by
from proof.bench.compare.peers import FT_LAUNCHER, OURS, Peer, installed
from proof.bench.compare.survivors import FAMILY, survivors
from proof.bench.compare.trainee import LONG, SHORT, TACT, WARM
from proof.bench.compare.trainees import Mortal, apart, lines, outside, trainee, until
from support.measured import Measured
from support.runs import alive, children, end_process, wait_for

NAME = "90-known-failures"
TIMEOUT = 2.0  # s, of a hang
WITHIN = 8.0  # s; a program that has not reacted by then does not
LATER = 3 * WARM  # heartbeats, after which all helpers of ftrun run
GOES_ON = 3.0  # s; for so long a monitor is dead or stopped
BLOCKS = 12.0  # s without a heartbeat: the training is not only slow
HELPERS = ("--metrics=127.0.0.1:0", "--idle-timeout=10m", "--progress=checkpoint-*")  # these start further helpers


class Seen(NamedTuple):
    """The result of one try; `seconds` replaces {} in `text`."""

    right: bool
    text: str
    seconds: float | None = None


class Tried(NamedTuple):
    title: str
    by: Callable[[Peer], Seen]


def run(
    peer: Peer, *command: str, beat: float = TIMEOUT, start: float = LONG, again: bool = False
) -> AbstractContextManager[Contained]:
    """`beat`: the timeout of a heartbeat, `start`: of the first one, in s; `again`: restart after a failure."""
    restart = ("--restart-on=failure", "--backoff=10ms") if again else ("--restart-on=none",)
    ours = (*restart, f"--hang-timeout={beat}s", f"--start-timeout={start}s", *HELPERS)
    theirs = (
        f"--max-restarts={again:d}",
        f"--ft-rank-heartbeat-timeout={beat}",
        f"--ft-initial-rank-heartbeat-timeout={start}",
        f"--ft-rank-section-timeouts=outer:{SHORT},inner:{LONG}",
        FREQUENT,
    )
    return contained(apart(peer), *command, options=theirs if peer.package else ours)


def killed(of: Contained, pid: int, due: float) -> Seen:
    """Whether the process dies after the time `due` (CLOCK_MONOTONIC)."""
    with Mortal(pid) as rank:
        died = rank.died(due + WITHIN - time.monotonic())
    if died is None:
        return Seen(False, f"not detected in {WITHIN:g} s")
    return Seen(died > due, "killed {} s after its timeout", died - due)


def sections(peer: Peer) -> Seen:
    with run(peer, *trainee("sections"), beat=LONG) as it:
        inside = until(it, "inside")
        return killed(it, outside(it, inside.pid), inside.at + SHORT)


def still(peer: Peer) -> Seen:
    with run(peer, *trainee("still"), start=TIMEOUT) as it:
        began = until(it, "began")
        return killed(it, outside(it, began.pid), began.at + TIMEOUT)


def thread(peer: Peer) -> Seen:
    with run(peer, *trainee("thread")) as it:
        hangs = until(it, "hangs")
        return killed(it, outside(it, hangs.pid), hangs.at + TIMEOUT)


def stopped(peer: Peer) -> Seen:
    with run(peer, *trainee("work")) as it:
        rank = outside(it, until(it, "beat", WARM).pid)
        os.kill(rank, signal.SIGSTOP)
        return killed(it, rank, lines(it.folder, "beat")[-1].at + TIMEOUT)


def monitors(of: Contained, rank: int) -> list[int]:
    """The processes of the container except PID 1 and the rank: the helpers or monitors."""
    return [pid for pid in of.living() if pid not in (of.pid, rank)]


def monitor_killed(peer: Peer) -> Seen:
    """Kill the monitors one after the other; the training must continue each time."""
    with run(peer, *trainee("work")) as it:
        rank = outside(it, until(it, "beat", LATER).pid)
        for pid in wait_for(lambda: monitors(it, rank), "a monitor"):
            end_process(pid)
            fate = trainer(it, rank, WARM * TACT)
            if not fate.right:
                break
        return fate


def hang_after(peer: Peer) -> Seen:
    """A training that tolerates every error of its monitor, and then hangs."""
    with run(peer, *trainee("tolerant")) as it:
        rank = outside(it, until(it, "beat", WARM).pid)
        for pid in wait_for(lambda: monitors(it, rank), "a monitor"):
            end_process(pid)
        time.sleep(GOES_ON)
        (it.folder / "hang-now").touch()
        return killed(it, rank, until(it, "hangs").at + TIMEOUT)


def monitor_stopped(peer: Peer) -> Seen:
    """Stop all processes except the rank."""
    with run(peer, *trainee("work"), beat=LONG) as it:
        rank = outside(it, until(it, "beat", WARM).pid)
        for pid in (it.pid, *monitors(it, rank)):
            os.kill(pid, signal.SIGSTOP)
        return trainer(it, rank, GOES_ON)


def trainer(of: Contained, rank: int, seconds: float) -> Seen:
    """Whether the training sends heartbeats after that time."""
    time.sleep(seconds)
    before = len(lines(of.folder, "beat"))
    until_then = time.monotonic() + BLOCKS
    while alive(rank) and time.monotonic() < until_then:
        if len(lines(of.folder, "beat")) > before:
            return Seen(True, "the training continues")
        time.sleep(TACT)
    return Seen(False, "the training blocks in its heartbeat" if alive(rank) else "the training dies")


def below_a_shell(peer: Peer) -> Peer:
    """The program not as PID 1, and started again once the file `again` exists."""
    script = '"$@"; while [ ! -e again ]; do sleep 0.1; done; "$@"'

    def arguments(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
        return ["sh", "-c", script, "sh", *peer.arguments(folder, command, ranks, options)]

    return peer._replace(arguments=arguments)


def launcher_killed(peer: Peer) -> Seen:
    """Whether a rank that is not a child of the launcher continues, and whether the next start ends it."""
    with run(below_a_shell(peer), *trainee("below")) as it:
        with Mortal(outside(it, until(it, "beat", WARM).pid)) as rank:
            launcher = wait_for(lambda: children(it.pid), "the launcher")[0]
            os.kill(launcher, signal.SIGKILL)
            wait_for(lambda: not alive(launcher), "the end of the launcher")
            left = "the rank continues to train" if trainer(it, rank.pid, WARM * TACT).right else "the rank ends"
            (it.folder / "again").touch()
            until(it, "began", 2)
            swept = rank.died(0) is not None
        return Seen(swept, f"{left}; the next start " + ("ends it first" if swept else "runs beside it"))


def family(peer: Peer) -> Seen:
    with run(peer, *FAMILY, again=True) as it:
        both = {"a daemon, double fork", "a child in its own session"} & set(survivors(it))
    return Seen(not both, f"{len(both)} of 2 survive")


def code(what: str, right: int) -> Callable[[Peer], Seen]:
    def ended(peer: Peer) -> Seen:
        with run(peer, *trainee(what)) as it:
            got = it.wait()
        return Seen(got == right, f"exit code {got}")

    return ended


TRIED = (
    Tried("an outer section is overdue, an inner one is not", sections),
    Tried("a hang before the first call of a hook", still),
    Tried("the main thread hangs, another thread still sends heartbeats", thread),
    Tried("SIGSTOP to the rank", stopped),
    Tried("SIGKILL to the monitor", monitor_killed),
    Tried("SIGKILL to the monitor, then a hang", hang_after),
    Tried("SIGSTOP to the monitor", monitor_stopped),
    Tried("SIGKILL to the launcher, which is not PID 1", launcher_killed),
    Tried("a daemon and a child in its own session, after a restart", family),
    Tried("the command exits with 17", code("exits", 17)),
    Tried("the command dies of SIGSEGV", code("segfault", 128 + signal.SIGSEGV)),
)


def measure(short: bool) -> Measured:
    peers = installed(OURS, FT_LAUNCHER)
    seen: dict[tuple[str, str], list[Seen]] = {}
    for _ in range(1 if short else 3):
        for tried in TRIED:
            for peer in peers:
                seen.setdefault((tried.title, peer.name), []).append(tried.by(peer))
    rows = [(tried.title, *(cell(seen[tried.title, peer.name]) for peer in peers)) for tried in TRIED]
    return Measured(
        NAME,
        "Known failures",
        made_by(NAME),
        (
            "Each row is a known way in which supervision can fail, tried with ftrun and with the program that is most "
            f"similar to it. ✓ marks the correct behaviour. The timeout is {TIMEOUT:g} s, and ft_launcher checks every "
            "0.1 s.",
        ),
        ("case", *(peer.titled for peer in peers)),
        tuple(rows),
        AFTER,
    )


def cell(seen: Sequence[Seen]) -> str:
    """The results of all tries, which may differ."""
    parts = []
    for (right, text), number in Counter((one.right, one.text) for one in seen).items():
        times = sorted(one.seconds for one in seen if one.text == text and one.seconds is not None)
        low, high = (f"{times[0]:.1f}", f"{times[-1]:.1f}") if times else ("", "")
        often = "" if number == len(seen) else f", {number} of {len(seen)} times"
        parts.append(f"{'✓' if right else '✗'} {text.format(low if low == high else f'{low} to {high}')}{often}")
    return "; ".join(parts)


AFTER = (
    "The monitor of ft_launcher is a separate process for each rank, which replies to each heartbeat. If it is killed, "
    "`send_heartbeat` raises an exception that ends the training; if it is stopped, the call blocks. For ftrun, all "
    "helpers were killed one after the other (ftrun restarts them), and all of them were stopped together with PID 1. "
    "A heartbeat is a store to shared memory, which needs no other process.",
    "ft_launcher supervises a rank only after `init_workload_monitoring`; if several sections are open, it applies "
    "only the timeout of the one that was opened last; and it accepts a heartbeat from any thread.",
    "If an ftrun that is PID 1 is killed, the kernel ends its container. If an ftrun that is not PID 1 is killed, its "
    "command is killed too, and the ranks continue to train until the next start with the same run dir ends the "
    "remaining processes, before it starts anything.",
    "The exit codes are those without a restart; ft_launcher, like torchrun, ends with 1 whatever the exit code of the "
    "rank.",
)
