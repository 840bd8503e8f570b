"""How a messenger between the members and rank 0 would merge reports: a plan (docs/scale.md), which is simulated.

A *relay* is the messenger of a member that other members report to.  It keeps the last report of each of its children
and passes on one report that stands for all of them, so that the cost of a messenger follows the number of its
children, and rank 0 runs the coordinator of `core/group` as it is: each of its children looks to it like one member.
A message stays as small as that of one member, whatever is below a relay.

The merged report says no more than is true for every member below: `ready` if all are, `running` if all are.  It is
pure: `merge(relay)` depends on the last reports alone, so that a lost, late or repeated report does no harm, and a
relay that has been started anew learns all of them again.
"""

from collections.abc import Mapping

from ftrun.core.group.membership import kind_of
from ftrun.core.group.messages import GroupEnd, GroupOrder, NodeFailure, Report
from ftrun.core.group.root_cause import MemberState, first
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes

SLOT = "slot-"  # begins the life in the report of a relay: its parent knows the part of the tree, not the machine


class Relay(NamedTuple):
    """`size`: how many members report to it directly, itself included.  `order`: the last one from above.  `wait`: how
    long a lost child is waited for, in seconds."""

    name: str
    size: int
    wait: float
    members: Mapping[int, MemberState] = {}
    order: GroupOrder = GroupOrder(0, "wait")


def merge(relay: Relay, now: float, template: Report) -> Report | None:
    """The report for all members below this relay, itself included; None: not all of them are known yet, and what the
    parent knows stays valid.  `template` has the relay's own identity and number of the report."""
    if len(relay.members) < relay.size:
        return None
    states = list(relay.members.values())
    epoch = max(relay.order.epoch, *(state.report.epoch for state in states))
    kinds = {kind_of(state, epoch, False) for state in states}
    hang, fault, failure = (max(counts) for counts in zip(*(state.report.counts for state in states), strict=True))
    cause = first(states, epoch)
    found = template._replace(
        epoch=epoch,
        failure=_failure(cause, now, epoch),
        counts=(hang, fault, failure),
        progressed=any(state.report.progressed and state.report.epoch == epoch for state in states),
        devices_waited=all(state.report.devices_waited for state in states),
        devices_unchanged=all(state.report.devices_unchanged for state in states),
        ran=min(state.report.ran for state in states),
    )
    if kinds <= {"ready"}:
        return found._replace(state="ready")
    if kinds <= {"done"}:
        return found._replace(state="done", end=next(state.report.end for state in states))
    if kinds <= {"running", "done"}:
        return found._replace(state="running")
    if kinds <= {"running", "done", "behind"} and relay.order.what in ("run", "wait"):
        # Some have not started the epoch yet: so the parent has to see a member that is ready at the one before.
        return found._replace(epoch=epoch - 1, state="ready")
    return _stopped(relay, now, found, cause, bool(kinds & {"running", "behind", "fallen"}))


def _stopped(relay: Relay, now: float, found: Report, cause: MemberState | None, outstanding: bool) -> Report:
    """Something below prevents that the epoch goes on.  `outstanding`: the answers of some members."""
    epoch, why = found.epoch, found.failure
    if relay.order.what == "stop" and relay.order.epoch == epoch and outstanding:
        return found._replace(state="fallen", failure=None)  # the first cause may still come
    if cause is not None and cause.gone is not None and now >= cause.gone.now + relay.wait:
        end = GroupEnd(
            exit_codes.HANG_LIMIT.code, exit_codes.HANG_LIMIT.name, why.why if why else "", cause.report.node
        )
        return found._replace(state="ending", end=end)
    if cause is not None and cause.report.state == "ending" and cause.report.epoch == epoch:
        end_of = cause.report.end
        node = cause.report.node
        return found._replace(state="ending", end=end_of and end_of._replace(node=end_of.node or node))
    return found._replace(state="stopping")


def _failure(cause: MemberState | None, now: float, epoch: int) -> NodeFailure | None:
    """The first failure below, with its age now."""
    if cause is None:
        return None
    if cause.gone is not None:
        since = cause.gone.now if cause.gone.last_message is None else cause.gone.last_message
        return NodeFailure("peer", f"{cause.report.node} is lost: {cause.gone.why}", max(0.0, now - since))
    failure = cause.report.failure
    if failure is None or cause.report.epoch != epoch:
        return None
    why = failure.why if cause.report.life.startswith(SLOT) else f"{cause.report.node}: {failure.why}"
    return failure._replace(why=why, age=failure.age if cause.at is None else max(0.0, now - cause.at))
