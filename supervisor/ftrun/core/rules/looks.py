"""Looks at a job that stands still: when the next one is due, and what its result means.

Under `--hang-timeout auto` a helper looks whether anything can still end the wait of the rank that has stood still for
the longest time.  An open look changes nothing.  A closed one is repeated soon; if both find the same, the job is
suspected, and evidence has to prove it once more.  No timeout is involved, and no heartbeat is needed.

A look at a rank that computes says in which function it does so (rules/liveness.py).
"""

from typing import Final

from ftrun.core.machine.events import Looked
from ftrun.core.machine.values import Attempt, ClosedLook, LookState, Standstill
from ftrun.core.rules import liveness
from ftrun.core.rules.liveness import STILL, awaited_ranks, time_awake

# Seconds without a movement at which a look is due.  The reason of an open look may pass at once, as where a thread
# runs for a moment; a hang is to be found within a minute although a few looks are open.
LOOKS: Final = (STILL, 22.0, 30.0, 40.0, 50.0, 60.0)
PERIOD: Final = 30.0  # s between two looks from then on
AGAIN: Final = 5.0  # s from a closed look to the look that has to confirm it
REPEATS: Final = 8  # looks that the group asks for, until those at the usual times have to do
SPACING: Final = 200  # times the CPU time of a look: the least time to the next one, so that looks take 0.5 % of a core
LOST: Final = 25.0  # s; a look that has not been answered by then has failed
RECORDED: Final = 60.0  # s without a movement from which on the result of a look is recorded


def follow(attempt: Attempt) -> Attempt:
    """The attempt after its heartbeats were read: a movement ends what the looks have shown."""
    look, still = attempt.look, _still(attempt)
    closed = look.closed
    if still == look.still and not (closed is not None and _has_moved(attempt, closed)):
        return attempt
    return attempt._replace(look=_anew(look, still))


def forget(attempt: Attempt, now: float) -> Attempt:
    """The attempt after a time that does not count as silence: what the looks have shown is dropped, but for a thread
    that computes."""
    look, before = _anew(attempt.look, _still(attempt)), attempt.look
    if look.still == before.still:
        look = look._replace(spin=before.spin)
    return attempt._replace(look=look._replace(earliest=max(look.earliest, now + AGAIN)))


def refute(attempt: Attempt, age: float) -> Attempt:
    """The attempt after evidence, or a movement, has refuted a proof: there is no look at a silence that is not twice
    as long as this one."""
    return attempt._replace(look=_anew(attempt.look, attempt.look.still)._replace(raised=2 * age))


def due(attempt: Attempt, now: float) -> float | None:
    """When the next look is due, in CLOCK_MONOTONIC seconds; None: no rank is awaited, or a deadlock is proved."""
    look = attempt.look
    if look.still is None or look.proved:
        return None
    if look.again is not None:
        return look.again
    age = next((age for age in LOOKS if age > look.age), look.age + PERIOD)
    return max(now + max(age, look.raised) - age_of(attempt, now), look.earliest)


def begin(attempt: Attempt, now: float) -> Attempt:
    """The attempt with a look under way."""
    look = attempt.look._replace(begun=now, age=age_of(attempt, now), again=None, earliest=now + LOST)
    return attempt._replace(look=look)


def end(attempt: Attempt, seen: Looked) -> Attempt:
    """The attempt after the look that was under way.  Two closed looks with the same result prove a deadlock; one whose
    result differs from the one before is confirmed at the usual time."""
    look, before, found = attempt.look._replace(failed=""), attempt.look.closed, None
    if seen.failed:  # what was seen before still holds
        return attempt._replace(look=look._replace(begun=None, failed=seen.open_reason or ""))
    if seen.open_reason is None and look.begun is not None:
        found = ClosedLook(look.begun, seen.fingerprint, seen.mechanism, seen.rank, seen.pid)
    look = look._replace(begun=None, earliest=seen.now + SPACING * seen.cost, closed=found)
    wait, spin = seen.mechanism or seen.open_reason or "", liveness.follow_spin(look.spin, seen.spin)
    look = look._replace(wait=wait, spin=spin)
    if found is not None and before is not None:
        look = look._replace(proved=bool(found.fingerprint) and found._replace(at=before.at) == before)
    elif found is not None:
        look = look._replace(again=seen.now + AGAIN)
    elif seen.again and look.repeats < REPEATS:
        look = look._replace(again=seen.now + AGAIN, repeats=look.repeats + 1)
    return attempt._replace(look=look)


def age_of(attempt: Attempt, now: float) -> float:
    """For how many seconds the job has stood still; 0 if no rank is awaited."""
    still = attempt.look.still
    return 0.0 if still is None else time_awake(still.since, now, attempt.aways)


def _anew(look: LookState, still: Standstill | None) -> LookState:
    """The state without any result; a look that is under way is dropped."""
    earliest = look.earliest if look.begun is None else 0.0
    return LookState(still, earliest=earliest, raised=look.raised, recorded=look.recorded, failed=look.failed)


def _has_moved(attempt: Attempt, closed: ClosedLook) -> bool:
    return any(rank.rank == closed.rank and (rank.moved_at or 0.0) > closed.at for rank in attempt.ranks)


def _still(attempt: Attempt) -> Standstill | None:
    """The awaited rank that has stood still for the longest time; the command where no rank is known."""
    if not attempt.ranks:
        return Standstill(None, attempt.spawned_at)
    ranks = [Standstill(r.rank, r.claimed_at if r.moved_at is None else r.moved_at) for r in awaited_ranks(attempt)]
    return min(ranks, key=lambda still: still.since, default=None)
