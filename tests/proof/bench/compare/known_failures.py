"""What goes wrong with monitors of training, tried on ftrun and on its closest peer."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from proof.bench.compare.hang import CLOSE
from proof.bench.compare.kit import Contained, contained, made_by
from proof.bench.compare.peers import FT_LAUNCHER, OURS, Peer, installed
from proof.bench.compare.survivors import FAMILY, survivors
from proof.bench.compare.trainee import LONG, SHORT, TACT, WARM
from proof.bench.compare.trainees import Mortal, apart, lines, outside, trainee, until
from support.measured import Measured
from support.runs import alive, children, end_process, wait_for

NAME = "90-known-failures"
TIMEOUT = 2.0  # s, of a hang
WITHIN = 8.0  # s; who has not noticed by then does not
LATER = 3 * WARM  # beats, after which all helpers of ftrun are there
GOES_ON = 3.0  # s; a monitor is gone or still for so long
BLOCKS = 12.0  # s without a beat: it is not only slow
HELPERS = ("--metrics=127.0.0.1:0", "--idle-timeout=10m", "--progress=checkpoint-*")  # some more than by itself


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
    """With these limits for a silence, and before the first beat, in s; and with a restart after a failure or not."""
    restart = ("--restart-on=failure", "--backoff=10ms") if again else ("--restart-on=none",)
    ours = (*restart, f"--hang-timeout={beat}s", f"--start-timeout={start}s", *HELPERS)
    theirs = (
        f"--max-restarts={again:d}",
        f"--ft-rank-heartbeat-timeout={beat}",
        f"--ft-initial-rank-heartbeat-timeout={start}",
        f"--ft-rank-section-timeouts=outer:{SHORT},inner:{LONG}",
        CLOSE,
    )
    return contained(apart(peer), *command, options=theirs if peer.package else ours)


def killed(of: Contained, pid: int, due: float) -> Seen:
    """Whether that one dies after it was due (CLOCK_MONOTONIC)."""
    with Mortal(pid) as rank:
        died = rank.died(due + WITHIN - time.monotonic())
    if died is None:
        return Seen(False, f"not noticed in {WITHIN:g} s")
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
    """All in there but PID 1 and the rank: what watches it, as processes of their own."""
    return [pid for pid in of.living() if pid not in (of.pid, rank)]


def monitor_killed(peer: Peer) -> Seen:
    """One after the other; the trainer must go on each time."""
    with run(peer, *trainee("work")) as it:
        rank = outside(it, until(it, "beat", LATER).pid)
        for pid in wait_for(lambda: monitors(it, rank), "a monitor"):
            end_process(pid)
            fate = trainer(it, rank, WARM * TACT)
            if not fate.right:
                break
        return fate


def hang_after(peer: Peer) -> Seen:
    """A trainer that takes whatever its monitor does to it, and hangs then."""
    with run(peer, *trainee("tolerant")) as it:
        rank = outside(it, until(it, "beat", WARM).pid)
        for pid in wait_for(lambda: monitors(it, rank), "a monitor"):
            end_process(pid)
        time.sleep(GOES_ON)
        (it.folder / "hang-now").touch()
        return killed(it, rank, until(it, "hangs").at + TIMEOUT)


def monitor_stopped(peer: Peer) -> Seen:
    """All but the rank."""
    with run(peer, *trainee("work"), beat=LONG) as it:
        rank = outside(it, until(it, "beat", WARM).pid)
        for pid in (it.pid, *monitors(it, rank)):
            os.kill(pid, signal.SIGSTOP)
        return trainer(it, rank, GOES_ON)


def trainer(of: Contained, rank: int, seconds: float) -> Seen:
    """Whether it beats at the end of that time."""
    time.sleep(seconds)
    before = len(lines(of.folder, "beat"))
    until_then = time.monotonic() + BLOCKS
    while alive(rank) and time.monotonic() < until_then:
        if len(lines(of.folder, "beat")) > before:
            return Seen(True, "the trainer trains on")
        time.sleep(TACT)
    return Seen(False, "the trainer blocks in its beat" if alive(rank) else "the trainer dies of it")


def below_a_shell(peer: Peer) -> Peer:
    """Not as PID 1, and started again when `again` is there."""
    script = '"$@"; while [ ! -e again ]; do sleep 0.1; done; "$@"'

    def words(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
        return ["sh", "-c", script, "sh", *peer.words(folder, command, ranks, options)]

    return peer._replace(words=words)


def launcher_killed(peer: Peer) -> Seen:
    """Whether a rank, which is not its own child, trains on, and what the next start does about that."""
    with run(below_a_shell(peer), *trainee("below")) as it:
        with Mortal(outside(it, until(it, "beat", WARM).pid)) as rank:
            launcher = wait_for(lambda: children(it.pid), "the launcher")[0]
            os.kill(launcher, signal.SIGKILL)
            wait_for(lambda: not alive(launcher), "the end of the launcher")
            left = "its rank trains on" if trainer(it, rank.pid, WARM * TACT).right else "its rank ends"
            (it.folder / "again").touch()
            until(it, "began", 2)
            swept = rank.died(0) is not None
        return Seen(swept, f"{left}; the next start " + ("ends it first" if swept else "comes beside it"))


def family(peer: Peer) -> Seen:
    with run(peer, *FAMILY, again=True) as it:
        both = {"a daemon, forked twice", "one in a session of its own"} & set(survivors(it))
    return Seen(not both, f"{len(both)} of 2 live on")


def code(what: str, right: int) -> Callable[[Peer], Seen]:
    def ended(peer: Peer) -> Seen:
        with run(peer, *trainee(what)) as it:
            got = it.wait()
        return Seen(got == right, f"it ends with {got}")

    return ended


TRIED = (
    Tried("an outer section is overdue, an inner one is not", sections),
    Tried("a hang before the first call of a hook", still),
    Tried("a thread goes on to beat, the main thread hangs", thread),
    Tried("SIGSTOP to the rank", stopped),
    Tried("SIGKILL to the monitor", monitor_killed),
    Tried("… and then a hang", hang_after),
    Tried("SIGSTOP to the monitor", monitor_stopped),
    Tried("SIGKILL to the launcher, which is not PID 1", launcher_killed),
    Tried("a daemon and a session, after a restart", family),
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
            f"What is known to go wrong, tried on ftrun and on its closest peer; ✓ is as it should be. The timeout is "
            f"{TIMEOUT:g} s, and ft_launcher looks every 0.1 s.",
        ),
        ("", *(peer.titled for peer in peers)),
        tuple(rows),
        AFTER,
    )


def cell(seen: Sequence[Seen]) -> str:
    """One try may differ from another."""
    parts = []
    for (right, text), number in Counter((one.right, one.text) for one in seen).items():
        times = sorted(one.seconds for one in seen if one.text == text and one.seconds is not None)
        low, high = (f"{times[0]:.1f}", f"{times[-1]:.1f}") if times else ("", "")
        often = "" if number == len(seen) else f", {number} of {len(seen)} times"
        parts.append(f"{'✓' if right else '✗'} {text.format(low if low == high else f'{low} to {high}')}{often}")
    return "; ".join(parts)


AFTER = (
    "The monitor of ft_launcher is a process for each rank that answers each heartbeat: killed, it ends the trainer "
    "with an exception in `send_heartbeat`; stopped, it blocks it. Of ftrun, all helpers were killed one after the "
    "other (they come again), and PID 1 was stopped with them. A beat is a store to shared memory: nobody has to be "
    "there.",
    "ft_launcher watches a rank from `init_workload_monitoring` on; of several open sections it judges by the one that "
    "was opened last; and any thread's heartbeat is one.",
    "An ftrun that is PID 1 takes its container with it when it is killed. One that is not takes its command, whose "
    "ranks train on until the next start with the same run dir ends what is left, before it starts anything.",
    "Exit codes are those without a restart; ft_launcher, as torchrun, ends with 1 whatever the rank said.",
)
