"""`--hang-timeout auto`: how long a silence is a hang, learned from the silences that this job has had.

It becomes tight once a rank has moved a hundred times.  A silence may then be as long as ten usual ones (the 99th
percentile of the last thousand), and half a minute in any case; where a longer one than that has passed, and not at the
start, twice that one.

Before, the limit is provisional, from fewer samples and therefore wider: the first hundred steps have the first
evaluation, the first checkpoint and what is compiled late, and a few samples do not show these.  After ten movements it
is three times as wide as the later one, thirty times the slowest of these ten, and five minutes at least, ten times the
later least.  Before ten it is five times as long as the job took to get there.  A later start of the job has a limit
from the earlier ones in the same way.  The start timeout bounds each of them, and none convicts without evidence.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ftrun.core.machine.values import TOUCH, LearnedTimeouts, Rank
from ftrun.core.text import durations

ENOUGH: Final = 100  # silences of a rank
WARM: Final = 10  # the first ones of an attempt: compiling, allocating, filling caches
FLOOR: Final = 30.0  # s
USUAL_TIMES: Final = 10
LONGEST_TIMES: Final = 2
SECTION_TIMES: Final = 3  # validation and saving vary more than steps do,
SECTION_FLOOR: Final = 300.0  # s; and an upload may follow only every tenth epoch
WARM_UP_TIMES: Final = 3  # the first steps of a later start may be that much slower than those of the earlier ones
PROVISIONAL_FLOOR: Final = 300.0  # s; of a limit from fewer than ENOUGH silences, and of that of a start
PROVISIONAL_TIMES: Final = 30  # the slowest of the first WARM
# A later start loads a checkpoint, which the first did not, and all its nodes do so at once: five times the slowest of
# the earlier starts.  Before WARM movements: five times the time from the spawn to the last of them.
START_TIMES: Final = 5
NEWS: Final = 0.1  # a limit that changed by more is written down


class Limit(NamedTuple):
    """`seconds` None: nothing is judged yet.  `learned`: it was; evidence may raise it, up to `most`."""

    seconds: float | None
    learned: bool = False
    most: float | None = None


def limit(rank: Rank, before: LearnedTimeouts | None, start: float | None, taken: float = 0.0) -> Limit:
    """What holds for this rank now; `before` is what earlier attempts, or this one so far, have taught of the job;
    `taken`: seconds from the spawn to its last movement.

    A rank that has not moved often enough in this attempt is judged by what was learned before, once it is warm; a
    start that is slower than the earlier ones gets thrice their slowest.  A rank that has is judged by its own, and
    by the rare silences of the job: all may have to wait for the one that evaluates.
    """
    if rank.intervals >= ENOUGH:
        rare = before is not None and before.longest > _by_usual(before.usual)
        longest = max(rank.longest, before.longest) if before is not None and rare else rank.longest
        seconds = _seconds(rank.usual, longest, start)
    elif before is None:
        seconds = provisional(rank, taken)
        return Limit(start) if start is None or start <= seconds else Limit(seconds, True, start)
    elif rank.intervals >= WARM:
        seconds = max(FLOOR, before.limit)
    else:
        seconds = max(FLOOR, before.limit, WARM_UP_TIMES * before.slowest_start)
    # Something that works and does not move may do so for as long as a start may take.
    return Limit(seconds, True, None if start is None else max(start, LONGEST_TIMES * seconds))


def provisional(rank: Rank, taken: float) -> float:
    """The limit in seconds of a rank that has moved fewer than ENOUGH times, in a job of which nothing was learned."""
    if rank.intervals >= WARM:
        return max(PROVISIONAL_FLOOR, PROVISIONAL_TIMES * rank.slowest_start)
    return max(PROVISIONAL_FLOOR, START_TIMES * taken)


def provisional_reason(rank: Rank) -> str:
    """Why that limit is what it is, for a person."""
    least = f"at least {durations.seconds(PROVISIONAL_FLOOR)}, until {ENOUGH} steps were seen"
    if rank.intervals >= WARM:
        slowest = durations.seconds(rank.slowest_start)
        return f"{PROVISIONAL_TIMES} times the slowest of the first {WARM} steps, {slowest}; {least}"
    return f"{START_TIMES} times the time from the start to the last step; {least}"


def start_limit(first_beat: float) -> float:
    """For how many seconds a start may be without a beat where an earlier one took `first_beat` to its first."""
    return max(PROVISIONAL_FLOOR, START_TIMES * first_beat)


def learned(before: LearnedTimeouts | None, ranks: Iterable[Rank], start: float | None) -> LearnedTimeouts | None:
    """What the job has taught by now, to be kept over restarts: the most of all its ranks.

    Nothing, as long as a rank is waited for that has not moved often enough: it may be the slowest.
    """
    known, slow = [], False
    for rank in ranks:
        if rank.intervals >= ENOUGH:
            known.append(rank)
        else:
            slow = slow or (rank.present and not rank.done and rank.rank != TOUCH)
    if slow or not known:
        return before
    usual, intervals = max(rank.usual for rank in known), max(rank.intervals for rank in known)
    longest = max([rank.longest for rank in known] + ([before.longest] if before else []))
    slowest = max([rank.slowest_start for rank in known] + ([before.slowest_start] if before else []))
    fresh = LearnedTimeouts(0.0, usual, longest, intervals, slowest)
    fresh = fresh._replace(limit=max(limit(rank, fresh, start).seconds or 0.0 for rank in known))
    if before is not None and abs(fresh.limit - before.limit) <= NEWS * before.limit:
        return fresh._replace(limit=before.limit)
    return fresh


def section(longest: float) -> float:
    """How long a section that the hooks open by themselves may last, by the longest earlier one of its name."""
    return max(SECTION_FLOOR, SECTION_TIMES * longest)


def reason(of: LearnedTimeouts) -> str:
    """Why the limit is what it is, for a person."""
    usual, longest = durations.seconds(of.usual), durations.seconds(of.longest)
    if of.longest > _by_usual(of.usual):
        most = "; at most the start timeout" if (1 + NEWS) * of.limit < LONGEST_TIMES * of.longest else ""
        return f"twice the longest silence, {longest}, in {of.intervals} steps{most}"
    if of.limit == FLOOR:
        return (
            f"99 of 100 silences are within {usual}, over {of.intervals} steps; never under {durations.seconds(FLOOR)}"
        )
    return f"{USUAL_TIMES} times {usual}, within which 99 of 100 silences are, over {of.intervals} steps"


def _seconds(usual: float, longest: float, start: float | None) -> float:
    by_usual, twice = _by_usual(usual), LONGEST_TIMES * longest
    if longest <= by_usual:
        return by_usual
    # A machine that slept, or a job that was stopped for a day, is a long silence too: not longer than the start's.
    return twice if start is None else max(by_usual, min(twice, start))


def _by_usual(usual: float) -> float:
    return max(FLOOR, USUAL_TIMES * usual)
