"""A member of a group: how the group's orders change the job here, and what the job reports to the group.

A start waits until rank 0 knows that every tree of the epoch before is dead.  A verdict waits for the group's decision,
since the failure here may be a consequence of one in another container.
"""

from typing import Final

from ftrun.core.group.messages import (
    Counts,
    GroupEnd,
    GroupOrder,
    MemberReport,
    NodeFailure,
    Ranks,
    ReportedState,
    Starter,
)
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.device_faults import begin_healing, has_to_wait, newest_checkpoint
from ftrun.core.machine.requests import keep_until_exec, on_pause_requested, on_resume_requested
from ftrun.core.machine.restarting import launch, may_start, start_or_finish
from ftrun.core.machine.states import (
    Done,
    Finish,
    Healing,
    Job,
    KeepRunning,
    Launching,
    Pending,
    Phase,
    Restart,
    Running,
    Starting,
    Stopping,
    Suspect,
    Watched,
)
from ftrun.core.machine.stopping import Effects, Outcome, exit_text, finish_with, stop, unless_schedules_exhausted
from ftrun.core.machine.watching import check
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.shared import NodeRounds
from ftrun.core.rules import exit_codes
from ftrun.core.rules.idle import idle_for, unchanged_for
from ftrun.core.rules.liveness import has_own_limit, waits_for_devices
from ftrun.core.rules.policy import Policy, local_ranks
from ftrun.core.text import durations, sentences

RECORDED: Final = ("epoch", "what", "why", "cause")  # an order is recorded when one of these has changed
MOST_NAMED: Final = 256  # members in a record
DECISION: Final = 10.0  # s that rank 0 has to decide about a verdict, once it can know which members it has lost
ALONE: Final = tuple(verdict.name for verdict in exit_codes.TABLE if verdict.replaceable)
OF_THE_NODE: Final = tuple(verdict.name for verdict in exit_codes.TABLE if verdict.about_node)


class GroupMember(NamedTuple):
    """The identity of this member in its reports."""

    rank: int
    life: str
    node: str
    boot: str
    address: str = ""  # of rank 0: where the others can reach it
    port: int = 0  # of rank 0: reserved for the next start


# --- orders of the group ----------------------------------------------------------------------------------------------


def on_group_order_received(job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy) -> Outcome:
    """Apply an order.  Each order is complete, so that a repeated one changes nothing."""
    order, before, epoch = event.order, job.order, job.ledger.epoch
    waits = isinstance(job.want, Finish) and isinstance(phase, Stopping) and phase.stage == "verdict"
    job = job._replace(order=order)
    written: Effects = ()
    if before is None or any(getattr(order, name) != getattr(before, name) for name in RECORDED):
        written = (_order_record(order),)
    outcome: Outcome | None = None
    match order.what:
        case "end":
            outcome = _end_with_group(job, phase, event, policy, written)
        case "stop" if order.epoch >= job.ledger.epoch:
            outcome = _stop_epoch(job, phase, event, policy, written)
        case "run" if order.epoch > job.ledger.epoch or may_start(job, order, policy):
            outcome = _start_epoch(job, phase, event, policy, written)
        case "run" if order.epoch == job.ledger.epoch:
            outcome = _apply_shared_state(job, phase, event, policy, written)
    job, effects = outcome or (job, written)
    if job.ledger.epoch != epoch or order.places:
        job = job._replace(places=order.places if order.epoch == job.ledger.epoch else ())
    job = job._replace(starter=_starter(job, order, epoch))
    overruled = waits and not isinstance(job.want, Finish)
    effects += _first_failure_line(job, before, order, overruled, policy)
    news = before is None or order.paused != before.paused
    if order.paused is not None and news and order.paused != job.announced_pause:
        job, more = _apply_pause(job, event, policy)
        effects += more
    return job, effects


def _starter(job: Job, order: GroupOrder, epoch: int) -> Starter | None:
    """The process of member 0 that started the epoch of this member.  A later process of member 0 may end before it."""
    known, named = (job.starter if job.ledger.epoch == epoch else None), order.starter
    if named is None or order.epoch != job.ledger.epoch:
        return known
    return named if known is None or known.life == named.life else known


def _first_failure_line(
    job: Job, before: GroupOrder | None, order: GroupOrder, overruled: bool, policy: Policy
) -> Effects:
    """While the command was being stopped, it has become certain that the failure began elsewhere.  `overruled`: the
    command had ended by itself, and nothing has been said yet."""
    if order.node == policy.membership.node or not isinstance(job.phase, Stopping | Pending | Healing):
        return ()
    decided = before is not None and before.what == order.what == "stop" and before.cause is None is not order.cause
    if not overruled and (not decided or before is None or before.why == order.why):
        return ()
    return (do.LogLine(f"the first failure: {sentences.reason(order.why)}"),)


def _order_record(order: GroupOrder) -> do.Persist:
    origin = {name: getattr(order, name) for name in ("cause", "node", "member", "rank", "step")}
    if order.end is not None:
        origin |= {"node": order.end.node, "verdict": order.end.verdict, "exit_code": order.end.code}
    why = order.why or (order.end.why if order.end else "")
    fields: do.Fields = (("what", order.what), ("epoch", order.epoch), ("why", why or None))
    if order.what == "run" and order.places:
        from ftrun.core.group.places import members  # only in a group

        origin["members"] = [*members(order.places)][:MOST_NAMED]
    if order.world is not None:
        origin["world_size"] = sum(number * count for number, count in order.world.counts)
    return do.Persist("group", tuple((name, value) for name, value in (*fields, *origin.items()) if value is not None))


def _start_epoch(job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy, written: Effects) -> Outcome:
    """The next epoch: start if nothing prevents it; a member that runs an older epoch stops that first."""
    if isinstance(phase, Pending) and phase.deadline is None:
        if not may_start(job, event.order, policy):
            return job, written  # the ranks of the others have not left their round yet
        hang, fault, failure = event.order.counts
        job = job._replace(ledger=job.ledger._replace(hang=hang, fault=fault, failure=failure))
        if isinstance(job.want, Restart) and job.want.reason == "peer":
            job = job._replace(want=job.want._replace(consecutive=max(event.order.counts)))
        if has_to_wait(job):
            return begin_healing(job, None, event.now, policy, written)
        job, effects = launch(job, event.now, policy, "started" if isinstance(job.want, KeepRunning) else "restart")
        return job, written + effects
    return _stop_epoch(job, phase, event, policy, written)


def _stop_epoch(job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy, written: Effects) -> Outcome:
    """The epoch is over, whether it runs here or never ran here: a late message must not start it.  A verdict that was
    reached here is overruled once it is certain that the failure began elsewhere, unless the verdict is about this node
    or comes from the operator."""
    order, want = event.order, Restart("peer")
    if isinstance(phase, Launching):
        return keep_until_exec(job, phase, event, policy)
    if order.what == "stop":  # nor may an earlier order that comes late
        job = job._replace(ledger=job.ledger._replace(epoch=order.epoch), ran=max(job.ran, order.epoch))
    if isinstance(phase, Watched):
        return stop(job._replace(want=want), phase.attempt, event.now, policy, written, _stop_reason(order))
    overruled = isinstance(job.want, Finish) and _may_be_consequence(job.want) and order.cause is not None
    if isinstance(phase, Stopping) and overruled:
        job = job._replace(want=want, blame=None)
        if phase.stage == "verdict":
            return start_or_finish(job, phase.attempt, event.now, policy, written)
    return job, written


def _may_be_consequence(want: Finish) -> bool:
    return not want.asked and want.verdict not in (*OF_THE_NODE, exit_codes.STOPPED)


def _stop_reason(order: GroupOrder) -> str:
    why = f"the group is at epoch {order.epoch}"
    if order.what == "stop":
        why = sentences.reason(order.why)
    where = f" (on {order.node})" if order.node and order.node not in order.why else ""
    follows = "all members restart together" if order.cause is not None else ""  # without a cause it is still open
    return sentences.sentence(f"{why}{where}", "ftrun stops the command here, too", follows)


def _end_with_group(job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy, written: Effects) -> Outcome:
    """One verdict for all members.  A member that was asked from outside to stop ends with it too, since srun would
    lose it otherwise."""
    end = event.order.end
    if end is None:
        return job, written
    named = end.node is None or end.node == policy.membership.node or f"({end.node})" in end.why
    why = end.why if named else f"{end.why} (on {end.node})"
    want = Finish(end.code, end.verdict, why, node=end.node, device=end.device)
    if end.verdict == exit_codes.HANG_LIMIT.name and not end.asked:
        want = unless_schedules_exhausted(job, want)
    if end.verdict == exit_codes.SUCCEEDED or (end.asked and isinstance(job.want, Finish)):
        if isinstance(phase, Stopping) and phase.stage == "verdict":
            return start_or_finish(job, phase.attempt, event.now, policy, written)
        # Of an epoch of the others: a spare, or what ran here goes on since a suspension, or is being stopped.
        apart = event.order.epoch > job.ledger.epoch or not isinstance(phase, Watched | Launching)
        if isinstance(job.want, Finish) or not apart:
            return job, written  # it is ending as it should
    if isinstance(phase, Launching):
        return keep_until_exec(job, phase, event, policy)
    job = job._replace(want=want)
    if isinstance(phase, Watched):
        line = sentences.sentence(sentences.reason(want.message), exit_text(want))
        return stop(job, phase.attempt, event.now, policy, written, line)
    if isinstance(phase, Stopping) and phase.stage != "verdict":
        return job, written
    return start_or_finish(job, phase.attempt if isinstance(phase, Stopping) else None, event.now, policy, written)


def _apply_shared_state(
    job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy, written: Effects
) -> Outcome:
    """What holds for all members in the current epoch: progress of any member is progress of the job, and the idle rule
    for groups applies only while all members are idle, or their devices are unchanged, and that of devices only while
    the ranks of all members wait for them."""
    order = event.order
    if order.progressed:
        job = job._replace(ledger=job.ledger._replace(hang=0, fault=0, failure=0))
    if isinstance(phase, Starting | Running):
        attempt = phase.attempt._replace(
            group_is_idle=order.devices_unchanged, group_awaits_devices=order.devices_waited
        )
        if attempt != phase.attempt:
            job, written = check(job, attempt, event.now, policy, written)
    if order.round is not None and isinstance(job.phase, Watched):
        from ftrun.core.machine import ranks  # only where there are such ranks

        job, more = ranks.on_group_round(job, job.phase, order.round, event.now, policy)
        written += more
    return job, written


def _apply_pause(job: Job, event: ev.GroupOrderReceived, policy: Policy) -> Outcome:
    """The operator has paused or resumed the verdicts on some node."""
    lasting = event.order.paused or 0.0
    if lasting == 0.0:
        return on_resume_requested(job, job.phase, ev.ResumeRequested(event.now), policy)
    asked = ev.PauseRequested(event.now, None, None if lasting == float("inf") else round(lasting, 3))
    return on_pause_requested(job, job.phase, asked, policy)


def on_coordinator_silent(job: Job, phase: Phase, event: ev.CoordinatorSilent, policy: Policy) -> Outcome:
    """Rank 0 is silent, but the command here may be healthy: it keeps running and is watched as before.  A verdict
    about it may be a consequence of what happened to rank 0, so it waits."""
    wait = event.until - event.now
    code = None if isinstance(job.want, Finish) else exit_codes.HANG_LIMIT.code
    fields: do.Fields = (("why", event.why), ("wait", wait), ("then", "end"), ("exit_code", code))
    if event.takeover is not None:
        fields = (("why", event.why), ("wait", event.takeover), ("then", "replace"))
    written: Effects = (
        do.Persist("group", (("what", "unheard"), ("epoch", job.ledger.epoch), ("why", event.why))),
        do.Persist("lost", (("member", event.holder), *fields)),
    )
    left = f"ftrun waits at most {durations.seconds(wait)} for rank 0"
    if event.takeover is not None:
        ends = durations.seconds(event.takeover)
        left = f"its lease in the shared folder ends in {ends}, then another member takes its place"
    match phase:
        case Launching() | Starting() | Running() | Suspect():
            written += (do.LogLine(sentences.sentence(event.why, "the command keeps running", left)),)
        case Stopping(stage="verdict") if isinstance(job.want, Finish) and _may_be_consequence(job.want):
            job = job._replace(phase=phase._replace(deadline=None))
            written += (do.LogLine(sentences.sentence(event.why, left)),)
        case Pending(deadline=None):
            written += (do.LogLine(sentences.sentence(event.why, left)),)
    return job, written


def verdict_deadline(job: Job, now: float, policy: Policy) -> float | None:
    """Until when a verdict waits for the group's decision.  A verdict that may be a consequence of the loss of another
    member waits until that loss is known; a verdict about this node does not."""
    assert isinstance(job.want, Finish)
    if job.want.verdict == exit_codes.SUCCEEDED:
        return None
    return now + DECISION + (policy.membership.peer_timeout if _may_be_consequence(job.want) else 0.0)


def on_coordinator_lost(job: Job, phase: Phase, event: ev.CoordinatorLost, policy: Policy) -> Outcome:
    """The state of the other members is unknown, and they have ended by now, since rank 0 waits no longer for this
    member either.

    Where rank 0 will never accept this node, and nothing has run here yet, waiting and rescheduling do not help.
    """
    if isinstance(job.want, Finish) and (job.want.asked or not isinstance(phase, Stopping)):
        return job, ()
    if event.incurable and job.ledger.epoch:
        return job, ()  # it was a member of the group before: after a reschedule, all members may match again
    written: Effects = (do.Persist("group", (("what", "cut"), ("epoch", job.ledger.epoch), ("why", event.why))),)
    if event.incurable:
        want = finish_with(exit_codes.USAGE, event.why)
    else:
        want = unless_schedules_exhausted(job, finish_with(exit_codes.HANG_LIMIT, event.why))
    want = want._replace(cut=True)
    job = job._replace(order=GroupOrder(job.ledger.epoch, "end", event.why))  # no further order is expected
    match phase:
        case Launching():
            return keep_until_exec(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            line = sentences.sentence(event.why, exit_text(want))
            return stop(job._replace(want=want), phase.attempt, event.now, policy, written, line)
        case Stopping(stage="verdict"):
            if isinstance(job.want, Finish) and job.want.verdict in (exit_codes.SUCCEEDED, exit_codes.FAILED):
                # After a success here the others may still need this member again; a failure here may be a consequence
                # of the loss of rank 0.
                job = job._replace(want=want)
            return start_or_finish(job, phase.attempt, event.now, policy, written)
        case Stopping():
            return (job if isinstance(job.want, Finish) else job._replace(want=want)), written
    return start_or_finish(job._replace(want=want), None, event.now, policy, written)


# --- reports to the group ---------------------------------------------------------------------------------------------


def report(job: Job, me: GroupMember, policy: Policy, now: float, fallen: bool) -> MemberReport:
    """The state of this member, without a sequence number.  `fallen`: its command has ended, and the cause is not known
    yet."""
    ledger, blame, attempt = job.ledger, job.blame, getattr(job.phase, "attempt", None)
    failure = None
    if blame is not None:
        age = max(0.0, now - blame.at)
        suspect = blame.rank, blame.step, blame.waits
        failure = NodeFailure(blame.cause, blame.why, age, *suspect, symptom=blame.symptom, proved=blame.proved)
    counts: Counts = (ledger.hang, ledger.fault, ledger.failure)
    ranks = local_ranks(ledger, policy)
    state = _member_state(job, fallen)
    return MemberReport(
        *(me.rank, me.life, 0, me.node, me.boot, ledger.epoch),
        state=state,
        failure=failure,
        end=_own_end(job, policy) if state in ("ending", "done", "left") else None,
        counts=counts,
        progressed=attempt is not None and attempt.progressed,
        devices_unchanged=_are_devices_unchanged(job, now, policy),
        devices_waited=isinstance(job.phase, Watched) and waits_for_devices(job.phase.attempt, now, policy.limits),
        paused=job.announced_pause if job.paused is not None or not job.announced_pause else None,
        ranks=None if ranks is None else Ranks(ranks, me.address, me.port),
        places=job.places,
        starter=job.starter,
        checkpoint=newest_checkpoint(attempt)
        if (policy.membership.elastic or policy.scale_out) and attempt is not None
        else None,
        regains=tuple(attempt.regain.well) if attempt is not None and attempt.regain.armed else (),
        rounds=None if ranks is None else _node_rounds(job, policy),
    )


def _node_rounds(job: Job, policy: Policy) -> NodeRounds | None:
    from ftrun.core.machine import recovering  # only where ftrun starts the ranks

    return recovering.node_rounds(job, job.phase.attempt if isinstance(job.phase, Watched) else None, policy)


def _member_state(job: Job, fallen: bool) -> ReportedState:
    phase, want = job.phase, job.want
    if isinstance(want, Finish) and want.asked and not isinstance(phase, Done):
        return "leaving"
    match phase:
        case Done():
            return "left"
        case Launching() | Starting() | Running() | Suspect():
            return "fallen" if fallen else "running"
        case Stopping() if isinstance(want, Finish):
            return "done" if want.verdict == exit_codes.SUCCEEDED else "ending"
        case Pending(deadline=None):
            return "ready"
    return "stopping"


def _own_end(job: Job, policy: Policy) -> GroupEnd | None:
    want = job.want
    if not isinstance(want, Finish):
        return None
    return GroupEnd(
        want.code, want.verdict, want.message, want.node or policy.membership.node, want.device, want.asked, want.cut
    )


def _are_devices_unchanged(job: Job, now: float, policy: Policy) -> bool:
    limit = policy.limits.idle
    if limit is None or not isinstance(job.phase, Watched):
        return False
    attempt = job.phase.attempt
    if any(has_own_limit(rank, policy.limits) for rank in attempt.ranks if rank.present):
        return False  # it has announced that it may stand still
    idle = attempt.idle
    unchanged = unchanged_for(idle, now) >= max(limit, idle.unchanged_raised)
    return unchanged or idle_for(idle, now) >= max(limit, idle.raised)


def waits_for_verdict(job: Job, policy: Policy) -> bool:
    """Whether this verdict may be overruled, or has to wait for other members.  One that the group ordered does not."""
    if not policy.membership.group or not isinstance(job.want, Finish) or job.want.asked:
        return False
    if ends_alone(job.want.verdict, policy):
        return False
    return job.order is None or job.order.what != "end"


def ends_alone(verdict: str, policy: Policy) -> bool:
    """Whether a member that ends with this verdict ends alone: the others of its group go on without it."""
    return policy.membership.ends_alone and verdict in ALONE


def heal_at_barrier(job: Job, phase: Phase, now: float, policy: Policy, written: Effects) -> Outcome:
    """While the member waits for the others, a device fault or a hold of the platform came: handle that first."""
    if policy.membership.group and isinstance(phase, Pending) and phase.deadline is None and has_to_wait(job):
        return begin_healing(job, None, now, policy, written)
    return job, written


def newest_order(events: list[ev.Event]) -> list[ev.Event]:
    """Of several orders of the group that have come, only the newest, since each is a complete state.  After a freeze
    of PID 1 an earlier one could begin a round of which the other members know nothing any more."""
    orders = [event for event in events if isinstance(event, ev.GroupOrderReceived)]
    outdated = {id(order) for order in orders[:-1]}
    return [event for event in events if id(event) not in outdated]
