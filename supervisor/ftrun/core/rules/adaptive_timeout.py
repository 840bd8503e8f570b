"""`--hang-timeout auto`: how long a silence must last to be a hang, learned from the earlier silences of the job.

The limit becomes tight once a rank has moved a hundred times.  A silence may then last ten times the usual one (the
99th percentile of the last thousand), and at least half a minute; where the job has had a longer silence than that, and
not at its start, twice that silence.

Before that, the limit is provisional: it rests on fewer samples and is therefore wider, since the first hundred steps
include the first evaluation, the first checkpoint and late compilation, which a few samples do not show.  After ten
movements it is three times as wide as the later limit: thirty times the slowest of these ten, and at least five
minutes, which is ten times the later minimum.  Before ten movements it is five times the time that the job took to get
there.  A later start of the job gets its limit from the earlier starts in the same way.  The start timeout is the upper
bound of each limit, and none of them kills a rank without evidence.

For ten minutes, or a hundred times the usual silence, that evidence is a proof (helpers/evidence/proof.py): a timer, a
signal handler or a side thread may end a wait in a way that nothing shows.  After that it is enough that nothing
outside the job is known to end the wait.
"""

from collections.abc import Iterable
from typing import Final

from ftrun.core.machine.values import TOUCH, LearnedTimeouts, Rank
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import durations

ENOUGH: Final = 100  # silences of a rank, for a tight limit
WARM: Final = 10  # the first silences of an attempt: compiling, allocating, filling caches
FLOOR: Final = 30.0  # s
USUAL_TIMES: Final = 10
LONGEST_TIMES: Final = 2
SECTION_TIMES: Final = 3  # validation and saving vary more than steps do,
SECTION_FLOOR: Final = 300.0  # s; and an upload may follow only every tenth epoch
WARM_UP_TIMES: Final = 3  # the first steps of a later start may be that much slower than those of the earlier starts
PROVISIONAL_FLOOR: Final = 300.0  # s; the minimum of a limit from fewer than ENOUGH silences, and of a start limit
PROVISIONAL_TIMES: Final = 30  # times the slowest of the first WARM
# A later start loads a checkpoint, which the first did not, and all its nodes do so at once: five times the slowest of
# the earlier starts.  Before WARM movements: five times the time from the spawn to the last of them.
START_TIMES: Final = 5
# A wait that nothing outside the job is known to end, although that is not proved: a hundred times the usual silence.
UNPROVED_TIMES: Final = 100
UNPROVED_FLOOR: Final = 600.0  # s
NEWS: Final = 0.1  # a limit that changed by a larger share is recorded


class Limit(NamedTuple):
    """`seconds` None: there is no limit yet.  `learned`: evidence may raise the limit, up to `most`."""

    seconds: float | None
    learned: bool = False
    most: float | None = None


def limit(rank: Rank, before: LearnedTimeouts | None, start: float | None, taken: float = 0.0) -> Limit:
    """The limit for this rank now.  `before`: what was learned in earlier attempts, or so far in this one; `taken`:
    seconds from the spawn to its last movement.

    A rank that has not moved often enough in this attempt gets the limit that was learned before, once it is warm; a
    start may be three times as slow as the slowest earlier one.  A rank that has moved often enough gets a limit from
    its own silences and the rare long silences of the job, since all ranks may have to wait for one that evaluates.
    """
    if rank.intervals >= ENOUGH:
        rare = before is not None and before.longest > _by_usual(before.usual)
        longest = max(rank.longest, before.longest) if before is not None and rare else rank.longest
        seconds = _limit_seconds(rank.usual, longest, start)
    elif before is None:
        seconds = provisional(rank, taken)
        return Limit(start) if start is None or start <= seconds else Limit(seconds, True, start)
    elif rank.intervals >= WARM:
        seconds = max(FLOOR, before.limit)
    else:
        seconds = max(FLOOR, before.limit, WARM_UP_TIMES * before.slowest_start)
    # A rank that works without moving may do so for as long as a start may take.
    return Limit(seconds, True, None if start is None else max(start, LONGEST_TIMES * seconds))


def provisional(rank: Rank, taken: float) -> float:
    """The limit in seconds of a rank that has moved fewer than ENOUGH times, in a job without a learned limit."""
    if rank.intervals >= WARM:
        return max(PROVISIONAL_FLOOR, PROVISIONAL_TIMES * rank.slowest_start)
    return max(PROVISIONAL_FLOOR, START_TIMES * taken)


def provisional_reason(rank: Rank) -> str:
    """How the provisional limit was derived, as text."""
    least = f"at least {durations.seconds(PROVISIONAL_FLOOR)}, until {ENOUGH} steps were seen"
    if rank.intervals >= WARM:
        slowest = durations.seconds(rank.slowest_start)
        return f"{PROVISIONAL_TIMES} times the slowest of the first {WARM} steps, {slowest}; {least}"
    return f"{START_TIMES} times the time from the start to the last step; {least}"


def start_limit(first_beat: float) -> float:
    """How many seconds a start may take to its first heartbeat, where earlier ones took `first_beat`."""
    return max(PROVISIONAL_FLOOR, START_TIMES * first_beat)


def learn(before: LearnedTimeouts | None, ranks: Iterable[Rank], start: float | None) -> LearnedTimeouts | None:
    """What was learned about the job so far, to be kept over restarts: the highest figures of all its ranks.

    Nothing is learned while a present rank has not moved often enough, since it may be the slowest.
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


def unproved(rank: Rank | None) -> float:
    """For how many seconds a rank may be silent in a wait that is not proved to be endless."""
    usual = rank.usual if rank is not None and rank.intervals >= ENOUGH else 0.0
    return max(UNPROVED_FLOOR, UNPROVED_TIMES * usual)


def section(longest: float) -> float:
    """How long a section that the hooks open themselves may last, given the longest earlier one of its name."""
    return max(SECTION_FLOOR, SECTION_TIMES * longest)


def reason(of: LearnedTimeouts) -> str:
    """How the learned limit was derived, as text."""
    usual, longest = durations.seconds(of.usual), durations.seconds(of.longest)
    if of.longest > _by_usual(of.usual):
        most = "; at most the start timeout" if (1 + NEWS) * of.limit < LONGEST_TIMES * of.longest else ""
        return f"twice the longest silence, {longest}, in {of.intervals} steps{most}"
    if of.limit == FLOOR:
        return (
            f"99 of 100 silences are within {usual}, over {of.intervals} steps; never under {durations.seconds(FLOOR)}"
        )
    return f"{USUAL_TIMES} times {usual}, within which 99 of 100 silences are, over {of.intervals} steps"


def _limit_seconds(usual: float, longest: float, start: float | None) -> float:
    by_usual, twice = _by_usual(usual), LONGEST_TIMES * longest
    if longest <= by_usual:
        return by_usual
    # A sleeping machine, or a job that was stopped for a day, is a long silence too: the start timeout is the bound.
    return twice if start is None else max(by_usual, min(twice, start))


def _by_usual(usual: float) -> float:
    return max(FLOOR, USUAL_TIMES * usual)
