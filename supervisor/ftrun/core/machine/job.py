"""The decision: `decide(job, event, policy) -> (job, effects)`.

This file is the list of all transitions.  `TABLE` at its end names the function for each (phase, event) that has an
effect; the other files of this folder have most of these functions.  An empty cell changes nothing, and no handler
raises.  `UNEXPECTED` lists the empty cells that only a mistake of ftrun itself can reach, which a record counts.  The
operator's pause (`pause`) and the account of the time (`goodput`) wrap the table.  Phases are constructed where they
begin: Pending and Launching in `restarting` (the first Pending in `starting`), Starting, Running and Suspect in
`watching`, Stopping and Done in `stopping`, Healing in `device_faults`.  Time comes in with the event and is monotonic;
effects come out in the order in which they must happen, records first.
"""

from ftrun.core.accounting import goodput
from ftrun.core.machine import (
    device_faults,
    ending,
    group_member,
    pause,
    requests,
    restarting,
    starting,
    stopping,
    watching,
)
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.requests import Handler
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
    Watched,
)
from ftrun.core.machine.stopping import Effects, Outcome
from ftrun.core.machine.values import CAUSES, Attempt
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy
from ftrun.core.text import sentences

BY_COMMAND = (exit_codes.SUCCEEDED, exit_codes.FAILED, exit_codes.STOPPED)


def decide(job: Job, event: ev.Event, policy: Policy) -> Outcome:
    if isinstance(event, ev.DeadlineReached) and (job.phase.deadline is None or event.now < job.phase.deadline):
        return job, ()  # the deadline of a phase that another event of the same wake-up has ended
    if isinstance(event, ev.FaultReported) and not isinstance(job.phase, Pending):
        event = device_faults.downgrade_preexisting(event)
    return pause.step_with_pause(_decide_and_account, job, event, policy)


def _decide_and_account(job: Job, event: ev.Event, policy: Policy) -> Outcome:
    """Run the table's handler and update the account of the time."""
    cell = type(job.phase), type(event)
    handler = TABLE.get(cell)
    if handler is not None:
        after, effects = handler(job, job.phase, event, policy)
    else:
        after, effects = _count_unexpected(job, event) if cell in UNEXPECTED else (job, ())
    return goodput.update(job, event, after), effects


def _count_unexpected(job: Job, event: ev.Event) -> Outcome:
    """Record an event that has no meaning in this phase: the first one, the tenth, the hundredth and so on."""
    what = f"{type(event).__name__} in {type(job.phase).__name__}"
    counts = dict(job.unexpected)
    number = counts[what] = counts.get(what, 0) + 1
    job = job._replace(unexpected=tuple(counts.items()))
    if str(number).rstrip("0") != "1":
        return job, ()
    return job, (do.Persist("unexpected", (("what", what), ("count", number))),)


# --- starting -------------------------------------------------------------------------------------------------------


def _on_command_spawned(job: Job, phase: Launching, event: ev.CommandSpawned, policy: Policy) -> Outcome:
    attempt = phase.attempt._replace(pid=event.pid, spawned_at=event.now, processes=event.processes)
    if event.processes:
        from ftrun.core.machine import recovering  # only where ftrun starts the ranks

        attempt = attempt._replace(rounds=recovering.first_round(event.processes, job, event.now, policy))
    fields: do.Fields = (("pid", event.pid),)
    if event.processes:
        fields += (("pids", [process.pid for process in event.processes]),)
    written = do.Persist("spawned", fields)
    if isinstance(job.want, Finish):
        asked = stopping.await_end(job, attempt, event.now, policy.limits.stop_grace)
        return _handle_kept((asked, (written,)), phase, event.now, policy)
    return _handle_kept(watching.check(job, attempt, event.now, policy, (written,)), phase, event.now, policy)


def _handle_kept(outcome: Outcome, phase: Launching, now: float, policy: Policy) -> Outcome:
    """Handle the events that waited for the exec, in the phase that follows it."""
    job, effects = outcome
    for waiting in phase.early:
        job, more = decide(job, waiting._replace(now=now), policy)
        effects += more
    return job, effects


def _on_command_exited_launching(job: Job, phase: Launching, event: ev.CommandExited, policy: Policy) -> Outcome:
    """The command exited before its exec was reported."""
    return _handle_kept(ending.on_command_exited(job, phase, event, policy), phase, event.now, policy)


def _on_spawn_failed(job: Job, phase: Launching, event: ev.SpawnFailed, policy: Policy) -> Outcome:
    verdict = next((v.name for v in exit_codes.TABLE if v.code == event.code), exit_codes.INTERNAL.name)
    want = Finish(event.code, verdict, event.why)
    if isinstance(job.want, Finish) and event.code == exit_codes.INTERNAL.code:
        want = job.want  # it was about to be stopped
    job, end = stopping.finish(job, want)
    job, answers = _handle_kept((job, ()), phase, event.now, policy)
    return job, answers + end


# --- watching -------------------------------------------------------------------------------------------------------


def _on_signal_received(job: Job, phase: Launching | Watched, event: ev.SignalReceived, policy: Policy) -> Outcome:
    attempt = phase.attempt._replace(forwarded=phase.attempt.forwarded | {event.signal})
    forward = (do.Forward(event.signal),)
    if not event.stop:
        return job._replace(phase=phase._replace(attempt=attempt)), forward
    job = job._replace(want=stopping.stopped_by(event.signal))
    if isinstance(phase, Launching):
        return job._replace(phase=phase._replace(attempt=attempt)), forward
    return stopping.await_end(job, attempt, event.now, policy.limits.stop_grace), (_stop_record(event), *forward)


def _on_signal_received_stopping(job: Job, phase: Stopping, event: ev.SignalReceived, policy: Policy) -> Outcome:
    """While ftrun stops the tree, only a request to end matters.  A verdict that was reached before stays, since srun
    would lose it otherwise."""
    if phase.stage == "asked":
        attempt = phase.attempt._replace(forwarded=phase.attempt.forwarded | {event.signal})
        job = job._replace(phase=phase._replace(attempt=attempt))
        if isinstance(job.want, Restart) and event.stop:  # the earlier request to stop came from the platform
            return job._replace(want=stopping.stopped_by(event.signal)), (_stop_record(event), do.Forward(event.signal))
        return job, (do.Forward(event.signal),)
    if event.stop and isinstance(job.want, Restart):
        # No longer with the command's own status: a command that is being killed for a hang may still exit with 0.
        return job._replace(want=stopping.stopped_by(event.signal)._replace(own=False)), (_stop_record(event),)
    return job, ()


def _stop_record(event: ev.SignalReceived) -> do.Persist:
    return do.Persist("stopping", (("by", "outside"), ("signal", event.signal)))


def _on_signal_received_idle(job: Job, phase: Pending | Healing, event: ev.SignalReceived, policy: Policy) -> Outcome:
    if not event.stop:
        return job, ()
    job = job._replace(want=stopping.stopped_by(event.signal))
    if policy.membership.shared:
        return restarting.ask_for_verdict(job, Attempt(job.ledger.start_cnt), event.now, ())
    return restarting.start_or_finish(job, None, event.now, policy)


def _on_fault_reported(job: Job, phase: Watched, event: ev.FaultReported, policy: Policy) -> Outcome:
    if phase.attempt.rounds.is_open and job.paused is None:
        from ftrun.core.machine import ranks, recovering  # only where ftrun starts the ranks

        if recovering.survives(job, phase.attempt, event.fault, event.now):
            return ranks.on_fault_reported(job, phase, event, policy)
    return device_faults.on_fault_reported(job, phase, event, policy)


def _on_rank_event(job: Job, phase: Watched | Stopping, event: ev.RankEvent, policy: Policy) -> Outcome:
    """Something happened to one of the ranks that ftrun started."""
    from ftrun.core.machine import ranks  # only where there are such ranks

    return ranks.on_rank_event(job, phase, event, policy)


# --- stopping -------------------------------------------------------------------------------------------------------


def _on_command_exited_stopping(job: Job, phase: Stopping, event: ev.CommandExited, policy: Policy) -> Outcome:
    written, want = ending.exit_record(event), job.want
    if isinstance(want, Finish) and want.own:
        status = exit_codes.shell_status(event.code, event.signal)
        verdict = exit_codes.SUCCEEDED if status == 0 else exit_codes.STOPPED
        job = job._replace(want=Finish(status, verdict, want.message, asked=want.asked))
    if phase.stage != "asked":
        return job, (written,)
    return stopping.stop_leftovers(job, phase, event.now, policy, (written,), event.signal is None)


def _on_beats_read_stopping(job: Job, phase: Stopping, event: ev.BeatsRead, policy: Policy) -> Outcome:
    """Progress that is made while stopping counts: many programs write a checkpoint on SIGTERM."""
    section = job.ledger.last_section  # as it was at the verdict: SIGTERM unwinds the open sections
    job, attempt, written = watching.record_progress(job, phase.attempt._replace(ranks=event.ranks), event.now, policy)
    ledger, want = job.ledger._replace(last_section=section), job.want
    if isinstance(want, Restart) and want.reason in CAUSES and ledger.count(want.reason) == 0:
        # That was progress, so the restart under way is the first in a row.
        ledger, want = ledger.counted(want.reason), want._replace(consecutive=1)
    return job._replace(phase=phase._replace(attempt=attempt), want=want, ledger=ledger), written


def _on_deadline_reached_stopping(job: Job, phase: Stopping, event: ev.DeadlineReached, policy: Policy) -> Outcome:
    if phase.stage in ("asked", "term"):
        return stopping.kill(job, phase.attempt, event.now, policy)
    if phase.stage == "kill":
        # SIGKILL has not ended the tree in time: list what is left.
        return stopping.await_stage(job, phase.attempt, "inspect", None), (do.Inspect(),)
    if phase.stage == "devices":  # a probe that is stuck in its driver must not block the job
        problem = do.Persist("problem", (("what", "it is not known whether the devices are free; continuing"),))
        return restarting.start_or_finish(job, phase.attempt, event.now, policy, (problem,))
    if phase.stage == "verdict":
        return restarting.start_or_finish(job, phase.attempt, event.now, policy)
    return job, ()


def _on_processes_survived(job: Job, phase: Stopping, event: ev.ProcessesSurvived, policy: Policy) -> Outcome:
    """SIGKILL was not permitted (EPERM), or has no effect (state D).

    The node is not at fault where the signal was never delivered, or where the command has ended by itself, since the
    processes that it left behind do not change its status.
    """
    want = job.want
    if event.refused:  # before a restart the grace is still waited for, as the processes may end by themselves
        final = phase.stage in ("kill", "inspect") or (phase.stage == "term" and isinstance(want, Finish))
    else:
        final = phase.stage == "inspect"
    if not final:
        return job, ()
    by_command = isinstance(want, Finish) and want.verdict in BY_COMMAND and not event.command
    if not (event.refused or by_command):
        return stopping.isolate(
            job, "SIGKILL did not end these processes: " + "; ".join(event.processes), cause="unkillable"
        )
    job, written = _end_beside(job, event)
    job, effects = _on_tree_ended(job, phase, ev.TreeEnded(event.now, event.killed), policy)
    return job, (*written, *effects)


def _end_beside(job: Job, event: ev.ProcessesSurvived) -> tuple[Job, Effects]:
    """The job ends although these processes are left; it is never restarted beside them."""
    reason = "no permission to signal it (CAP_KILL)" if event.refused else "SIGKILL has no effect"
    cannot = f"cannot end {'; '.join(event.processes)}: {reason}"
    if isinstance(job.want, Finish):
        text = f"{cannot}; the exit code stays {job.want.code}"
        return job, (do.Persist("problem", (("what", text),)), do.LogLine(text))
    why = sentences.reason(f"no restart while processes are left over: {cannot}")
    restart = job.want if isinstance(job.want, Restart) else Restart("hang")
    if restart.own is not None:  # as without ftrun
        want = Finish(restart.own, exit_codes.FAILED, why)
    else:
        want = stopping.finish_with(exit_codes.HANG_LIMIT, why)
    line = do.LogLine(sentences.sentence(why, stopping.exit_text(want)))
    return job._replace(want=want), (stopping.escalation_record(restart.reason, want), line)


def _on_tree_ended(job: Job, phase: Stopping, event: ev.TreeEnded, policy: Policy) -> Outcome:
    if phase.stage in ("devices", "verdict"):
        return job, ()  # a repeated report
    written: Effects = (do.Persist("killed", (("processes", event.killed),)),) if event.killed else ()
    if isinstance(job.want, Finish):
        if policy.membership.shared and job.want.asked:
            return restarting.ask_for_verdict(job, phase.attempt, event.now, written)
        if group_member.waits_for_verdict(job, policy):
            deadline = group_member.verdict_deadline(job, event.now, policy)
            return stopping.await_stage(job, phase.attempt, "verdict", deadline), written
        return restarting.start_or_finish(job, None, event.now, policy, written)
    if device_faults.has_to_wait(job):
        return device_faults.begin_healing(job, phase.attempt, event.now, policy, written)
    return restarting.release_devices(job, phase.attempt, event.now, policy, written)


def _on_verdict_shared(job: Job, phase: Stopping, event: ev.VerdictShared, policy: Policy) -> Outcome:
    if phase.stage != "verdict":
        return job, ()
    if event.code is not None:
        job = job._replace(want=Finish(event.code, event.verdict, event.why, False, event.node, event.device))
    return restarting.start_or_finish(job, phase.attempt, event.now, policy)


def _on_devices_released(job: Job, phase: Stopping, event: ev.DevicesReleased, policy: Policy) -> Outcome:
    """A device that is still held by a dead process, whose memory is still in use, or that its driver reports as broken
    is a fault of the node.  A missing answer is a problem of the tool, and the job continues."""
    if phase.stage != "devices":
        return job, ()
    if not event.held:
        what = f"it is not known whether the devices are free; continuing: {'; '.join(event.silent)}"
        written: Effects = (do.Persist("problem", (("what", what),)),) if event.silent else ()
        job, returned = device_faults.return_devices(device_faults.spend(job, phase.attempt), event, policy)
        return restarting.start_or_finish(job, phase.attempt, event.now, policy, written + returned)
    return stopping.isolate(job, "devices are still in use after the kill: " + "; ".join(event.held))


# --- in every phase -------------------------------------------------------------------------------------------------


def _on_input_spent(job: Job, phase: Phase, event: ev.InputSpent, policy: Policy) -> Outcome:
    return job._replace(input_spent=True), ()


WATCHED: dict[type[ev.Event], Handler] = {
    ev.DeadlineReached: watching.on_deadline_reached,
    ev.WokeLate: watching.on_woke_late,
    ev.BeatsRead: watching.on_beats_read,
    ev.CheckpointSaved: watching.on_checkpoint_saved,
    ev.TreeSampled: watching.on_tree_sampled,
    ev.CommandStopped: watching.on_command_stopped,
    ev.CommandContinued: watching.on_command_continued,
    ev.CommandExited: ending.on_command_exited,
    ev.RankExited: _on_rank_event,
    ev.RankReported: _on_rank_event,
    ev.RankTreeEnded: _on_rank_event,
    ev.RankStarted: _on_rank_event,
    ev.LeftoversFound: _on_rank_event,
    ev.SignalReceived: _on_signal_received,
    ev.FaultReported: _on_fault_reported,
    ev.Rescheduled: requests.on_rescheduled,
}
UNFINISHED: dict[type[ev.Event], Handler] = {
    ev.StartPermission: requests.on_start_permission,
    ev.DevicesFound: device_faults.on_devices_found,
    ev.HistoryLoaded: starting.on_history_loaded,
    ev.InputSpent: _on_input_spent,
    ev.GroupOrderReceived: group_member.on_group_order_received,
    ev.CoordinatorSilent: group_member.on_coordinator_silent,
    ev.CoordinatorLost: group_member.on_coordinator_lost,
}
OPERATOR: dict[type[ev.Event], Handler] = {
    ev.RestartRequested: requests.on_restart_requested,
    ev.StopRequested: requests.on_stop_requested,
    ev.PauseRequested: requests.on_pause_requested,
    ev.ResumeRequested: requests.on_resume_requested,
}
TABLE: dict[tuple[type[Phase], type[ev.Event]], Handler] = {
    **{(phase, event): cell for phase in PHASES for event, cell in OPERATOR.items()},
    **{(phase, event): cell for phase in PHASES if phase is not Done for event, cell in UNFINISHED.items()},
    **{(phase, event): cell for phase in (Starting, Running, Suspect) for event, cell in WATCHED.items()},
    (Pending, ev.Started): starting.on_started,
    (Pending, ev.DeadlineReached): starting.on_deadline_reached,
    (Pending, ev.WokeLate): starting.on_woke_late,
    (Pending, ev.DevicesChecked): starting.on_devices_checked,
    (Pending, ev.SignalReceived): _on_signal_received_idle,
    (Pending, ev.CheckpointSaved): watching.on_checkpoint_saved,
    (Pending, ev.FaultReported): starting.on_fault_reported,
    (Pending, ev.StartPermission): starting.on_start_permission,
    (Launching, ev.CommandSpawned): _on_command_spawned,
    (Launching, ev.SpawnFailed): _on_spawn_failed,
    (Launching, ev.CommandExited): _on_command_exited_launching,
    (Launching, ev.CheckpointSaved): watching.on_checkpoint_saved,
    (Launching, ev.SignalReceived): _on_signal_received,
    (Launching, ev.FaultReported): requests.keep_until_exec,
    (Starting, ev.Looked): watching.on_looked,
    (Running, ev.Looked): watching.on_looked,
    (Suspect, ev.DeadlineReached): watching.on_deadline_reached_suspect,
    (Suspect, ev.BeatsRead): watching.on_beats_read_suspect,
    (Suspect, ev.EvidenceCollected): watching.on_evidence_collected,
    (Stopping, ev.DeadlineReached): _on_deadline_reached_stopping,
    (Stopping, ev.WokeLate): restarting.on_woke_late,
    (Stopping, ev.BeatsRead): _on_beats_read_stopping,
    (Stopping, ev.CheckpointSaved): watching.on_checkpoint_saved,
    (Stopping, ev.CommandExited): _on_command_exited_stopping,
    (Stopping, ev.RankExited): _on_rank_event,
    (Stopping, ev.SignalReceived): _on_signal_received_stopping,
    (Stopping, ev.TreeEnded): _on_tree_ended,
    (Stopping, ev.ProcessesSurvived): _on_processes_survived,
    (Stopping, ev.DevicesReleased): _on_devices_released,
    (Stopping, ev.FaultReported): device_faults.on_fault_reported_between,
    (Stopping, ev.VerdictShared): _on_verdict_shared,
    (Healing, ev.HealingFinished): restarting.on_healing_finished,
    (Healing, ev.DeadlineReached): restarting.on_healing_finished,
    (Healing, ev.WokeLate): restarting.on_woke_late,
    (Healing, ev.SignalReceived): _on_signal_received_idle,
    (Healing, ev.CheckpointSaved): watching.on_checkpoint_saved,
    (Healing, ev.FaultReported): restarting.on_fault_reported,
}
# Empty cells that no lateness explains: the answer to an exec, or to the end of a tree, while none was asked for.
UNEXPECTED: frozenset[tuple[type[Phase], type[ev.Event]]] = frozenset(
    (phase, event)
    for events, phases in (
        ((ev.Started,), (Launching, Starting, Running, Suspect, Stopping, Healing)),
        ((ev.CommandSpawned, ev.SpawnFailed), (Pending, Starting, Running, Suspect, Healing)),
        ((ev.TreeEnded, ev.ProcessesSurvived), (Pending, Launching, Starting, Running, Suspect, Healing)),
    )
    for event in events
    for phase in phases
)
