"""Processes of members that may still run their command although contact with them is lost.  Pure.

A member that has lost contact with rank 0 may keep working until its lease is over.  No member starts in its place, and
no epoch starts without it, before its command is certainly dead.
"""

from collections.abc import Collection, Mapping

from ftrun.core.group.membership import (
    LATE,
    MAX_STARTERS,
    MAX_WAITING,
    Coordinator,
    Ended,
    Gathering,
    LifeEnded,
    absent_ranks,
    count_kinds,
)
from ftrun.core.group.messages import MemberReport
from ftrun.core.group.root_cause import MemberState


def fence_predecessor(group: Coordinator, now: float, before: MemberState, report: MemberReport) -> Coordinator:
    """A member that has lost contact with rank 0 may keep working, and stops its command itself when its lease is over;
    a machine that seems lost may only be cut off.  So its successor is fenced, unless the earlier process is certainly
    dead: its connection closed, and the successor, on the same machine, came only after that.  A successor that was
    there before is fenced, since the earlier process may have lost only its messenger.
    """
    gone = before.gone
    if gone is None or gone.certain:
        return group
    if report.buried is not None and report.buried.life == before.report.life:
        return without_dead(group, report.rank)
    since = group.waiting_processes.get((report.rank, report.life), now)
    closed = next((at for at in (gone.closed_at, gone.last_message) if at is not None), gone.now)
    if gone.closed and before.report.boot == report.boot and since >= closed:
        return without_dead(group, report.rank)
    if group.epoch == 0 or report.rank not in group.placed:
        return group
    return fence(group, now, {report.rank: _last_contact(before, now)})


def note_waiting(group: Coordinator, now: float, report: MemberReport) -> Coordinator:
    key = report.rank, report.life
    if key in group.waiting_processes:
        return group
    known = list(group.waiting_processes.items())[1 - MAX_WAITING :]  # anyone who has the secret may connect
    return group._replace(waiting_processes=dict([*known, (key, now)]))


def fence_latecomer(group: Coordinator, now: float, report: MemberReport) -> Coordinator:
    """A member that comes late to a new coordinator, and has run nothing, may have replaced another process: fence
    it."""
    if isinstance(group.phase, Gathering | Ended) or not _may_have_predecessor(group, report):
        return group
    if report.rank not in group.placed:
        return group
    return fence(group, now, {report.rank: group.started})


def note_starter(group: Coordinator, now: float, report: MemberReport, before: MemberState | None) -> Coordinator:
    """A member names the process of member 0 that started its epoch.  If that is not this one, it may still be at work,
    with a coordinator of its own that has just lost contact with this member: its command ends as late as that of a
    member that has lost contact.  Until then member 0 is fenced, so that nothing starts."""
    named, own = report.starter, group.own
    if named is None or own is None or isinstance(group.phase, Ended):
        return group
    if named.life == own.life:
        is_own = report.rank == group.own_rank and report.epoch == group.epoch
        return end_of_starters(group, [*group.starters]) if is_own and group.starters else group
    successor = group.members.get(named.rank)
    buried = None if successor is None else successor.report.buried
    if named.left or (buried is not None and buried.life == named.life):
        return end_of_starters(group, [named.life])
    if named.life in group.dead_starters or not group.epoch_reported:
        return group
    if named.life not in group.starters and len(group.starters) >= MAX_STARTERS:
        return group  # anyone who has the secret may name some
    known, since = group.starters.get(named.life, (named, now))
    is_new = before is None or before.report.life != report.life or before.gone is not None
    named = named if named.port and named.host else known
    group = group._replace(starters={**group.starters, named.life: (named, now if is_new else since)})
    return group if isinstance(group.phase, Gathering) or not is_new else fence(group, now, {named.rank: now})


def note_buried(group: Coordinator, report: MemberReport) -> Coordinator:
    """The process of an earlier member 0 that started the epoch is dead, as its successor knows."""
    buried = report.buried
    if buried is None or buried.life not in group.starters or isinstance(group.phase, Ended):
        return group
    return end_of_starters(group, [buried.life])


def note_lives(group: Coordinator, report: MemberReport) -> Coordinator:
    """A member names the processes of the other members that may run the epoch.  It names them only while no rank 0 can
    know that it has stopped: no later epoch has begun then, and no other process can run this one."""
    known = group.epoch_reported and report.epoch == report.ran == group.epoch and report.rank in group.placed
    if not known or not report.lives or isinstance(group.phase, Ended):
        return group
    lives = {life.rank: life for life in report.lives if life.rank in group.placed and life.rank != group.own_rank}
    return group if lives == group.lives else group._replace(lives=lives)


def end_of_life(group: Coordinator, event: LifeEnded) -> Coordinator:
    """The process of a member that ran the epoch is certainly dead: nothing waits for its lease."""
    known = group.lives.get(event.rank)
    if known is None or known.life != event.life or event.rank in group.dead:
        return group
    fences = {rank: until for rank, until in group.fences.items() if rank != event.rank}
    group = without_dead(group._replace(dead=group.dead | {event.rank}, fences=fences), event.rank)
    return group._replace(kinds=count_kinds(group))


def may_decide(group: Coordinator) -> bool:
    """Whether this coordinator alone may start an epoch without members that are silent.  Another coordinator may be in
    contact with the silent members: at an earlier member 0 that lives, or at a later member 0 if this coordinator has
    been replaced.  So more than half of the processes that ran the last epoch must be here, not counting those that are
    certainly dead; half of them suffice together with the process of member 0 itself.  It also suffices that so many
    members of the last epoch, with its spares, are here that the others are too few for an epoch."""
    epoch, base = group.base
    if group.shape.is_fixed or not epoch or group.lease_state == "held":
        return True  # no other coordinator may, while this one holds the lease
    present = {rank: member.report for rank, member in group.members.items() if member.gone is None}
    base -= {rank for rank, report in present.items() if _is_buried(report, epoch)}
    here = {rank for rank in base if rank in present and present[rank].ran >= epoch}
    if 2 * len(here) > len(base) or (2 * len(here) == len(base) and 0 in here) or not base:
        return True
    known = [report for report in present.values() if report.starter is not None and report.epoch >= epoch]
    return group.size - len(known) < group.shape.fewest


def may_begin(group: Coordinator) -> bool:
    """Whether this coordinator, which knows of no epoch, may start one without the members that are absent.  Where the
    folder that these share is perhaps not the one seen here, one of them may have the lease there, unless they are too
    few for an epoch."""
    return not group.folder_unproved or len(absent_ranks(group)) < group.shape.fewest


def without_dead(group: Coordinator, rank: int) -> Coordinator:
    """The process of this member that ran the last epoch is certainly dead."""
    epoch, base = group.base
    return group._replace(base=(epoch, base - {rank})) if rank in base else group


def end_of_starters(group: Coordinator, lives: Collection[str]) -> Coordinator:
    """These processes, which may have started the epoch, are certainly dead, or have stopped their commands."""
    if group.dead_starters.issuperset(lives):
        return group
    left = {life: one for life, one in group.starters.items() if life not in lives}
    ended = () if left else {one.rank for one, _ in group.starters.values()} or {group.own_rank}
    fences = {rank: until for rank, until in group.fences.items() if rank not in ended}
    dead = frozenset([*group.dead_starters, *lives][-MAX_WAITING:])
    for rank in ended:
        own = group.members.get(rank)
        group = group if own is not None and own.report.ran >= group.base[0] else without_dead(group, rank)
    group = group._replace(starters=left, dead_starters=dead, fences=fences)
    return group._replace(kinds=count_kinds(group))


def _may_have_predecessor(group: Coordinator, report: MemberReport) -> bool:
    """Whether an earlier process of this rank may still run its command.  It cannot if the rank is the coordinator's
    own, whose earlier processes the members name (`note_starter`); if the member itself ran the newest epoch, since it
    was the only process of its rank when that epoch began; or if the earlier process is certainly dead."""
    if report.rank == group.own_rank or report.rank in group.dead or _is_buried(report, max(group.epoch, 1)):
        return False
    return report.state == "ready" and report.failure is None and report.ran < max(group.epoch, 1)


def _is_buried(report: MemberReport, epoch: int) -> bool:
    """Whether the process of this member that ran the epoch is dead, as its successor in the same run dir knows."""
    return report.buried is not None and report.buried.epoch >= epoch > report.ran


def fence_unknown(group: Coordinator, now: float) -> Coordinator:
    """A new coordinator does not know which processes its members have replaced: it fences the members that may have
    replaced one until none of these can still run its command, and itself while an earlier one may be at work."""
    found = (m.report for m in group.working if _may_have_predecessor(group, m.report))
    lost = {report.rank: group.started for report in found}
    if group.starters:
        for starter, since in group.starters.values():
            lost[starter.rank] = max(since, lost.get(starter.rank, since))
    return fence(group, now, lost)


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
    if member is None and rank in group.dead:
        return fenced
    if member is None:
        since = group.started
    elif member.report.state == "left" or (member.report.state == "ready" and member.report.epoch == group.epoch):
        return fenced  # nothing of it runs
    elif member.gone is not None and member.gone.certain:
        return max(fenced, member.gone.now)
    else:
        since = _last_contact(member, group.started)
    return max(fenced, since + group.lease + LATE + group.drain)


def starters_over_at(group: Coordinator, absent: Collection[int]) -> float:
    """When nothing of an epoch of an earlier member 0 runs any more.  A member that is not here, or whose container is
    new, may have been in contact with the earlier member 0 until the lease of that member 0 ended."""
    if not group.starters:
        return group.started
    away = absent or any(_may_have_predecessor(group, member.report) for member in group.working)
    since = max(since for _, since in group.starters.values())
    return since + group.lease * (2 if away else 1) + LATE + group.drain


def _last_contact(member: MemberState, default: float) -> float:
    """Until when a member that is gone may have received a message.  Rank 0 sent it none after the last message that it
    received from it, except a message that was on its way (LATE)."""
    gone = member.gone
    if gone is None:
        return default
    return gone.last_message if gone.last_message is not None and not gone.closed else gone.now


def drain_time(group: Coordinator) -> float:
    """How long draining may take: long enough for a fence, and for a device to heal."""
    return group.lease + LATE + group.drain + group.heal
