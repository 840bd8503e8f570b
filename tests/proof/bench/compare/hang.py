"""From the instant at which a silence is as long as its timeout to the death of the one that hangs."""

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
from support.measured import Measured, Plot, Series, spread

NAME = "40-hang"
TIMEOUT = 2.0  # s, of all of them
IN_VAIN = 20.0  # s, for those that have no timeout
FOUND = 30.0  # s; none takes as long
STARTS = 2  # that hang, in each run


class Watch(NamedTuple):
    """A peer that can find a hang, told to do it after TIMEOUT."""

    peer: Peer
    how: str
    options: tuple[str, ...]
    watchdog: str = ""  # the port of circus'

    @property
    def titled(self) -> str:
        return f"{self.peer.titled}, {self.how}" if self.how else self.peer.titled


class Hang(NamedTuple):
    """In s: `late` beyond the timeout, `evidence` of that, from the death to the first line of the next start."""

    late: float
    evidence: float | None
    again: float


NVIDIA = (
    f"--ft-rank-heartbeat-timeout={TIMEOUT}",
    f"--ft-initial-rank-heartbeat-timeout={FOUND}",
    "--max-restarts=9",
)
CLOSE = "--ft-workload-check-interval=0.1"


def watches() -> list[Watch]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])  # free now; the network is the host's
    dog = (
        "[plugin:dog]",
        "use=circus.plugins.watchdog.WatchDog",
        "watchers_regex=x$",
        "loop_rate=0.1",
        f"max_count={TIMEOUT / 0.1:.0f}",
    )
    found = [
        Watch(OURS, "", (f"--hang-timeout={TIMEOUT}s", "--max-restarts=off")),
        Watch(FT_LAUNCHER, "looks every 5 s, as it comes", NVIDIA),
        Watch(FT_LAUNCHER, "every 0.1 s", (*NVIDIA, CLOSE)),
        Watch(CIRCUSD, "with its watchdog, every 0.1 s", (*dog, f"port={port}"), port),
    ]
    return [watch for watch in found if watch.peer.installed]


def hangs(watch: Watch, starts: int = STARTS) -> list[Hang]:
    """One run, in which that many starts hang."""
    found = []
    options, dog = watch.options, watch.watchdog
    with contained(apart(watch.peer), *trainee("hang"), options=options, CIRCUS_WATCHDOG=dog) as run:
        for number in range(1, starts + 1):
            last = until(run, "last", number)
            with Mortal(outside(run, last.pid)) as rank:
                died = rank.died(FOUND)
            assert died is not None, f"{watch.titled} found no hang within {FOUND} s: {run.output}"
            began = until(run, "began", number + 1)
            found.append(Hang(died - last.at - TIMEOUT, _evidence(run, number), began.at - died))
    return found


def _evidence(run: Contained, attempt: int) -> float | None:
    """What ftrun spent on it, by its records."""
    times = {
        r["event"]: r["mono"] for r in run.records if r["attempt"] == attempt and r["event"] in ("suspect", "hang")
    }
    return float(times["hang"] - times["suspect"]) if times else None


def in_vain(peers: Sequence[Peer], within: float) -> dict[str, str]:
    """What became of a hang of the same trainee under those that have no such timeout, all at the same time."""
    with contextlib.ExitStack() as stack:
        runs = {peer: stack.enter_context(contained(apart(peer), *trainee("hang"))) for peer in peers}
        ranks = {}
        for peer, run in runs.items():
            ranks[peer] = stack.enter_context(Mortal(outside(run, until(run, "last").pid)))
        until_then = time.monotonic() + within
        died = {peer: rank.died(max(0.0, until_then - time.monotonic())) for peer, rank in ranks.items()}
    never = f"never: nothing happened in {within:.0f} s"
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
    blind = in_vain(installed(TORCHRUN, SUPERVISORD, CIRCUSD, TINI, DUMB_INIT), 4.0 if short else IN_VAIN)
    rows += [(who, output, "", "", "1") for who, output in blind.items()]
    return Measured(
        NAME,
        "Hang to kill, beyond the timeout",
        made_by(NAME),
        (
            f"A rank beats for {WARM * TACT:g} s, by chance for up to {MORE * TACT:g} s more, and then sleeps for "
            f"ever. The timeout is {TIMEOUT:g} s for all that have one. Measured is from its last beat plus that "
            "timeout to its death.",
        ),
        ("", "late by", "of which evidence", "and the rest", "hangs"),
        tuple(rows),
        AFTER,
        Plot("bars", "", "ms beyond the timeout", tuple(_bars(found)), log_y=True),
    )


def _bars(found: dict[str, list[Hang]]) -> list[Series]:
    return [Series("late by", tuple((who, tuple(1e3 * h.late for h in samples)) for who, samples in found.items()))]


AFTER = (
    "**ftrun is later than those who look often**, because it does not kill on silence alone: it looks at all "
    "processes of the tree twice, a quarter of the timeout apart and 3 s at most, with Python stacks, and writes a "
    "report. That is the evidence. The rest, from the deadline to the suspicion and from the verdict to the death, is "
    "the floor for all of them. The others kill at once and cannot say what hung, or where.",
    "ft_launcher's monitor looks in a fixed interval, so it is late by up to that; ftrun sleeps until the deadline "
    "and needs no interval. Circus has a watchdog as a plugin, for programs that send it datagrams. Of supervisord, "
    "tini, dumb-init, torchrun and circus without it, none can see a hang: this was tried. Torchrun has timers for a "
    "block of code (`TORCHELASTIC_ENABLE_FILE_TIMER`), and NCCL's watchdog ends collectives that hang on GPUs; "
    "neither sees a rank that is in none.",
)
