"""The decision: `decide(job, event, policy) -> (job, effects)`.

This file owns every transition.  `TABLE` at its end holds one function for each (phase, event) that means something; an
empty cell changes nothing, and nothing raises.  Time comes in with the event and is monotonic; effects come out in the
order in which they must happen: records first.
"""

from collections.abc import Callable
from typing import Any

from ftrun.core import effects as do
from ftrun.core import events as ev
from ftrun.core import exitcode
from ftrun.core.ending import Effects, Outcome, after, escalation, finish, finish_with, stop, stopped_by, trouble
from ftrun.core.policy import Policy
from ftrun.core.states import (
    Again,
    Finish,
    Healing,
    Job,
    Keep,
    Launching,
    Pending,
    Phase,
    Running,
    Starting,
    Stopping,
    Suspect,
)
from ftrun.core.values import CAUSES, Attempt, Cause
from ftrun.core.watching import (
    continued,
    credit,
    evidenced,
    halted,
    looked,
    looked_again,
    overslept,
    sampled,
    saved,
    ticked,
    unproven,
    watch,
)

ANSWER = 5.0  # s; a probe that looks until the device timeout has so long to say what it saw
BY_TERMINAL = (1, 2, 3)  # SIGHUP, SIGINT, SIGQUIT: they reach the command's group past us
Handler = Callable[[Job, Any, Any, Policy], Outcome]


def decide(job: Job, event: ev.Event, policy: Policy) -> Outcome:
    if isinstance(event, ev.Ticked) and (job.phase.deadline is None or event.now < job.phase.deadline):
        return job, ()  # for a phase that something else in the same wake-up has ended
    handler = TABLE.get((type(job.phase), type(event)))
    return handler(job, job.phase, event, policy) if handler else (job, ())


# --- starting -------------------------------------------------------------------------------------------------------


def _begin(job: Job, phase: Pending, event: ev.Started, policy: Policy) -> Outcome:
    return _launch(job, event.now, "started")


def _launch_due(job: Job, phase: Pending, event: ev.Ticked | ev.Overslept, policy: Policy) -> Outcome:
    return _launch(job, event.now, "restart")


def _launch(job: Job, now: float, record: str) -> Outcome:
    again = job.want if isinstance(job.want, Again) else None
    number = job.ledger.start_cnt + 1
    ledger = job.ledger._replace(start_cnt=number, reason=again.reason if again else job.ledger.reason)
    fields: tuple[tuple[str, object], ...] = (("reason", ledger.reason), ("start_cnt", number))
    if again:
        fields += (("consecutive", again.consecutive),)
    written = do.Persist(record, fields)  # what led to a restart is on disk already, with its count
    attempt = Attempt(number, spawned_at=now, patience=1 << min(ledger.hang, 10))
    return Job(Launching(attempt), Keep(), ledger), (written, do.Spawn(number))


def _spawned(job: Job, phase: Launching, event: ev.Spawned, policy: Policy) -> Outcome:
    attempt = phase.attempt._replace(pid=event.pid, spawned_at=event.now)
    written = do.Persist("spawned", (("pid", event.pid),))
    if isinstance(job.want, Finish):
        asked = Stopping(attempt, "asked", after(event.now, policy.stop_grace))
        return job._replace(phase=asked), (written,)
    return watch(job, attempt, event.now, policy, (written,))


def _spawn_failed(job: Job, phase: Launching, event: ev.SpawnFailed, policy: Policy) -> Outcome:
    verdict = next((v.name for v in exitcode.TABLE if v.code == event.code), exitcode.INTERNAL.name)
    return finish(job, event.code, verdict, event.why)


# --- watching -------------------------------------------------------------------------------------------------------


def _exited(job: Job, phase: Launching | Starting | Running | Suspect, event: ev.Exited, policy: Policy) -> Outcome:
    """The command ended by itself; what it left behind is ended too, then its status decides."""
    attempt, status = phase.attempt, exitcode.own(event.code, event.signal)
    job, attempt, written = credit(job, attempt, event.now, policy)
    written += (_exit_record(event),)
    by_request = event.signal is not None and (event.signal in attempt.forwarded or event.signal in BY_TERMINAL)
    if attempt.fatal is None and (status == 0 or by_request or isinstance(job.want, Finish)):
        verdict = exitcode.SUCCEEDED if status == 0 else exitcode.STOPPED if by_request else exitcode.FAILED
        job = job._replace(want=Finish(status, verdict, _ending(event)))
        return stop(job, attempt, event.now, policy, written)
    cause: Cause = "fault" if attempt.fault and "fault" in policy.restart_on else "failure"
    return trouble(job, attempt, cause, _ending(event), event.now, policy, written, status, attempt.fault)


def _exit_record(event: ev.Exited) -> do.Persist:
    field = ("code", event.code) if event.signal is None else ("signal", event.signal)
    return do.Persist("exited", (field,))


def _ending(event: ev.Exited) -> str:
    if event.signal is not None:
        return f"signal {event.signal} ended the command"
    return f"the command exited with {event.code}"


def _faulted(job: Job, phase: Starting | Running | Suspect, event: ev.Faulted, policy: Policy) -> Outcome:
    """A fault alone kills nothing that can go on: warnings, unknown codes and the user's own are only written down."""
    fault, attempt = event.fault, phase.attempt
    acts = fault.severity in ("minor", "major", "critical")
    written: Effects = (do.Persist("fault", tuple(fault._asdict().items()), durable=acts),)
    if fault.severity == "user":
        return job._replace(phase=phase._replace(attempt=attempt._replace(fault=fault))), written
    if not acts:
        return job, written
    why = f"device {fault.device} reports {fault.code} ({fault.severity})"
    if fault.severity == "critical":
        want = finish_with(exitcode.NODE_FAULT, why)
        written += (escalation("fault", want),)
        return stop(job._replace(want=want), attempt, event.now, policy, written, why)
    return trouble(job, attempt, "fault", why, event.now, policy, written, fault=fault)


def _restart_asked(job: Job, phase: Starting | Running | Suspect, event: ev.RestartAsked, policy: Policy) -> Outcome:
    """An order from the operator or from another node costs no budget."""
    reason = "peer" if event.by == "peer" else "manual"
    job = job._replace(want=Again("peer" if reason == "peer" else "manual"))
    return stop(job, phase.attempt, event.now, policy, say=f"restart asked ({reason})")


def _signalled(
    job: Job, phase: Launching | Starting | Running | Suspect, event: ev.Signalled, policy: Policy
) -> Outcome:
    attempt = phase.attempt._replace(forwarded=phase.attempt.forwarded | {event.signal})
    forward = (do.Forward(event.signal),)
    if not event.stop:
        return job._replace(phase=phase._replace(attempt=attempt)), forward
    job = job._replace(want=stopped_by(event.signal))
    if isinstance(phase, Launching):
        return job._replace(phase=phase._replace(attempt=attempt)), forward
    asked = Stopping(attempt, "asked", after(event.now, policy.stop_grace))
    return job._replace(phase=asked), (_asked_to_stop(event), *forward)


def _signalled_stopping(job: Job, phase: Stopping, event: ev.Signalled, policy: Policy) -> Outcome:
    """While we end the tree only the wish for an end matters; a verdict that is already reached stays (srun would
    lose it otherwise)."""
    if phase.stage == "asked":
        attempt = phase.attempt._replace(forwarded=phase.attempt.forwarded | {event.signal})
        return job._replace(phase=phase._replace(attempt=attempt)), (do.Forward(event.signal),)
    if event.stop and isinstance(job.want, Again):
        # Not its own status any more: what we have begun to kill for a hang may still exit with 0.
        return job._replace(want=stopped_by(event.signal)._replace(own=False)), (_asked_to_stop(event),)
    return job, ()


def _asked_to_stop(event: ev.Signalled) -> do.Persist:
    return do.Persist("stopping", (("by", "outside"), ("signal", event.signal)))


def _signalled_idle(job: Job, phase: Pending | Healing, event: ev.Signalled, policy: Policy) -> Outcome:
    if not event.stop:
        return job, ()
    stopped = stopped_by(event.signal)
    return finish(job, stopped.code, stopped.verdict, stopped.message)


# --- stopping -------------------------------------------------------------------------------------------------------


def _exited_stopping(job: Job, phase: Stopping, event: ev.Exited, policy: Policy) -> Outcome:
    written, want = _exit_record(event), job.want
    if isinstance(want, Finish) and want.own:
        status = exitcode.own(event.code, event.signal)
        verdict = exitcode.SUCCEEDED if status == 0 else exitcode.STOPPED
        job = job._replace(want=Finish(status, verdict, want.message))
    if phase.stage != "asked":
        return job, (written,)
    return stop(job, phase.attempt, event.now, policy, (written,))


def _looked_stopping(job: Job, phase: Stopping, event: ev.Looked, policy: Policy) -> Outcome:
    """What was reached while stopping counts: many programs checkpoint on SIGTERM."""
    section = job.ledger.last_section  # as it was at the verdict: a SIGTERM unwinds the open ones
    job, attempt, written = credit(job, phase.attempt._replace(ranks=event.ranks), event.now, policy)
    ledger, want = job.ledger._replace(last_section=section), job.want
    if isinstance(want, Again) and want.reason in CAUSES and ledger.count(want.reason) == 0:
        # That was progress: the restart under way is the first in a row.
        ledger, want = ledger.counted(want.reason), want._replace(consecutive=1)
    return Job(phase._replace(attempt=attempt), want, ledger), written


def _faulted_stopping(job: Job, phase: Stopping, event: ev.Faulted, policy: Policy) -> Outcome:
    """A GPU that falls off the bus often shows first as a hang: the critical fault outweighs the restart."""
    critical, fields = event.fault.severity == "critical", tuple(event.fault._asdict().items())
    written: Effects = (do.Persist("fault", fields, durable=critical),)
    if not critical or not (isinstance(job.want, Again) or job.want[:2] == exitcode.HANG_LIMIT[1::-1]):
        return job, written
    want = finish_with(exitcode.NODE_FAULT, f"device {event.fault.device} reports {event.fault.code} (critical)")
    return job._replace(want=want), (*written, escalation("fault", want))


def _overdue(job: Job, phase: Stopping, event: ev.Ticked, policy: Policy) -> Outcome:
    if phase.stage in ("asked", "term"):
        kill = Stopping(phase.attempt, "kill", event.now + policy.kill_timeout)
        return job._replace(phase=kill), (do.Persist("stopping", (("by", "SIGKILL"),)), do.Kill())
    if phase.stage == "kill":
        return job._replace(phase=phase._replace(stage="inspect", deadline=None)), (do.Inspect(),)
    if phase.stage == "devices":  # a probe that is stuck in its driver must not keep the job from going on
        unknown = do.Persist("problem", (("what", "nobody says whether the devices are free; going on"),))
        return _again(job, event.now, policy, (unknown,))
    return job, ()


def _overslept_ending(job: Job, phase: Stopping | Healing, event: ev.Overslept, policy: Policy) -> Outcome:
    """What we wait for was frozen as we were: it gets the rest of its time."""
    later = None if phase.deadline is None else phase.deadline + (event.now - event.since)
    return job._replace(phase=phase._replace(deadline=later)), ()


def _survived(job: Job, phase: Stopping, event: ev.Survived, policy: Policy) -> Outcome:
    if phase.stage != "inspect":
        return job, ()
    why = "SIGKILL did not end: " + "; ".join(event.processes)
    want = finish_with(exitcode.NODE_FAULT, why)
    job, effects = finish(job, *want[:3])
    return job, (escalation("unkillable", want), do.Say(why), *effects)


def _tree_ended(job: Job, phase: Stopping, event: ev.TreeEnded, policy: Policy) -> Outcome:
    if phase.stage == "devices":
        return job, ()  # said before
    written: Effects = (do.Persist("killed", (("processes", event.killed),)),) if event.killed else ()
    want = job.want
    if isinstance(want, Finish):
        job, effects = finish(job, want.code, want.verdict, want.message)
        return job, written + effects
    if policy.device_timeout is not None:
        freeing = phase._replace(stage="devices", deadline=event.now + policy.device_timeout + ANSWER)
        return job._replace(phase=freeing), (*written, do.Release())
    return _again(job, event.now, policy, written)


def _released(job: Job, phase: Stopping, event: ev.Released, policy: Policy) -> Outcome:
    """A device that a dead process still holds, or its memory, is the node's trouble."""
    if phase.stage != "devices":
        return job, ()
    if not event.held:
        return _again(job, event.now, policy, ())
    why = "devices are not free after the kill: " + "; ".join(event.held)
    want = finish_with(exitcode.NODE_FAULT, why)
    job, effects = finish(job, *want[:3])
    return job, (escalation("fault", want), do.Say(why), *effects)


def _again(job: Job, now: float, policy: Policy, written: Effects) -> Outcome:
    """The tree is dead and the devices are free: start again, at once or after what has to come first."""
    want = job.want
    if isinstance(want, Finish):
        job, effects = finish(job, want.code, want.verdict, want.message)
        return job, written + effects
    if isinstance(want, Again) and want.fault is not None:
        record = do.Persist("healing", tuple(want.fault._asdict().items()))
        healing = Healing(want.fault, now + policy.heal_timeout)
        return job._replace(phase=healing), (*written, record, do.Heal(want.fault))
    if isinstance(want, Again) and want.delay > 0:
        return job._replace(phase=Pending(now + want.delay)), written
    job, effects = _launch(job, now, "restart")
    return job, written + effects


def _healed(job: Job, phase: Healing, event: ev.Healed | ev.Ticked, policy: Policy) -> Outcome:
    """Cured: start again.  Not cured, or not in time: isolate."""
    if isinstance(event, ev.Healed) and event.cured:
        return _launch(job, event.now, "restart")
    why = f"device {phase.fault.device} did not heal from {phase.fault.code}"
    want = finish_with(exitcode.NODE_FAULT, why)
    job, effects = finish(job, *want[:3])
    return job, (escalation("fault", want), do.Say(why), *effects)


WATCHED: dict[type[ev.Event], Handler] = {
    ev.Ticked: ticked,
    ev.Overslept: overslept,
    ev.Looked: looked,
    ev.Saved: saved,
    ev.Sampled: sampled,
    ev.Halted: halted,
    ev.Continued: continued,
    ev.Exited: _exited,
    ev.Signalled: _signalled,
    ev.Faulted: _faulted,
    ev.RestartAsked: _restart_asked,
}
TABLE: dict[tuple[type[Phase], type[ev.Event]], Handler] = {
    (Pending, ev.Started): _begin,
    (Pending, ev.Ticked): _launch_due,
    (Pending, ev.Overslept): _launch_due,
    (Pending, ev.Signalled): _signalled_idle,
    (Pending, ev.Saved): saved,
    (Launching, ev.Spawned): _spawned,
    (Launching, ev.SpawnFailed): _spawn_failed,
    (Launching, ev.Exited): _exited,
    (Launching, ev.Saved): saved,
    (Launching, ev.Signalled): _signalled,
    **{(phase, event): cell for phase in (Starting, Running, Suspect) for event, cell in WATCHED.items()},
    (Suspect, ev.Ticked): unproven,
    (Suspect, ev.Looked): looked_again,
    (Suspect, ev.Evidenced): evidenced,
    (Stopping, ev.Ticked): _overdue,
    (Stopping, ev.Overslept): _overslept_ending,
    (Stopping, ev.Looked): _looked_stopping,
    (Stopping, ev.Saved): saved,
    (Stopping, ev.Exited): _exited_stopping,
    (Stopping, ev.Signalled): _signalled_stopping,
    (Stopping, ev.TreeEnded): _tree_ended,
    (Stopping, ev.Survived): _survived,
    (Stopping, ev.Released): _released,
    (Stopping, ev.Faulted): _faulted_stopping,
    (Healing, ev.Healed): _healed,
    (Healing, ev.Ticked): _healed,
    (Healing, ev.Overslept): _overslept_ending,
    (Healing, ev.Signalled): _signalled_idle,
    (Healing, ev.Saved): saved,
}
