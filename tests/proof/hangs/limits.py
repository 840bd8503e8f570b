"""What a limit for a computation that no proof convicts costs healthy jobs, and how soon it finds a hang.

    bin/prove hangs limits --publish

The rule is that of `core/rules/spin.py`; what looks see comes from recorded.json (computing.py), and when they compare
states from `core/rules/looks.py`.  How long healthy computations last is an assumption, so several are published.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from ftrun.core.machine.values import Attempt, Rank
from ftrun.core.rules import looks, spin
from ftrun.core.text import durations
from proof.hangs.computing import PROGRAMS, Program, Seen, recorded
from support.measured import Measured, short

COMMAND = "bin/prove hangs limits --publish"
HOUR = 3600.0
LIMITS = (300.0, 600.0, 1200.0, 1800.0, HOUR)
DAYS = 20_000  # job-days of each simulation
# One computation a day in a place where the job never was before, for so long: median and 99th percentile, in s.
LENGTHS = ((120.0, 1800.0), (300.0, 3000.0))


class Candidate(NamedTuple):
    """`holds`: whether one look at this program counts against it."""

    name: str
    holds: Callable[[Seen], bool]


CANDIDATES = (
    Candidate("it computes in a place that was never seen, and reads and writes nothing", lambda seen: seen.still),
    Candidate("and nothing can influence it", lambda seen: seen.still and seen.alone),
    Candidate("and it changes next to no memory: the rule", lambda seen: seen.still and seen.confined),
)


def comparisons(until: float) -> list[float]:
    """At which silence looks compare the states of a thread that computes, in s."""
    found: list[float] = []
    seen = looks.follow(Attempt(1, pid=1, spawned_at=0.0, ranks=(Rank(0, pid=1, moved_at=0.0),)))
    while (at := looks.due(seen, found[-1] if found else 0.0)) is not None and at <= until:
        seen = looks.begin(seen, at)
        compared = looks.comparison(seen) > 0
        if compared:
            found.append(at)
        seen = looks.end(seen, None, "", at, 0.0, compared=compared)
    return found


TIMES = comparisons(2 * HOUR)


def verdict(limit: float, holds: Callable[[], bool]) -> float:
    """The silence at which the rule convicts a rank that computes for ever, in s; with the hour, that."""
    row, tried = 0, 0.0
    for at, following in zip(TIMES, [*TIMES[1:], math.inf], strict=True):
        if at < tried:  # evidence has refuted it: there is no look before the silence is twice as long
            continue
        row = row + 1 if holds() else 0
        due = max(limit, at)
        if row >= spin.LOOKS and due < following and due < HOUR:
            if holds():  # the evidence finds it once more
                return due
            row, tried = 0, 2 * due
    return HOUR


def chance(seen: Sequence[Seen], holds: Callable[[Seen], bool]) -> float:
    """That one look counts against this program.  What was never seen in so many looks is taken for half a time, so
    that no program is safe only because it was looked at seldom."""
    times = sum(map(holds, seen))
    return (times + 0.5) / (len(seen) + 1) if times < len(seen) else 1.0


class Outcome(NamedTuple):
    """`killed`: healthy jobs in 1,000 job-days; `by_hour`: those of them that the hour alone would kill."""

    killed: float
    by_hour: float


def simulate(
    limit: float,
    candidate: Candidate,
    lengths: tuple[float, float],
    found: Mapping[str, Sequence[Seen]],
    days: int = DAYS,
    programs: Sequence[Program] = PROGRAMS,
) -> Outcome:
    healthy = [program for program in programs if program.share]
    chances = [chance(found[program.name], candidate.holds) for program in healthy]
    draw = random.Random(1)
    middle, high = map(math.log, lengths)
    deviation = (high - middle) / NormalDist().inv_cdf(0.99)
    killed = late = 0
    for _ in range(days):
        length = math.exp(draw.gauss(middle, deviation))
        probability = draw.choices(chances, [program.share for program in healthy])[0]
        late += length > HOUR
        if length > limit:
            killed += length > verdict(limit, lambda p=probability: draw.random() < p)  # type: ignore[misc]
    return Outcome(1000 * killed / days, 1000 * late / days)


def found_after(limit: float, candidate: Candidate, seen: Sequence[Seen], days: int = 2000) -> tuple[float, float]:
    """After how many seconds such a hang is found: the median, and the share of those that wait for the hour."""
    draw, probability = random.Random(2), chance(seen, candidate.holds)
    times = sorted(verdict(limit, lambda: draw.random() < probability) for _ in range(days))
    return times[days // 2], sum(time >= HOUR for time in times) / days


def measured(found: Mapping[str, Sequence[Seen]] | None = None, days: int = DAYS) -> Measured:
    found = recorded() if found is None else found
    rows = []
    for candidate in CANDIDATES:
        for limit in LIMITS[:-1]:
            outcomes = [simulate(limit, candidate, lengths, found, days) for lengths in LENGTHS]
            seconds, missed = found_after(limit, candidate, found["`busy`"])
            late = f" ({missed:.0%} after the hour)" if missed else ""
            costs = (f"{short(max(0.0, one.killed - one.by_hour), 2)}" for one in outcomes)
            rows.append((candidate.name, durations.seconds(limit), *costs, durations.seconds(seconds) + late))
    hour = [simulate(HOUR, CANDIDATES[0], lengths, found, days).by_hour for lengths in LENGTHS]
    rows.append(("the hour alone", durations.seconds(HOUR), *(short(one, 2) for one in hour), durations.seconds(HOUR)))
    says = [f"{program.name}: {_saw(found[program.name])}" for program in PROGRAMS]
    shares = ", ".join(f"{program.name} {100 * program.share:.3g} %" for program in PROGRAMS if program.share)
    assumed = [f"{durations.seconds(middle)} ({durations.seconds(high)})" for middle, high in LENGTHS]
    before = (
        "A loop that counts is not proved, and it looks like a long computation: the question is how long to wait. "
        "Each job of this simulation computes once a day in a place where it never was before, with its devices still; "
        f"that takes {' or '.join(assumed)}, the median and the 99th percentile of a log-normal distribution. These "
        "lengths, and the shares of what healthy jobs compute, are assumptions, chosen against the rule: "
        f"{shares}. What looks see of each program was measured; what they never saw counts as half a time.",
        "A cell has how many healthy jobs in 1,000 job-days the rule ends that the hour would not.",
    )
    after = (
        f"The rule is the third one with {durations.seconds(spin.FLOOR)}, {spin.TIMES} times the usual silence, or "
        f"{spin.LONGEST_TIMES} times the longest: whichever is longest. "
        f"{spin.LOOKS} looks in a row have to find it, at silences of "
        f"{', '.join(durations.seconds(time) for time in TIMES[:7])} and so on, and the evidence once more.",
        "What the looks saw, of the healthy programs and of the hangs: " + "; ".join(says) + ".",
    )
    head = ("a computation is a hang if", "limit", *(f"ended, {one}" for one in assumed), "`busy` is found after")
    return Measured("30-limits", "Computations that are not proved", COMMAND, before, head, tuple(rows), after)


def _saw(seen: Sequence[Seen]) -> str:
    texts = list(dict.fromkeys(one.says for one in seen))
    confined = sum(one.confined for one in seen)
    return f"confined in {confined} of {len(seen)} looks (`{texts[0]}`)"
