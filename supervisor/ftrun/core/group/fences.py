"""Processes of members that may still run their command although contact with them is lost.  Pure.

A member that has lost contact with rank 0 may keep working until its lease is over.  No member starts in its place, and
no epoch starts without it, before its command is certainly dead.
"""

from collections.abc import Mapping

from ftrun.core.group.membership import (
    LATE,
    MAX_WAITING,
    Coordinator,
    Ended,
    Gathering,
    count_kinds,
)
from ftrun.core.group.messages import Report
from ftrun.core.group.root_cause import MemberState


def fence_predecessor(group: Coordinator, now: float, before: MemberState, report: Report) -> Coordinator:
    """A member that has lost contact with rank 0 may keep working, and stops its command itself when its lease is over;
    a machine that seems lost may only be cut off.  So its successor is fenced, unless the earlier process is certainly
    dead: its connection closed, and the successor, on the same machine, came only after that.  One that was there
    before is fenced, since the earlier process may have lost only its messenger.
    """
    gone = before.gone
    if group.epoch == 0 or gone is None or gone.certain or report.rank not in group.placed:
        return group
    since = group.waiting_processes.get((report.rank, report.life), now)
    closed = next((at for at in (gone.closed_at, gone.last_message) if at is not None), gone.now)
    if gone.closed and before.report.boot == report.boot and since >= closed:
        return group
    return fence(group, now, {report.rank: _last_contact(before, now)})


def note_waiting(group: Coordinator, now: float, report: Report) -> Coordinator:
    key = report.rank, report.life
    if key in group.waiting_processes:
        return group
    known = list(group.waiting_processes.items())[1 - MAX_WAITING :]  # anyone who has the secret may connect
    return group._replace(waiting_processes=dict([*known, (key, now)]))


def fence_latecomer(group: Coordinator, now: float, report: Report) -> Coordinator:
    """A member that comes late to a new coordinator, and has run nothing, may have replaced another: fence it."""
    if isinstance(group.phase, Gathering | Ended) or not may_have_predecessor(report, group.epoch):
        return group
    if report.rank not in group.placed:
        return group
    return fence(group, now, {report.rank: group.started})


def may_have_predecessor(report: Report, epoch: int) -> bool:
    """True where an earlier process of this rank may still run its command.  Never for rank 0, where the coordinator
    is; nor for a member that itself ran the newest epoch, since it was the only one of its rank when that began."""
    return report.rank != 0 and report.state == "ready" and report.failure is None and report.ran < max(epoch, 1)


def fence_unknown(group: Coordinator, now: float) -> Coordinator:
    """A new coordinator does not know which processes its members have replaced: it fences the members that may have
    replaced one until none of these can still run its command."""
    found = (m.report for m in group.working if may_have_predecessor(m.report, group.epoch))
    return fence(group, now, {report.rank: group.started for report in found})


def fence(group: Coordinator, now: float, lost: Mapping[int, float]) -> Coordinator:
    """Fence these members.  `lost`: for each rank, the last time that an earlier process of it may have had contact
    with rank 0."""
    fences = dict(group.fences)
    for rank, since in lost.items():
        until = since + group.lease + LATE + group.drain  # after the end of its lease and its command
        if until > now:
            fences[rank] = max(until, fences.get(rank, until))
    after = group._replace(fences=fences)
    return after._replace(kinds=count_kinds(after))


def over_at(group: Coordinator, rank: int) -> float:
    """When the commands of all processes of this member, which is gone or was never seen, are certainly dead."""
    fenced, member = group.fences.get(rank, group.started), group.members.get(rank)
    if member is None:
        since = group.started
    elif member.report.state == "left" or (member.report.state == "ready" and member.report.epoch == group.epoch):
        return fenced  # nothing of it runs
    elif member.gone is not None and member.gone.certain:
        return max(fenced, member.gone.now)
    else:
        since = _last_contact(member, group.started)
    return max(fenced, since + group.lease + LATE + group.drain)


def _last_contact(member: MemberState, default: float) -> float:
    """Until when a member that is gone may have received something.  Its last message from rank 0 is not later than
    rank 0's last one from it, but for one on the way (LATE)."""
    gone = member.gone
    if gone is None:
        return default
    return gone.last_message if gone.last_message is not None and not gone.closed else gone.now


def drain_time(group: Coordinator) -> float:
    """How long draining may take: long enough for a fence, and for a device to heal."""
    return group.lease + LATE + group.drain + group.heal
