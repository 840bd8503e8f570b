"""The time from the end of a rank, by `kill -9` or after a hang, to the first line of Python of the next start."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from proof.bench.compare import hang
from proof.bench.compare.hang import Watch
from proof.bench.compare.kit import contained, made_by
from proof.bench.compare.peers import CIRCUSD, DUMB_INIT, FT_LAUNCHER, OURS, SUPERVISORD, TINI, TORCHRUN, Peer
from proof.bench.compare.trainees import apart, outside, trainee, until
from support.measured import Measured, spread

NAME = "50-again"


def _loop(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
    return ["sh", "-c", 'while :; do "$@"; done', "sh", *command]


LOOP = Peer("a loop in sh", "", "", _loop)
FAILURE = ("--restart-on=failure", "--max-restarts=off")
WAYS = (
    Watch(LOOP, "", ()),
    Watch(OURS, "--backoff 10ms", (*FAILURE, "--backoff=10ms")),
    Watch(OURS, "default backoff of 1 s", FAILURE),
    Watch(CIRCUSD, "", ()),
    Watch(SUPERVISORD, "autorestart=true", ("autorestart=true",)),
    Watch(TORCHRUN, "--max-restarts", ("--max-restarts=9",)),
    Watch(FT_LAUNCHER, "--max-restarts", hang.NVIDIA),
)


def killed(way: Watch) -> float:
    """The time in s from the kill -9 of the first start to the first line of the second."""
    with contained(apart(way.peer), *trainee("still"), options=way.options) as run:
        rank = outside(run, until(run, "began").pid)
        time.sleep(0.3 + random.random())  # the start is complete; a random time in the polling interval
        then = time.monotonic()
        os.kill(rank, signal.SIGKILL)
        return until(run, "began", 2).at - then


def measure(short: bool) -> Measured:
    ways = [way for way in WAYS if way.peer.installed]
    kills: dict[str, list[float]] = {way.titled: [] for way in ways}
    for _ in range(1 if short else 7):
        for way in ways:
            kills[way.titled].append(1e3 * killed(way))
    hung: dict[str, list[float]] = {}
    for _ in range(0 if short else 2):
        for watch in hang.watches():
            if hang.FREQUENT in watch.options or watch.peer is not FT_LAUNCHER:
                hung.setdefault(watch.titled, []).extend(1e3 * one.again for one in hang.hangs(watch))
    rows = [(f"kill -9, {who}", spread(times, unit=" ms"), str(len(times))) for who, times in kills.items()]
    rows += [(f"hang, {who}", spread(times, unit=" ms"), str(len(times))) for who, times in hung.items()]
    rows += [(peer.titled, "never: it does not restart", "") for peer in (TINI, DUMB_INIT) if peer.installed]
    return Measured(
        NAME,
        "From the end of a rank to the first line of the next start",
        made_by(NAME),
        (
            "The rank is a Python program. It is ended by a `kill -9` from outside, at a random time, or by the kill "
            "after a hang. The time is measured until the first line of the next start is executed, so it includes the "
            "start of Python.",
        ),
        ("end of the rank, program", "time to the next start", "samples"),
        tuple(rows),
        AFTER,
    )


AFTER = (
    "The loop in sh is the lower bound: it only starts the command again. ftrun first searches the output of the ranks "
    "for the cause of the failure, ends the remaining processes of the attempt, waits for its `--backoff`, and loads "
    "its hooks before the first line. After a hang the next start follows without a delay.",
    "supervisord and circus check at intervals of a second, torchrun and ft_launcher at intervals of a tenth of a "
    "second.",
)
