"""What a coordinator knows once it has the lease in the shared folder (lease.py).  Pure."""

from ftrun.core.group.fences import end_of_starters, without_dead
from ftrun.core.group.lease import Place
from ftrun.core.group.membership import Coordinator, LeaseTaken
from ftrun.core.group.messages import Report, State
from ftrun.core.group.reports import put_member, take_report
from ftrun.core.group.root_cause import MemberLost


def take_lease(group: Coordinator, event: LeaseTaken) -> Coordinator:
    """This coordinator alone may start an epoch from now on.  The holder before has stopped its command, and so have
    those before it that have held the lease since the last epoch began; nobody waits for these members any longer."""
    if group.lease_state == "held":
        return group
    group, before = group._replace(lease_state="held", lease_until=None), event.before
    if before is None:
        return group
    own = "" if group.own is None else group.own.life
    ended = [one for one in (*before.former, (before.rank, before.life)) if one[1] != own]
    group = end_of_starters(group, [life for _, life in ended])
    for rank, life in reversed(ended):  # the last one first
        if rank != group.chief and rank not in group.members and 0 <= rank < group.size:
            group = _without(group, event.now, rank, life, before)
    return group


def _without(group: Coordinator, now: float, rank: int, life: str, before: Place) -> Coordinator:
    """Of this member, only a new process can take part."""
    node, epoch = before.node if life == before.life else "its node", before.epoch
    state: State = "running" if epoch else "ready"
    last = Report(rank, life, 0, node, before.boot, epoch, state, ran=epoch, places=before.places)
    gone = MemberLost(now, rank, life, "its lease in the shared folder has ended", certain=True)
    group = take_report(group, now, last, None)
    group = put_member(group, group.members[rank]._replace(gone=gone))
    return without_dead(group, rank)._replace(ceded=group.ceded | {rank})
