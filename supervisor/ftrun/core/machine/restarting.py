"""Between two attempts: what the next start waits for after the tree is dead."""

from ftrun.core.group.messages import GroupOrder
from ftrun.core.machine import device_faults, stopping
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Finish, Healing, Job, KeepRunning, Launching, Pending, Restart, Stopping
from ftrun.core.machine.stopping import INPUT_SPENT, Effects, Outcome
from ftrun.core.machine.values import Attempt, NodePlace
from ftrun.core.rules.exit_codes import FAILED, HANG_LIMIT
from ftrun.core.rules.policy import Policy, local_ranks
from ftrun.core.text import durations, sentences

ANSWER = 5.0  # s; time that a helper gets, beyond the deadline of a question, to send its answer


def launch(job: Job, now: float, policy: Policy, record: str) -> Outcome:
    """Start the command.  A member of a group waits until all others can start too."""
    if job.input_spent and isinstance(job.want, Restart):
        own = job.want.own
        want = stopping.finish_with(HANG_LIMIT, INPUT_SPENT) if own is None else Finish(own, FAILED, INPUT_SPENT)
        return stopping.conclude(job, want, cause=job.want.reason)
    epoch, place, node, number_of_round = job.ledger.epoch, None, None, 1
    if policy.membership.group:
        if job.order is None or not may_start(job, job.order, policy):
            order = job.order or GroupOrder(epoch, "wait", "no message from rank 0 yet")
            line = do.LogLine("ready; waiting for the other members of the group, since all start together")
            return job._replace(phase=Pending(), order=order), (line,) if isinstance(job.want, KeepRunning) else ()
        from ftrun.core.group.places import count, place_of  # only in a group

        order = job.order
        epoch, number = order.epoch, policy.membership.member
        if order.places:
            found = place_of(order.places, policy.membership.member)
            if found is None:
                return _wait_as_spare(job, order, count(order.places), policy)
            number, node = found, NodePlace(found, count(order.places), order.master)
        job = job._replace(places=order.places, starter=order.starter or job.starter)
        number_of_round = order.round.number + 1 if order.round is not None else 1
        if (ranks := local_ranks(job.ledger, policy)) is not None:
            from ftrun.core.group.places import rank_place  # only where ftrun starts the ranks

            place = rank_place(order.world, number)
            if place is None or place.number != ranks:
                return _refuse_epoch(job, epoch, ranks)
    again = job.want if isinstance(job.want, Restart) else None
    job = job._replace(ran=epoch)
    start = job.ledger.start_cnt + 1
    ledger = job.ledger._replace(start_cnt=start, epoch=epoch, reason=again.reason if again else job.ledger.reason)
    fields: do.Fields = (("reason", ledger.reason), ("start_cnt", ledger.starts))
    if again:
        fields += (("consecutive", again.consecutive),)
    if policy.membership.group:
        fields += (("epoch", epoch),)
    if node is not None and policy.membership.elastic:
        fields += (("node_rank", node.number), ("nodes", node.nodes))
    written = do.Persist(record, fields)  # the cause of a restart and its count are on disk already
    attempt = Attempt(
        start,
        launched_at=now,
        spawned_at=now,
        first_beat=ledger.first_beat,
        inherited=ledger.saved,
        replacements=ledger.replacements,
    )
    job = job._replace(phase=Launching(attempt), want=KeepRunning(), ledger=ledger, blame=None, removed_devices=())
    return job, (written, do.Spawn(start, place, node, number_of_round))


def _wait_as_spare(job: Job, order: GroupOrder, working: int, policy: Policy) -> Outcome:
    """The epoch starts without this member, which is ready for the next epoch.  It prepares standbys as for the last
    place of this epoch, since it does not know its place in the next one."""
    from ftrun.core.group.places import rank_place  # only in a group

    why = f"{sentences.several(working, 'member')} work in epoch {order.epoch}, and this one waits as a spare"
    written = do.Persist("group", (("what", "spare"), ("epoch", order.epoch), ("why", why)))
    ledger = job.ledger._replace(epoch=order.epoch)
    line = do.LogLine(sentences.sentence(why, "it starts when it is needed, at a restart of all"))
    ranks = rank_place(order.world, working - 1) if local_ranks(job.ledger, policy) is not None else None
    prepare = do.PrepareStandbys(ranks, NodePlace(working - 1, working, order.master))
    job = job._replace(phase=Pending(), ledger=ledger, places=order.places, starter=order.starter)
    return job, (written, line, prepare)


def is_spare(job: Job, policy: Policy) -> bool:
    """Whether the present epoch of the group has no place for this member, which waits for one in the next."""
    if not job.places or not isinstance(job.phase, Pending) or job.phase.deadline is not None:
        return False
    from ftrun.core.group.places import place_of  # only in a group

    return place_of(job.places, policy.membership.member) is None


def may_start(job: Job, order: GroupOrder, policy: Policy) -> bool:
    """Whether the order starts the command here.  An ftrun that is new in a group at work starts its ranks only between
    two rounds, and once: it may know the epoch from the state of the ftrun before it.  A member without a place in the
    epoch starts nothing then, and waits as a spare."""
    if order.what != "run":
        return False
    if order.round is None or not _has_place(order, policy):
        return order.epoch > job.ledger.epoch
    return policy.membership.member in order.round.joining and (order.epoch > job.ledger.epoch or order.epoch > job.ran)


def _has_place(order: GroupOrder, policy: Policy) -> bool:
    from ftrun.core.group.places import place_of  # only in a group

    return not order.places or place_of(order.places, policy.membership.member) is not None


def _refuse_epoch(job: Job, epoch: int, ranks: int) -> Outcome:
    """The order numbers the ranks by what this member offered before a device was removed.  Nothing starts here: this
    member is ready after that epoch, so that rank 0 ends it and starts the next one with the new number."""
    why = f"epoch {epoch} does not start here, because this member now starts {sentences.several(ranks, 'rank')}"
    written = do.Persist("group", (("what", "noted"), ("epoch", epoch), ("why", why)))
    return job._replace(phase=Pending(), ledger=job.ledger._replace(epoch=epoch)), (written,)


def ask_for_verdict(job: Job, attempt: Attempt, now: float, written: Effects) -> Outcome:
    """A stop from outside may be the consequence of a verdict of another ftrun of this job: ask for it."""
    return stopping.await_stage(job, attempt, "verdict", now + ANSWER), (*written, do.AskForVerdict())


def release_devices(job: Job, attempt: Attempt | None, now: float, policy: Policy, written: Effects = ()) -> Outcome:
    """No restart before the devices are free and the removed ones have been checked."""
    looks = policy.limits.device_timeout is not None or not set(job.ledger.removed) <= set(job.removed_devices)
    if attempt is None or not looks:
        return start_or_finish(job, attempt, now, policy, written)
    deadline = now + (policy.limits.device_timeout or 0.0) + ANSWER
    return stopping.await_stage(job, attempt, "devices", deadline), (*written, do.Release())


def start_or_finish(job: Job, attempt: Attempt | None, now: float, policy: Policy, written: Effects = ()) -> Outcome:
    """The tree is dead and the devices are free: end, or start again, after a fault is healed or a delay has passed."""
    want = job.want
    if isinstance(want, Finish):
        job, effects = stopping.finish(job, want)
        return job, written + effects
    if device_faults.has_to_wait(job):
        return device_faults.begin_healing(job, attempt, now, policy, written)
    if isinstance(want, Restart) and want.delay > 0:
        return job._replace(phase=Pending(now + want.delay)), written
    job, effects = launch(job, now, policy, "started" if isinstance(want, KeepRunning) else "restart")
    return job, written + effects


def on_healing_finished(
    job: Job, phase: Healing, event: ev.HealingFinished | ev.DeadlineReached, policy: Policy
) -> Outcome:
    """A healed fault leads to the next start.  If it did not heal in time, continue without the device, or isolate the
    node."""
    why: str | None = f"it was not healed within {durations.seconds(policy.limits.heal_timeout)}"
    fault, attempt = phase.fault, phase.attempt
    if isinstance(event, ev.HealingFinished):
        if fault is None:
            return job, ()  # a repeated report
        if event.cured:
            if attempt is not None:  # a fault that recurs after it was healed counts as a new one
                phase = phase._replace(attempt=attempt._replace(counted_faults=()))
            return heal_or_release(device_faults.without_faults(job, fault.device), phase, event.now, policy)
        why = event.why
    smaller = None if fault is None else device_faults.remove_device(job, fault, policy)
    if smaller is None:
        return device_faults.end_unhealed(job, phase, why)
    return heal_or_release(smaller[0], phase, event.now, policy, (smaller[1],))


def heal_or_release(job: Job, phase: Healing, now: float, policy: Policy, written: Effects = ()) -> Outcome:
    if device_faults.has_to_wait(job):
        return device_faults.begin_healing(job, phase.attempt, now, policy, written)
    return release_devices(job, phase.attempt, now, policy, written)


def on_fault_reported(job: Job, phase: Healing, event: ev.FaultReported, policy: Policy) -> Outcome:
    job, written = device_faults.on_fault_reported_between(job, phase, event, policy)
    under_way = isinstance(job.want, Restart) and phase.fault in job.want.faults
    if not isinstance(job.phase, Healing) or phase.fault is None or under_way:
        return job, written
    return heal_or_release(job, phase, event.now, policy, written)  # the job continues without that device


def on_woke_late(job: Job, phase: Pending | Stopping | Healing, event: ev.WokeLate, policy: Policy) -> Outcome:
    """What ftrun waits for was frozen as well, so it gets the rest of its time."""
    later = None if phase.deadline is None else phase.deadline + (event.now - event.since)
    return job._replace(phase=phase._replace(deadline=later)), ()
