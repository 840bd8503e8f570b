"""Which member failed first, and which rank stopped first in a hang.  Pure functions of the reports of all members."""

from collections.abc import Iterable, Mapping
from typing import Final

from ftrun.core.group.messages import MemberReport, NodeFailure, Pulse
from ftrun.core.named_tuple import NamedTuple

NOWHERE: Final = -1  # before the first step


class MemberLost(NamedTuple):
    """Rank 0 has lost contact with this life of a member.  `closed`: its connection closed, and no new one came;
    otherwise it is silent.  `last_message`, `closed_at`: when its last message came, and its connection closed.
    `certain`: its command is dead, since its ftrun said that it ends, or since its machine, which can be reached, has
    no ftrun any more.
    """

    now: float
    rank: int
    life: str
    why: str
    closed: bool = False
    last_message: float | None = None
    closed_at: float | None = None
    certain: bool = False


class MemberState(NamedTuple):
    """The last report of a member.  `at`: since when it has failed, by the coordinator's clock; None: it has not."""

    report: MemberReport
    at: float | None = None
    gone: MemberLost | None = None

    @property
    def name(self) -> str:
        return f"member {self.report.rank} ({self.report.node})"


class FirstSuspect(NamedTuple):
    node: str
    rank: int | None = None
    step: int | None = None
    member: int | None = None


def first_failure(report: MemberReport, now: float, before: MemberState | None) -> float | None:
    """When the failure of this report began; None: there is no failure.  A later report of the same failure does not
    move its beginning."""
    if report.failure is None and report.state not in ("fallen", "ending", "left"):
        return None
    if report.failure is not None:
        at = now - max(report.failure.age, 0.0)
        known = before is not None and before.at is not None and before.report.epoch == report.epoch
        return min(at, before.at) if known and before is not None and before.at is not None else at
    return before.at if before is not None and before.report.epoch == report.epoch and before.at is not None else now


def first(members: Iterable[MemberState], epoch: int) -> MemberState | None:
    """The member whose failure in this epoch, or loss, came first; on a tie the one with the lower rank.

    A failure that is the consequence of the end of another process yields to all others: a process that needs long to
    exit after its exception is overtaken by those that lose their connection to it."""
    came = [(at, member) for member in members if (at := _failed_since(member, epoch)) is not None]
    return min(came, key=lambda one: (_is_symptom(one[1], epoch), one[0], one[1].report.rank))[1] if came else None


def _is_symptom(member: MemberState, epoch: int) -> bool:
    failure = member.report.failure
    return failure is not None and failure.symptom and member.report.epoch == epoch and member.gone is None


def _failed_since(member: MemberState, epoch: int) -> float | None:
    if member.at is not None and member.report.epoch == epoch:
        return member.at
    if member.gone is not None:
        return member.gone.now if member.gone.last_message is None else member.gone.last_message
    return None


def root_cause(failed: MemberState, members: Mapping[int, MemberState], pulses: Mapping[int, Pulse]) -> FirstSuspect:
    """The suspect of the failure.  In a hang that is the rank that is proved to be its cause; else the one with the
    lowest step; among several, one whose stack does not show that it waits for others; then the one that has been
    silent longest.  In any other failure, the reported rank."""
    failure = failed.report.failure
    if failure is None:
        return FirstSuspect(failed.report.node, member=failed.report.rank)
    if failure.cause != "hang" or failure.proved:
        return FirstSuspect(failed.report.node, failure.rank, failure.step, failed.report.rank)
    epoch = failed.report.epoch
    found = [
        _candidate(member.report, member.report.failure, pulses.get(rank))
        for rank, member in members.items()
        if member.report.epoch == epoch and (member is failed or rank in pulses)
    ]
    named = FirstSuspect(failed.report.node, failure.rank, failure.step, failed.report.rank)
    return min(found)[1] if found else named


def _candidate(
    report: MemberReport, failure: NodeFailure | None, pulse: Pulse | None
) -> tuple[tuple[int, bool, float, int], FirstSuspect]:
    """The suspect of a member, after the order in which suspects are preferred."""
    hung = failure if failure is not None and failure.cause == "hang" else None
    rank, step, age, waits = (None, None, 0.0, False) if pulse is None else (*pulse, False)
    if hung is not None and (pulse is None or hung.rank in (None, pulse.rank)):
        rank = hung.rank if hung.rank is not None else rank
        step = hung.step if hung.step is not None else step
        age, waits = max(age, hung.age), hung.waits
    order = NOWHERE if step is None else step, waits, -age, report.rank
    return order, FirstSuspect(report.node, rank, step, report.rank)
