"""How a group ends: the verdicts that hold for all of its members, and their reasons."""

from typing import Final

from ftrun.core.group.losses import Losses, NodeNote
from ftrun.core.group.membership import NONE, Coordinator, Ended, GroupOutcome, kind_of
from ftrun.core.group.messages import GroupEnd, GroupOrder, MemberReport
from ftrun.core.rules import exit_codes
from ftrun.core.text import durations, sentences

NAMED: Final = 10  # members in one line
AT_ONCE: Final = frozenset(verdict.code for verdict in exit_codes.TABLE if verdict.ends_group)
REPLACEABLE: Final = frozenset(verdict.code for verdict in exit_codes.TABLE if verdict.replaceable)


def immediate_end(group: Coordinator, report: MemberReport) -> GroupEnd | None:
    """A verdict that does not depend on other members: one about a device or ftrun itself; that of a member that has
    left with one, which must hold for all since the member cannot return; and any verdict with which rank 0 leaves.  A
    member that leaves since it has lost contact with rank 0 counts as lost, and so does one that leaves with a verdict
    about itself where the others can go on.  What a spare ends with is no verdict about the job."""
    member = group.members[report.rank]
    if report.rank not in group.placed and report.rank != group.own_rank:
        return None
    own = report.end if report.end is not None and not (report.end.asked or report.end.cut) else None
    if own is not None:
        own = own._replace(node=own.node or report.node) if own.code else own
    if own is not None and report.state in ("ending", "left") and own.code in AT_ONCE:
        return None if group.shape.goes_on and own.code in REPLACEABLE else own
    if report.state != "left":
        return None
    if own is not None and own.code:
        return own
    if report.rank != group.own_rank:
        return None
    if own is not None and not group.kinds.get("running") and not group.kinds.get("fallen"):
        return own
    return _hang_limit(f"{member.name} has left, and without it the group has no rank 0", report.node)._replace(
        asked=True
    )


def end_not_ready(group: Coordinator, age: float) -> GroupOutcome:
    kinds = ((m.report.rank, kind_of(m, group.epoch, m.report.rank in group.fences)) for m in group.working)
    late = [rank for rank, kind in kinds if kind != "ready"]
    why = f"{member_names(late, group)} {'was' if len(late) == 1 else 'were'} not ready within {durations.seconds(age)}"
    if not late and group.lease_state == "foreign":
        why = f"the lease in the shared folder was another coordinator's for {durations.seconds(age)}"
    elif not late:
        epoch, base = group.base
        why = (
            f"for {durations.seconds(age)} it was not certain that the processes of {member_names(sorted(base))} that"
            f" ran epoch {epoch} do not go on with another member 0"
        )
    return end_group(group, _hang_limit(why, _only_node(group, late)))


def end_not_joined(group: Coordinator, missing: list[int]) -> GroupOutcome:
    why = f"{member_names(missing)} did not join within {durations.seconds(group.wait)}"
    if group.folder_unproved and len(missing) >= group.shape.fewest:
        why += "; nothing shows that the state dir here is the one that they share, so they may be at work elsewhere"
    return end_group(group, _hang_limit(f"{why}; {group.obstacle}" if group.obstacle else why))


def end_stranger(group: Coordinator, missing: list[int]) -> GroupOutcome:
    """The end before the first start, where a process with another secret has given up.  The verdict is the same as for
    a member that does not join, and no permanent failure: the process may belong to an earlier schedule."""
    did = "has" if len(missing) == 1 else "have"
    why = f"{group.obstacle}, and has given up; {member_names(missing)} {did} not joined"
    return end_group(group, _hang_limit(f"{why}: all members need the same secret"))


def end_not_started(group: Coordinator, slow: list[int]) -> GroupOutcome:
    why = f"{member_names(slow, group)} did not start within {durations.seconds(group.wait)}"
    return end_group(group, _hang_limit(why))


def end_missing(group: Coordinator, missing: list[int], losses: Losses, now: float) -> GroupOutcome:
    be, was = ("is", "was") if len(missing) == 1 else ("are", "were")
    why = f"{member_names(missing, group)} {be} lost and {was} not back within {durations.seconds(group.wait)}"
    if losses.first is not None and not losses.waited(group.wait, now):
        age = durations.seconds(now - losses.first)
        why = f"{member_names(missing, group)} {be} lost, and for {age} members were lost again and again"
    if not group.shape.is_fixed:
        able = group.kinds.get("ready", 0) + group.kinds.get("spare", 0)
        left = f"; {sentences.several(able, 'member')} left, and the group needs"
        why += (
            f"{left} {group.shape.fewest}" if able < group.shape.fewest else f"{left} more than half of the last ones"
        )
    return end_group(group, _hang_limit(why, _only_node(group, missing)))


def _hang_limit(why: str, node: str | None = None) -> GroupEnd:
    return GroupEnd(exit_codes.HANG_LIMIT.code, exit_codes.HANG_LIMIT.name, why, node, loss=True)


def end_group(group: Coordinator, end: GroupEnd) -> GroupOutcome:
    order = GroupOrder(group.epoch, "end", end.why, node=end.node, counts=group.counts or NONE, end=end)
    of_node = [rank for rank, member in group.members.items() if member.report.node == end.node]
    order = order._replace(
        cause="peer" if end.loss else None,
        places=group.order.places,
        starter=group.order.starter,
        member=of_node[0] if len(of_node) == 1 else group.order.member,
    )
    return group._replace(phase=Ended(), order=order), (
        NodeNote(f"all members end with {end.code} ({end.verdict}): {end.why}"),
    )


def _only_node(group: Coordinator, ranks: list[int]) -> str | None:
    member = group.members.get(ranks[0]) if len(ranks) == 1 else None
    return member and member.report.node


def member_names(ranks: list[int], group: Coordinator | None = None) -> str:
    """`member 3 (node-c)`, `members 1, 2 and 40 more`."""
    if len(ranks) == 1:
        member = group.members.get(ranks[0]) if group else None
        return member.name if member else f"member {ranks[0]}"
    named = ", ".join(str(r) for r in sorted(ranks)[:NAMED])
    return f"members {named}" + (f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else "")
