"""Evidence that is collected before the limit passes, so that the verdict need not wait for it.

An observation stops nothing, so it may be made of a rank that is late and not yet overdue.  The report is completed
when the limit has passed without a movement, with what is known of the ranks then; a movement before that discards all
of it without a record.  A rank is suspected exactly when it would be without this.
"""

from typing import Final

from ftrun.core.machine.values import Attempt, EarlyEvidence, Finding
from ftrun.core.rules.hang_rules import RULES
from ftrun.core.rules.liveness import is_same

BETWEEN: Final = 3.0  # s between the two observations, and at most a quarter of the limit
WORK: Final = 1.5  # s for all else: the start of the helper, both observations, the stacks
EARLIEST: Final = 0.65  # of the limit, before its end: for a rank that beats five times in it, nothing changes
SPACING: Final = 100  # times its own time, from one that was in vain to the next, which is 1 % of the time
MOVED: Final = 0.05  # s by which the end of a limit may shift without a movement: clocks are rounded


def between(limit: float) -> float:
    """Seconds between the two observations of one investigation."""
    return min(BETWEEN, limit / 4)


def begins(upcoming: Finding, due: float) -> float:
    """When the evidence for this finding has to be begun to be complete when its limit passes, at `due`."""
    return due - min(between(upcoming.limit) + WORK, EARLIEST * upcoming.limit)


def follow(
    attempt: Attempt, upcoming: Finding | None, due: float, now: float
) -> tuple[Attempt, float | None, Finding | None]:
    """The attempt; when to begin the next evidence, or None; and a finding for which to begin it now.

    `upcoming`: the finding whose limit passes next, at `due`.  Evidence waits for a look that is under way.
    """
    early = attempt.early
    if early.finding is not None:
        if is_same(early.finding, upcoming) and abs(early.due - due) <= MOVED:
            return attempt, None, None
        attempt = drop(attempt, now)
        early = attempt.early
    if upcoming is None or RULES[upcoming.rule].by_proof:
        return attempt, None, None
    at = max(begins(upcoming, due), early.earliest)
    if at >= due:
        return attempt, None, None
    if now < at or attempt.look.begun is not None:
        return attempt, max(now, at) if attempt.look.begun is None else None, None
    expected = upcoming._replace(age=upcoming.limit)
    return attempt._replace(early=EarlyEvidence(expected, due, now)), None, expected


def drop(attempt: Attempt, now: float) -> Attempt:
    """The attempt without the evidence that was begun early: it was in vain."""
    early = attempt.early
    if early.finding is None:
        return attempt
    return attempt._replace(early=EarlyEvidence(earliest=now + SPACING * (early.due - early.begun)))
