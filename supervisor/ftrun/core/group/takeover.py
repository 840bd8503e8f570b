"""What a coordinator knows once it has the lease in the shared folder (lease.py).  Pure."""

from ftrun.core.group.fences import end_of_starters, without_dead
from ftrun.core.group.membership import Coordinator, LeaseTaken
from ftrun.core.group.messages import Report, State
from ftrun.core.group.reports import put_member, take_report
from ftrun.core.group.root_cause import MemberLost


def take_lease(group: Coordinator, event: LeaseTaken) -> Coordinator:
    """This coordinator alone may start an epoch from now on.  The holder before has stopped its command, and so have
    those before it that have held the lease since the last epoch began; nobody waits for that member any longer."""
    group, before = group._replace(lease_state="held", lease_until=None), event.before
    if before is None:
        return group
    group = end_of_starters(group, [before.life, *before.former])
    rank, epoch = before.rank, before.epoch
    if rank == group.chief or rank in group.members or not 0 <= rank < group.size:
        return group
    state: State = "running" if epoch else "ready"
    last = Report(rank, before.life, 0, before.node, before.boot, epoch, state, ran=epoch, places=before.places)
    gone = MemberLost(event.now, rank, before.life, "its lease in the shared folder has ended", certain=True)
    group = take_report(group, event.now, last, None)
    group = put_member(group, group.members[rank]._replace(gone=gone))
    return without_dead(group, rank)._replace(ceded=group.ceded | {rank})
