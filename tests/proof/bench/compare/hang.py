"""The delay from the moment at which the timeout of a silent rank has passed to the death of the rank."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

from proof.bench.compare.kit import Contained, contained, made_by
from proof.bench.compare.peers import (
    CIRCUSD,
    DUMB_INIT,
    FT_LAUNCHER,
    OURS,
    SUPERVISORD,
    TINI,
    TORCHRUN,
    Peer,
    installed,
)
from proof.bench.compare.trainee import MORE, TACT, WARM
from proof.bench.compare.trainees import Mortal, apart, outside, trainee, until
from support.measured import Measured, spread

NAME = "40-hang"
TIMEOUT = 2.0  # s, of all of them
UNDETECTED = 20.0  # s, to wait for the programs that have no timeout
FOUND = 30.0  # s; each program that has a timeout takes less
STARTS = 2  # number of starts that hang, in each run


class Watch(NamedTuple):
    """A program that can detect a hang, with the options to do so after TIMEOUT."""

    peer: Peer
    how: str
    options: tuple[str, ...]
    watchdog: str = ""  # the port of the watchdog of circus

    @property
    def titled(self) -> str:
        return f"{self.peer.titled}, {self.how}" if self.how else self.peer.titled


class Hang(NamedTuple):
    """In s: `late` is the delay after the timeout, `evidence` the part of it for evidence, and `again` the time from
    the death to the first line of the next start."""

    late: float
    evidence: float | None
    again: float


NVIDIA = (f"--ft-rank-heartbeat-timeout={TIMEOUT}", f"--ft-initial-rank-heartbeat-timeout={FOUND}", "--max-restarts=9")
FREQUENT = "--ft-workload-check-interval=0.1"


def watches() -> list[Watch]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])  # free now; the container shares the network of the host
    plugin = (
        "[plugin:dog]",
        "use=circus.plugins.watchdog.WatchDog",
        "watchers_regex=x$",
        "loop_rate=0.1",
        f"max_count={TIMEOUT / 0.1:.0f}",
    )
    found = [
        Watch(OURS, "", (f"--hang-timeout={TIMEOUT}s", "--max-restarts=off")),
        Watch(FT_LAUNCHER, "checks every 5 s, the default", NVIDIA),
        Watch(FT_LAUNCHER, "checks every 0.1 s", (*NVIDIA, FREQUENT)),
        Watch(CIRCUSD, "watchdog checks every 0.1 s", (*plugin, f"port={port}"), port),
    ]
    return [watch for watch in found if watch.peer.installed]


def hangs(watch: Watch, starts: int = STARTS) -> list[Hang]:
    """One run in which `starts` starts hang."""
    found = []
    with contained(apart(watch.peer), *trainee("hang"), options=watch.options, CIRCUS_WATCHDOG=watch.watchdog) as run:
        for number in range(1, starts + 1):
            last = until(run, "last", number)
            with Mortal(outside(run, last.pid)) as rank:
                died = rank.died(FOUND)
            assert died is not None, f"{watch.titled} found no hang within {FOUND} s: {run.output}"
            began = until(run, "began", number + 1)
            found.append(Hang(died - last.at - TIMEOUT, _evidence(run, number), began.at - died))
    return found


def _evidence(run: Contained, attempt: int) -> float | None:
    """The time that ftrun spent on evidence, according to its records."""
    times = {
        r["event"]: r["mono"] for r in run.records if r["attempt"] == attempt and r["event"] in ("suspect", "hang")
    }
    return float(times["hang"] - times["suspect"]) if times else None


def undetected(peers: Sequence[Peer], within: float) -> dict[str, str]:
    """The outcome of a hang under the programs that have no timeout for heartbeats, all at the same time."""
    with contextlib.ExitStack() as stack:
        runs = {peer: stack.enter_context(contained(apart(peer), *trainee("hang"))) for peer in peers}
        ranks = {}
        for peer, run in runs.items():
            ranks[peer] = stack.enter_context(Mortal(outside(run, until(run, "last").pid)))
        until_then = time.monotonic() + within
        died = {peer: rank.died(max(0.0, until_then - time.monotonic())) for peer, rank in ranks.items()}
    never = f"never: no reaction in {within:.0f} s"
    return {peer.titled: never if when is None else "the rank died" for peer, when in died.items()}


def measure(short: bool) -> Measured:
    found: dict[str, list[Hang]] = {}
    for _ in range(1 if short else 4):
        for watch in watches():
            found.setdefault(watch.titled, []).extend(hangs(watch, 1 if short else STARTS))
    rows = []
    for who, samples in found.items():
        late = spread([1e3 * one.late for one in samples], unit=" ms")
        evidence = [1e3 * one.evidence for one in samples if one.evidence is not None]
        rest = [1e3 * (one.late - one.evidence) for one in samples if one.evidence is not None]
        parts = [spread(part, unit=" ms") for part in (evidence, rest)] if evidence else ["none", ""]
        rows.append((who, late, *parts, str(len(samples))))
    blind = undetected(installed(TORCHRUN, SUPERVISORD, CIRCUSD, TINI, DUMB_INIT), 4.0 if short else UNDETECTED)
    rows += [(who, output, "", "", "1") for who, output in blind.items()]
    return Measured(
        NAME,
        "Delay from the timeout to the kill after a hang",
        made_by(NAME),
        (
            f"A rank sends heartbeats for {WARM * TACT:g} s, continues for a random time of up to {MORE * TACT:g} s, "
            f"and then sleeps forever. The timeout is {TIMEOUT:g} s for all programs that have one. The delay is the "
            "time from the end of this timeout, counted from the last heartbeat, to the death of the rank.",
        ),
        ("program", "delay", "of which evidence", "remainder", "hangs"),
        tuple(rows),
        AFTER,
    )


AFTER = (
    "ftrun does not kill a rank for its silence alone: it observes all processes of the tree twice, a quarter of the "
    "timeout apart and 3 s at most, with their Python stacks, and writes a report. It begins to observe before the "
    "timeout has passed, so that only the conclusion and the report follow it: this is the time for the evidence. The "
    "remainder, from the deadline to the suspicion and from the verdict to the death, is the lower bound for all "
    "programs. The others kill at once and cannot report what hung, or where.",
    "The monitor of ft_launcher checks at a fixed interval, so its delay is up to one interval; ftrun sleeps until the "
    "deadline and needs no interval. circus has a watchdog plugin, for programs that send it datagrams. supervisord, "
    "tini, dumb-init, torchrun, and circus without the plugin cannot detect a hang; each of them was tried. torchrun "
    "has timers for a block of code (`TORCHELASTIC_ENABLE_FILE_TIMER`), and NCCL's watchdog ends collectives that hang "
    "on GPUs; neither detects a rank that hangs elsewhere.",
)
