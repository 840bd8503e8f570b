"""One of a group: what its orders do to the job here, and what the job tells the group of itself.

A start waits until rank 0 has seen every tree of the epoch before dead; a verdict waits for the group's word, since the
trouble here may follow from that of another container.
"""

from typing import Final, NamedTuple

from ftrun.core.group.messages import Counts, GroupEnd, GroupOrder, NodeFailure, Report, State
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.device_faults import has_to_wait, heal
from ftrun.core.machine.operator import early, pause_asked, resume_asked
from ftrun.core.machine.restarting import again, launch
from ftrun.core.machine.states import (
    Done,
    Finish,
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
)
from ftrun.core.machine.stopping import Effects, Outcome, finish_with, stop, unless_schedules_exhausted
from ftrun.core.machine.watching import watch
from ftrun.core.rules import exit_codes
from ftrun.core.rules.idle import unchanged_for
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations, sentences

WORD: Final = 10.0  # s in which rank 0 has to say what becomes of a verdict, once it can know whom it has lost
# What is true of a node whatever the others did: no trouble of theirs explains it.
OF_THE_NODE: Final = (exit_codes.USER_FAULT_LIMIT.name, exit_codes.NODE_FAULT.name)


class GroupMember(NamedTuple):
    """Who reports."""

    rank: int
    life: str
    node: str
    boot: str


# --- what the group wants ---------------------------------------------------------------------------------------------


def ordered(job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy) -> Outcome:
    """The whole order each time: one that is repeated changes nothing."""
    order, before = event.order, job.order
    job = job._replace(order=order)
    written: Effects = ()
    if before is None or (order.epoch, order.what, order.why) != (before.epoch, before.what, before.why):
        written = (_record(order),)
    outcome: Outcome | None = None
    match order.what:
        case "end":
            outcome = _ended(job, phase, event, policy, written)
        case "stop" if order.epoch >= job.ledger.epoch:
            outcome = _recalled(job, phase, event, policy, written)
        case "run" if order.epoch > job.ledger.epoch:
            outcome = _called(job, phase, event, policy, written)
        case "run" if order.epoch == job.ledger.epoch:
            outcome = _shared(job, phase, event, policy, written)
    job, effects = outcome or (job, written)
    news = before is None or order.paused != before.paused
    if order.paused is not None and news and order.paused != job.announced_pause:
        job, more = _paused(job, event, policy)
        effects += more
    return job, effects


def _record(order: GroupOrder) -> do.Persist:
    told = {name: getattr(order, name) for name in ("cause", "node", "rank", "step")}
    if order.end is not None:
        told |= {"node": order.end.node, "verdict": order.end.verdict, "exit_code": order.end.code}
    why = order.why or (order.end.why if order.end else "")
    fields: tuple[tuple[str, object], ...] = (("what", order.what), ("epoch", order.epoch), ("why", why or None))
    return do.Persist("group", tuple((name, value) for name, value in (*fields, *told.items()) if value is not None))


def _called(job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy, written: Effects) -> Outcome:
    """The next epoch: start where nothing stands against it; who runs an older one is behind."""
    if isinstance(phase, Pending) and phase.deadline is None:
        hang, fault, failure = event.order.counts
        job = job._replace(ledger=job.ledger._replace(hang=hang, fault=fault, failure=failure))
        if isinstance(job.want, Restart) and job.want.reason == "peer":
            job = job._replace(want=job.want._replace(consecutive=max(event.order.counts)))
        if has_to_wait(job):
            return heal(job, None, event.now, policy, written)
        job, effects = launch(job, event.now, policy, "started" if isinstance(job.want, KeepRunning) else "restart")
        return job, written + effects
    return _recalled(job, phase, event, policy, written)


def _recalled(job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy, written: Effects) -> Outcome:
    """The epoch that runs here is over, and so is one that never ran here: a late word must not start it.  A verdict
    that was reached here is overruled once it is settled that the trouble began elsewhere; not where it is one of this
    node, or of the operator."""
    want = Restart("peer")
    if isinstance(phase, Launching):
        return early(job, phase, event, policy)
    if event.order.what == "stop":
        job = job._replace(ledger=job.ledger._replace(epoch=event.order.epoch))
    match phase:
        case Starting() | Running() | Suspect():
            job, effects = stop(job._replace(want=want), phase.attempt, event.now, policy, written, _why(event.order))
            return job, effects
        case Stopping() if isinstance(job.want, Finish) and _yields(job.want) and event.order.cause is not None:
            job = job._replace(want=want, blame=None)
            if phase.stage == "verdict":
                return again(job, phase.attempt, event.now, policy, written)
            return job, written
    return job, written


def _yields(want: Finish) -> bool:
    return not want.asked and want.verdict not in (*OF_THE_NODE, exit_codes.STOPPED)


def _why(order: GroupOrder) -> str:
    why = (
        sentences.short(order.why, sentences.REASON) if order.what == "stop" else f"the group is at epoch {order.epoch}"
    )
    where = f" (on {order.node})" if order.node and order.node not in order.why else ""
    follows = "all start again together" if order.cause is not None else ""  # else it is not settled what follows
    return sentences.sentence(f"{why}{where}", "ftrun ends the command here, too", follows)


def _ended(job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy, written: Effects) -> Outcome:
    """One verdict for all; who was asked to stop from outside ends with it too (srun would lose it otherwise)."""
    end = event.order.end
    if end is None or isinstance(phase, Done):
        return job, written
    want = Finish(end.code, end.verdict, _of(end, policy), node=end.node, device=end.device)
    if end.verdict == exit_codes.HANG_LIMIT.name and not end.asked:
        want = unless_schedules_exhausted(job, want)
    if end.verdict == exit_codes.SUCCEEDED or (end.asked and isinstance(job.want, Finish)):
        if isinstance(phase, Stopping) and phase.stage == "verdict":
            return again(job, phase.attempt, event.now, policy, written)
        if isinstance(job.want, Finish) or end.verdict == exit_codes.SUCCEEDED:
            return job, written  # it is ending as it should
    match phase:
        case Launching():
            return early(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            said = sentences.sentence(
                sentences.short(want.message, sentences.REASON), f"ending with {want.code} ({want.verdict})"
            )
            return stop(job._replace(want=want), phase.attempt, event.now, policy, written, said)
        case Stopping() if phase.stage != "verdict":
            return job._replace(want=want), written
    attempt = phase.attempt if isinstance(phase, Stopping) else None
    return again(job._replace(want=want), attempt, event.now, policy, written)


def _of(end: GroupEnd, policy: Policy) -> str:
    told = end.node is None or end.node == policy.node or f"({end.node})" in end.why
    return end.why if told else f"{end.why} (on {end.node})"


def _shared(job: Job, phase: Phase, event: ev.GroupOrderReceived, policy: Policy, written: Effects) -> Outcome:
    """What all know of the epoch under way: progress of one is that of the job, and so is the rest of all devices."""
    order = event.order
    if order.progressed:
        job = job._replace(ledger=job.ledger._replace(hang=0, fault=0, failure=0))
    if isinstance(phase, Starting | Running) and phase.attempt.everywhere != order.still:
        return watch(job, phase.attempt._replace(everywhere=order.still), event.now, policy, written)
    return job, written


def _paused(job: Job, event: ev.GroupOrderReceived, policy: Policy) -> Outcome:
    """By the operator, on some node."""
    lasting = event.order.paused
    if lasting == 0.0:
        return resume_asked(job, job.phase, ev.ResumeRequested(event.now), policy)
    asked = ev.PauseRequested(event.now, None, None if lasting == float("inf") else lasting)
    return pause_asked(job, job.phase, asked, policy)


def coordinator_silent(job: Job, phase: Phase, event: ev.CoordinatorSilent, policy: Policy) -> Outcome:
    """That rank 0 is not heard says nothing of the command here, which may be well: it goes on, and whatever stops it
    is judged as ever.  A verdict about it may follow from what happened to rank 0, so that it waits."""
    written: Effects = (do.Persist("group", (("what", "unheard"), ("epoch", job.ledger.epoch), ("why", event.why))),)
    left = f"ftrun waits for rank 0, for {durations.seconds(event.until - event.now)} at most"
    match phase:
        case Launching() | Starting() | Running() | Suspect():
            written += (do.LogLine(sentences.sentence(event.why, "the command goes on", left)),)
        case Stopping(stage="verdict") if isinstance(job.want, Finish) and _yields(job.want):
            job = job._replace(phase=phase._replace(deadline=None))
            written += (do.LogLine(sentences.sentence(event.why, left)),)
        case Pending(deadline=None):
            written += (do.LogLine(sentences.sentence(event.why, left)),)
    return job, written


def patience(job: Job, now: float, policy: Policy) -> float | None:
    """Until when a verdict waits for the word of the group.  One that may follow from the loss of another waits until
    that loss is known; one of this node does not."""
    assert isinstance(job.want, Finish)
    if job.want.verdict == exit_codes.SUCCEEDED:
        return None
    return now + WORD + (policy.peer_timeout if _yields(job.want) else 0.0)


def coordinator_lost(job: Job, phase: Phase, event: ev.CoordinatorLost, policy: Policy) -> Outcome:
    """Nobody knows what the others do, and by now they have ended: rank 0 does not wait longer for us either.

    Where rank 0 will never take this node, and nothing has run here yet, waiting and scheduling again cure nothing.
    """
    if isinstance(job.want, Finish) and (job.want.asked or not isinstance(phase, Stopping)):
        return job, ()
    if event.incurable and job.ledger.epoch:
        return job, ()  # it was one of the group: scheduled again, all of it may fit together
    written: Effects = (do.Persist("group", (("what", "cut"), ("epoch", job.ledger.epoch), ("why", event.why))),)
    if event.incurable:
        want = finish_with(exit_codes.USAGE, event.why)
    else:
        want = unless_schedules_exhausted(job, finish_with(exit_codes.HANG_LIMIT, event.why))
    want = want._replace(cut=True)
    job = job._replace(order=GroupOrder(job.ledger.epoch, "end", event.why))  # no other word is to be waited for
    match phase:
        case Done():
            return job, ()
        case Launching():
            return early(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            said = sentences.sentence(event.why, f"ending with {want.code} ({want.verdict})")
            return stop(job._replace(want=want), phase.attempt, event.now, policy, written, said)
        case Stopping(stage="verdict"):
            if isinstance(job.want, Finish) and job.want.verdict in (exit_codes.SUCCEEDED, exit_codes.FAILED):
                # The others may need it again, and have no use for half a success; and what it failed of may have been
                # the loss of rank 0.
                job = job._replace(want=want)
            return again(job, phase.attempt, event.now, policy, written)
        case Stopping():
            return (job if isinstance(job.want, Finish) else job._replace(want=want)), written
    return again(job._replace(want=want), None, event.now, policy, written)


# --- what the group is told -------------------------------------------------------------------------------------------


def report(job: Job, me: GroupMember, policy: Policy, now: float, fallen: bool) -> Report:
    """This member as it is; without a number.  `fallen`: its command has ended, and why is being found out."""
    ledger, blame, attempt = job.ledger, job.blame, getattr(job.phase, "attempt", None)
    trouble = None
    if blame is not None:
        trouble = NodeFailure(blame.cause, blame.why, max(0.0, now - blame.at), blame.rank, blame.step, blame.waits)
    counts: Counts = (ledger.hang, ledger.fault, ledger.failure)
    state = _state(job, fallen)
    return Report(
        *(me.rank, me.life, 0, me.node, me.boot, ledger.epoch),
        state=state,
        trouble=trouble,
        end=_end(job, policy) if state in ("ending", "done", "left") else None,
        counts=counts,
        progressed=attempt is not None and attempt.progressed,
        still=_still(job, now, policy),
        paused=job.announced_pause,
    )


def _state(job: Job, fallen: bool) -> State:
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


def _end(job: Job, policy: Policy) -> GroupEnd | None:
    want = job.want
    if not isinstance(want, Finish):
        return None
    return GroupEnd(want.code, want.verdict, want.message, want.node or policy.node, want.device, want.asked, want.cut)


def _still(job: Job, now: float, policy: Policy) -> bool:
    limit = policy.limits.idle
    if limit is None or not isinstance(job.phase, Starting | Running | Suspect):
        return False
    return unchanged_for(job.phase.attempt.idle, now) >= limit


def waits_for_verdict(job: Job, policy: Policy) -> bool:
    """Whether this end may be overruled, or has to wait for those of others; not one that the group has ordered."""
    if not policy.group or not isinstance(job.want, Finish) or job.want.asked:
        return False
    return job.order is None or job.order.what != "end"


def at_barrier(job: Job, phase: Phase, now: float, policy: Policy, written: Effects) -> Outcome:
    """What it waits for has changed while it waits for the others: what has to come first does so now."""
    if policy.group and isinstance(phase, Pending) and phase.deadline is None and has_to_wait(job):
        return heal(job, None, now, policy, written)
    return job, written
