"""Until when a group waits for members that are lost, and what follows then, for a person who looks.  Pure."""

import math
from typing import Final

from ftrun.core.group.fences import over_at, starters_over_at
from ftrun.core.group.losses import LossWait
from ftrun.core.group.membership import Coordinator, Draining, Steady, absent_ranks
from ftrun.core.rules import exit_codes

NAMED: Final = 8  # members that are named; the others are counted


def can_start(group: Coordinator, absent: int, waited: bool) -> bool:
    """Whether the next epoch can start: nothing of this one runs any more, and it has as many members as this one, or,
    once the lost ones were waited for, as the group needs."""
    ready, spare = group.kinds.get("ready", 0), group.kinds.get("spare", 0)
    if ready + absent < len(group.placed):
        return False
    return ready + spare >= (group.shape.fewest if waited else _enough(group))


def _enough(group: Coordinator) -> int:
    """How many members are enough to start without waiting for the others."""
    return min(group.shape.most, len(group.placed))


def loss_wait(group: Coordinator, now: float) -> LossWait | None:
    """None while no lost member is waited for, nor the lease of one that is replaced.

    Members that are still ending their command count as able to start."""
    phase = group.phase
    if not isinstance(phase, Draining | Steady) or not phase.losses.missing:
        return _lease_wait(group, now) if isinstance(phase, Draining) else None
    patience, lost = phase.losses.until(group.wait), sorted(phase.losses.missing)
    if patience is None:
        return None
    able = len(group.placed) - len(lost) - group.kinds.get("leaving", 0) + group.kinds.get("spare", 0)
    dead = max(starters_over_at(group, lost), *(over_at(group, rank) for rank in lost))
    found = LossWait(tuple(lost[:NAMED]), len(lost), max(0.0, patience - now), "end", code=exit_codes.HANG_LIMIT.code)
    if isinstance(phase, Steady):  # the ranks wait for a container, which no other one can replace
        due = patience if phase.round_due is None else max(patience, phase.round_due)
        if due == math.inf:  # until a pause ends
            return None
        return found._replace(left=max(0.0, due - now))
    if able >= _enough(group):
        return found._replace(left=max(0.0, dead - now), then="replace", code=None)
    if able >= group.shape.fewest:
        return found._replace(left=max(0.0, patience - now, dead - now), then="go on", working=able, code=None)
    return found


def _lease_wait(group: Coordinator, now: float) -> LossWait | None:
    """The wait for earlier processes of members that are back."""
    if group.lease_state == "foreign":
        return LossWait((group.lease_holder,), 1, max(0.0, (group.lease_until or now) - now), "start")
    over = starters_over_at(group, absent_ranks(group))
    until = {rank: at for rank, at in group.fences.items() if at > now and rank in group.placed}
    for starter, _ in group.starters.values() if over > now else ():
        until[starter.rank] = max(over, until.get(starter.rank, over))
    if not until:
        return None
    return LossWait(tuple(sorted(until)[:NAMED]), len(until), max(until.values()) - now, "start")
