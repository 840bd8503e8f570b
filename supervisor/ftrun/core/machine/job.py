"""The decision: `decide(job, event, policy) -> (job, effects)`.

This file owns every transition.  `TABLE` at its end holds one function for each (phase, event) that has an effect; an
empty cell changes nothing, and no handler raises.  The operator's pause (`pause`) and the account of the time
(`goodput`) wrap the table.  Phases are constructed where they begin: Pending and Launching in `restarting` (the first
Pending in `starting`), Starting, Running and Suspect in `watching`, Stopping and Done in `stopping`, Healing in
`device_faults`.  Time comes in with the event and is monotonic; effects come out in the order in which they must
happen, records first.
"""

from ftrun.core.accounting import goodput
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine import pause
from ftrun.core.machine.command_exit import exit_record, exited
from ftrun.core.machine.device_faults import faulted, faulted_ending, given_back, has_to_wait, heal, late
from ftrun.core.machine.group_member import coordinator_lost, coordinator_silent, ordered, patience, waits_for_verdict
from ftrun.core.machine.history_merge import remember
from ftrun.core.machine.leftovers import accepted, decisive, leaves_node
from ftrun.core.machine.operator import Handler, early, pause_asked, restart_asked, resume_asked, stop_asked, timely
from ftrun.core.machine.pause import put_off
from ftrun.core.machine.platform_requests import held, rescheduled
from ftrun.core.machine.restarting import again, consult, faulted_healing, free, healed
from ftrun.core.machine.starting import begin, checked, faulted_pending, held_pending, launch_due, remembered_pending
from ftrun.core.machine.states import (
    PHASES,
    Done,
    Finish,
    Healing,
    Job,
    Launching,
    Pending,
    Phase,
    Restart,
    Running,
    Starting,
    Stopping,
    Suspect,
)
from ftrun.core.machine.stopping import (
    Effects,
    Outcome,
    await_end,
    await_verdict,
    finish,
    inspect,
    isolate,
    kill,
    stop,
    stopped_by,
)
from ftrun.core.machine.values import CAUSES, Attempt
from ftrun.core.machine.watching import (
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
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy


def decide(job: Job, event: ev.Event, policy: Policy) -> Outcome:
    if isinstance(event, ev.DeadlineReached) and (job.phase.deadline is None or event.now < job.phase.deadline):
        return job, ()  # the deadline of a phase that another event of the same wake-up has ended
    if isinstance(event, ev.FaultReported) and not isinstance(job.phase, Pending):
        event = late(event)
    return pause.around(_accounted, job, event, policy)


def _accounted(job: Job, event: ev.Event, policy: Policy) -> Outcome:
    """Run the table's handler and update the account of the time."""
    handler = TABLE.get((type(job.phase), type(event)))
    after, effects = handler(job, job.phase, event, policy) if handler else (job, ())
    return goodput.follow(job, event, after), effects


# --- starting -------------------------------------------------------------------------------------------------------


def _spawned(job: Job, phase: Launching, event: ev.CommandSpawned, policy: Policy) -> Outcome:
    attempt = phase.attempt._replace(pid=event.pid, spawned_at=event.now)
    written = do.Persist("spawned", (("pid", event.pid),))
    if isinstance(job.want, Finish):
        asked = await_end(job, attempt, event.now, policy.stop_grace)
        return _with_early((asked, (written,)), phase, event.now, policy)
    return _with_early(watch(job, attempt, event.now, policy, (written,)), phase, event.now, policy)


def _with_early(outcome: Outcome, phase: Launching, now: float, policy: Policy) -> Outcome:
    """Handle the events that waited for the exec, in the phase that follows it."""
    job, effects = outcome
    for waiting in phase.early:
        job, more = decide(job, waiting._replace(now=now), policy)
        effects += more
    return job, effects


def _exited_launching(job: Job, phase: Launching, event: ev.CommandExited, policy: Policy) -> Outcome:
    """The command exited before its exec was reported."""
    return _with_early(exited(job, phase, event, policy), phase, event.now, policy)


def _spawn_failed(job: Job, phase: Launching, event: ev.SpawnFailed, policy: Policy) -> Outcome:
    verdict = next((v.name for v in exit_codes.TABLE if v.code == event.code), exit_codes.INTERNAL.name)
    job, end = finish(job, Finish(event.code, verdict, event.why))
    job, answers = _with_early((job, ()), phase, event.now, policy)
    return job, answers + end


# --- watching -------------------------------------------------------------------------------------------------------


def _faulted(job: Job, phase: Starting | Running | Suspect, event: ev.FaultReported, policy: Policy) -> Outcome:
    return faulted(job, phase, event, policy) if job.paused is None else put_off(job, phase, event)


def _signalled(
    job: Job, phase: Launching | Starting | Running | Suspect, event: ev.SignalReceived, policy: Policy
) -> Outcome:
    attempt = phase.attempt._replace(forwarded=phase.attempt.forwarded | {event.signal})
    forward = (do.Forward(event.signal),)
    if not event.stop:
        return job._replace(phase=phase._replace(attempt=attempt)), forward
    job = job._replace(want=stopped_by(event.signal))
    if isinstance(phase, Launching):
        return job._replace(phase=phase._replace(attempt=attempt)), forward
    return await_end(job, attempt, event.now, policy.stop_grace), (_asked_to_stop(event), *forward)


def _signalled_stopping(job: Job, phase: Stopping, event: ev.SignalReceived, policy: Policy) -> Outcome:
    """While ftrun stops the tree, only a request to end matters.  A verdict that was reached before stays, since srun
    would lose it otherwise."""
    if phase.stage == "asked":
        attempt = phase.attempt._replace(forwarded=phase.attempt.forwarded | {event.signal})
        job = job._replace(phase=phase._replace(attempt=attempt))
        if isinstance(job.want, Restart) and event.stop:  # the earlier request to stop came from the platform
            return job._replace(want=stopped_by(event.signal)), (_asked_to_stop(event), do.Forward(event.signal))
        return job, (do.Forward(event.signal),)
    if event.stop and isinstance(job.want, Restart):
        # No longer with the command's own status: a command that is being killed for a hang may still exit with 0.
        return job._replace(want=stopped_by(event.signal)._replace(own=False)), (_asked_to_stop(event),)
    return job, ()


def _asked_to_stop(event: ev.SignalReceived) -> do.Persist:
    return do.Persist("stopping", (("by", "outside"), ("signal", event.signal)))


def _signalled_idle(job: Job, phase: Pending | Healing, event: ev.SignalReceived, policy: Policy) -> Outcome:
    if not event.stop:
        return job, ()
    job = job._replace(want=stopped_by(event.signal))
    if policy.shared:
        return consult(job, Attempt(job.ledger.start_cnt), event.now, ())
    return again(job, None, event.now, policy)


# --- stopping -------------------------------------------------------------------------------------------------------


def _exited_stopping(job: Job, phase: Stopping, event: ev.CommandExited, policy: Policy) -> Outcome:
    written, want = exit_record(event), job.want
    if isinstance(want, Finish) and want.own:
        status = exit_codes.own(event.code, event.signal)
        verdict = exit_codes.SUCCEEDED if status == 0 else exit_codes.STOPPED
        job = job._replace(want=Finish(status, verdict, want.message, asked=want.asked))
    if phase.stage != "asked":
        return job, (written,)
    return stop(job, phase.attempt, event.now, policy, (written,))


def _looked_stopping(job: Job, phase: Stopping, event: ev.BeatsRead, policy: Policy) -> Outcome:
    """Progress that is made while stopping counts: many programs write a checkpoint on SIGTERM."""
    section = job.ledger.last_section  # as it was at the verdict: SIGTERM unwinds the open sections
    job, attempt, written = credit(job, phase.attempt._replace(ranks=event.ranks), event.now, policy)
    ledger, want = job.ledger._replace(last_section=section), job.want
    if isinstance(want, Restart) and want.reason in CAUSES and ledger.count(want.reason) == 0:
        # That was progress, so the restart under way is the first in a row.
        ledger, want = ledger.counted(want.reason), want._replace(consecutive=1)
    return job._replace(phase=phase._replace(attempt=attempt), want=want, ledger=ledger), written


def _overdue(job: Job, phase: Stopping, event: ev.DeadlineReached, policy: Policy) -> Outcome:
    if phase.stage in ("asked", "term"):
        return kill(job, phase.attempt, event.now, policy)
    if phase.stage == "kill":
        return inspect(job, phase.attempt)
    if phase.stage == "devices":  # a probe that is stuck in its driver must not block the job
        problem = do.Persist("problem", (("what", "it is not known whether the devices are free; continuing"),))
        return again(job, phase.attempt, event.now, policy, (problem,))
    if phase.stage == "verdict":
        return again(job, phase.attempt, event.now, policy)
    return job, ()


def _overslept_ending(job: Job, phase: Stopping | Healing, event: ev.WokeLate, policy: Policy) -> Outcome:
    """What ftrun waits for was frozen as well, so it gets the rest of its time."""
    later = None if phase.deadline is None else phase.deadline + (event.now - event.since)
    return job._replace(phase=phase._replace(deadline=later)), ()


def _survived(job: Job, phase: Stopping, event: ev.ProcessesSurvived, policy: Policy) -> Outcome:
    if not decisive(job, phase, event):
        return job, ()
    if not leaves_node(job, event):
        return isolate(job, "SIGKILL did not end these processes: " + "; ".join(event.processes), cause="unkillable")
    job, written = accepted(job, event)
    job, effects = _tree_ended(job, phase, ev.TreeEnded(event.now, event.killed), policy)
    return job, (*written, *effects)


def _tree_ended(job: Job, phase: Stopping, event: ev.TreeEnded, policy: Policy) -> Outcome:
    if phase.stage in ("devices", "verdict"):
        return job, ()  # a repeated report
    written: Effects = (do.Persist("killed", (("processes", event.killed),)),) if event.killed else ()
    if isinstance(job.want, Finish):
        if policy.shared and job.want.asked:
            return consult(job, phase.attempt, event.now, written)
        if waits_for_verdict(job, policy):
            return await_verdict(job, phase.attempt, patience(job, event.now, policy)), written
        return again(job, None, event.now, policy, written)
    if has_to_wait(job):
        return heal(job, phase.attempt, event.now, policy, written)
    return free(job, phase.attempt, event.now, policy, written)


def _shared(job: Job, phase: Stopping, event: ev.VerdictShared, policy: Policy) -> Outcome:
    if phase.stage != "verdict":
        return job, ()
    if event.code is not None:
        job = job._replace(want=Finish(event.code, event.verdict, event.why, False, event.node, event.device))
    return again(job, phase.attempt, event.now, policy)


def _released(job: Job, phase: Stopping, event: ev.DevicesReleased, policy: Policy) -> Outcome:
    """A device that is still held by a dead process, whose memory is still in use, or that its driver reports as broken
    is a fault of the node.  A missing answer is a problem of the tool, and the job continues."""
    if phase.stage != "devices":
        return job, ()
    if not event.held:
        what = f"it is not known whether the devices are free; continuing: {'; '.join(event.silent)}"
        written: Effects = (do.Persist("problem", (("what", what),)),) if event.silent else ()
        job, returned = given_back(job, event, policy)
        return again(job, phase.attempt, event.now, policy, written + returned)
    return isolate(job, "devices are still in use after the kill: " + "; ".join(event.held))


# --- in every phase -------------------------------------------------------------------------------------------------


def _found(job: Job, phase: Phase, event: ev.DevicesFound, policy: Policy) -> Outcome:
    return job._replace(devices=event.devices), ()


def _remembered(job: Job, phase: Phase, event: ev.HistoryLoaded, policy: Policy) -> Outcome:
    return remember(job, event, policy.phase, policy.job), ()


WATCHED: dict[type[ev.Event], Handler] = {
    ev.DeadlineReached: ticked,
    ev.WokeLate: overslept,
    ev.BeatsRead: looked,
    ev.CheckpointSaved: saved,
    ev.TreeSampled: sampled,
    ev.CommandStopped: halted,
    ev.CommandContinued: continued,
    ev.CommandExited: exited,
    ev.SignalReceived: _signalled,
    ev.FaultReported: _faulted,
    ev.Rescheduled: rescheduled,
}
ORDERS: dict[type[ev.Event], Handler] = {
    ev.RestartRequested: timely(restart_asked),
    ev.StopRequested: timely(stop_asked),
    ev.PauseRequested: timely(pause_asked),
    ev.ResumeRequested: timely(resume_asked),
}
TABLE: dict[tuple[type[Phase], type[ev.Event]], Handler] = {
    (Pending, ev.Started): begin,
    (Pending, ev.DeadlineReached): launch_due,
    (Pending, ev.WokeLate): launch_due,
    (Pending, ev.DevicesChecked): checked,
    (Pending, ev.SignalReceived): _signalled_idle,
    (Pending, ev.CheckpointSaved): saved,
    (Pending, ev.FaultReported): faulted_pending,
    (Launching, ev.CommandSpawned): _spawned,
    (Launching, ev.SpawnFailed): _spawn_failed,
    (Launching, ev.CommandExited): _exited_launching,
    (Launching, ev.CheckpointSaved): saved,
    (Launching, ev.SignalReceived): _signalled,
    (Launching, ev.FaultReported): early,
    **{(phase, event): cell for phase in (Starting, Running, Suspect) for event, cell in WATCHED.items()},
    (Suspect, ev.DeadlineReached): unproven,
    (Suspect, ev.BeatsRead): looked_again,
    (Suspect, ev.EvidenceCollected): evidenced,
    (Stopping, ev.DeadlineReached): _overdue,
    (Stopping, ev.WokeLate): _overslept_ending,
    (Stopping, ev.BeatsRead): _looked_stopping,
    (Stopping, ev.CheckpointSaved): saved,
    (Stopping, ev.CommandExited): _exited_stopping,
    (Stopping, ev.SignalReceived): _signalled_stopping,
    (Stopping, ev.TreeEnded): _tree_ended,
    (Stopping, ev.ProcessesSurvived): _survived,
    (Stopping, ev.DevicesReleased): _released,
    (Stopping, ev.FaultReported): faulted_ending,
    (Stopping, ev.VerdictShared): _shared,
    (Healing, ev.HealingFinished): healed,
    (Healing, ev.DeadlineReached): healed,
    (Healing, ev.WokeLate): _overslept_ending,
    (Healing, ev.SignalReceived): _signalled_idle,
    (Healing, ev.CheckpointSaved): saved,
    (Healing, ev.FaultReported): faulted_healing,
    **{(phase, ev.StartHeld): held for phase in PHASES if phase is not Done},
    (Pending, ev.StartHeld): held_pending,
    **{(phase, ev.DevicesFound): _found for phase in PHASES if phase is not Done},
    **{(phase, ev.HistoryLoaded): _remembered for phase in PHASES if phase is not Done},
    (Pending, ev.HistoryLoaded): remembered_pending,
    **{(phase, event): cell for phase in PHASES for event, cell in ORDERS.items()},
    **{(phase, ev.GroupOrderReceived): ordered for phase in PHASES if phase is not Done},
    **{(phase, ev.CoordinatorSilent): coordinator_silent for phase in PHASES if phase is not Done},
    **{(phase, ev.CoordinatorLost): coordinator_lost for phase in PHASES if phase is not Done},
}
