"""Which member's trouble came first, and who stopped first in a hang.  Pure functions of what all have said."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ftrun.core.group.messages import NodeFailure, Pulse, Report

NOWHERE: Final = -1  # before the first step


class MemberLost(NamedTuple):
    """Rank 0 has no word of this life any more.  `closed`: its connection closed, and no other came; else it is silent.
    `heard`: when it was last known to be there, and `shut`: when its connection closed, if that is known."""

    now: float
    rank: int
    life: str
    why: str
    closed: bool = False
    heard: float | None = None
    shut: float | None = None


class MemberState(NamedTuple):
    """`at`: since when it is in trouble, by our clock; None: it is in none."""

    report: Report
    at: float | None = None
    gone: MemberLost | None = None

    @property
    def name(self) -> str:
        return f"member {self.report.rank} ({self.report.node})"


class Suspect(NamedTuple):
    node: str
    rank: int | None = None
    step: int | None = None


def first_failure(report: Report, now: float, before: MemberState | None) -> float | None:
    """Since when: what was said later of the same trouble tells its age, not its beginning."""
    if report.trouble is None and report.state not in ("fallen", "ending", "left"):
        return None
    if report.trouble is not None:
        at = now - max(report.trouble.age, 0.0)
        known = before is not None and before.at is not None and before.report.epoch == report.epoch
        return min(at, before.at) if known and before is not None and before.at is not None else at
    return before.at if before is not None and before.report.epoch == report.epoch and before.at is not None else now


def first(members: Iterable[MemberState], epoch: int) -> MemberState | None:
    """Whose trouble in this epoch, or loss, came first; ties go to the lower rank."""
    came = [(at, member) for member in members if (at := _since(member, epoch)) is not None]
    return min(came, key=lambda one: (one[0], one[1].report.rank))[1] if came else None


def _since(member: MemberState, epoch: int) -> float | None:
    if member.at is not None and member.report.epoch == epoch:
        return member.at
    if member.gone is not None:
        return member.gone.now if member.gone.heard is None else member.gone.heard
    return None


def root_cause(who: MemberState, members: Mapping[int, MemberState], pulses: Mapping[int, Pulse]) -> Suspect:
    """Of a hang: who did the lowest step; of several the one whose stack does not show that it waits for others; then
    who has been silent longest.  Of anything else: whom the trouble names."""
    trouble = who.report.trouble
    if trouble is None:
        return Suspect(who.report.node)
    if trouble.cause != "hang":
        return Suspect(who.report.node, trouble.rank, trouble.step)
    epoch = who.report.epoch
    found = [
        _suspected(member.report, member.report.trouble, pulses.get(rank))
        for rank, member in members.items()
        if member.report.epoch == epoch and (member is who or rank in pulses)
    ]
    named = Suspect(who.report.node, trouble.rank, trouble.step)
    return min(found, key=lambda one: (one.step, one.waits, -one.silent, one.member)).suspect if found else named


class _Suspected(NamedTuple):
    step: int
    waits: bool
    silent: float
    member: int
    suspect: Suspect


def _suspected(report: Report, trouble: NodeFailure | None, pulse: Pulse | None) -> _Suspected:
    hung = trouble if trouble is not None and trouble.cause == "hang" else None
    rank, step, age, waits = (None, None, 0.0, False) if pulse is None else (*pulse, False)
    if hung is not None and (pulse is None or hung.rank in (None, pulse.rank)):
        rank = hung.rank if hung.rank is not None else rank
        step = hung.step if hung.step is not None else step
        age, waits = max(age, hung.age), hung.waits
    suspect = Suspect(report.node, rank, step)
    return _Suspected(NOWHERE if step is None else step, waits, age, report.rank, suspect)
