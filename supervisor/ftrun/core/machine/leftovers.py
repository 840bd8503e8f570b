"""Processes of the tree that cannot be ended: SIGKILL was not permitted (EPERM), or it has no effect (state D)."""

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Finish, Job, Restart, Stopping
from ftrun.core.machine.stopping import Effects, ending, escalation, finish_with
from ftrun.core.rules import exit_codes
from ftrun.core.text import sentences

BY_COMMAND = (exit_codes.SUCCEEDED, exit_codes.FAILED, exit_codes.STOPPED)


def decisive(job: Job, phase: Stopping, event: ev.ProcessesSurvived) -> bool:
    """Whether waiting longer is useless.  A missing permission is final, but before a restart the grace is still
    waited for: the processes may end by themselves, which makes the restart possible."""
    if not event.refused:
        return phase.stage == "inspect"
    return phase.stage in ("kill", "inspect") or (phase.stage == "term" and isinstance(job.want, Finish))


def leaves_node(job: Job, event: ev.ProcessesSurvived) -> bool:
    """Whether the node is not at fault: the signal was never delivered; or the command has ended by itself, and the
    processes that it left behind do not change its status."""
    by_command = isinstance(job.want, Finish) and job.want.verdict in BY_COMMAND and not event.command
    return event.refused or by_command


def accepted(job: Job, event: ev.ProcessesSurvived) -> tuple[Job, Effects]:
    """The job ends although these processes are left; it is never restarted beside them."""
    reason = "no permission to signal it (CAP_KILL)" if event.refused else "SIGKILL has no effect"
    cannot = f"cannot end {'; '.join(event.processes)}: {reason}"
    if isinstance(job.want, Finish):
        text = f"{cannot}; the exit code stays {job.want.code}"
        return job, (do.Persist("problem", (("what", text),)), do.LogLine(text))
    why = sentences.short(f"no restart while processes are left over: {cannot}", sentences.REASON)
    again = job.want if isinstance(job.want, Restart) else Restart("hang")
    if again.own is not None:  # as without ftrun
        want = Finish(again.own, exit_codes.FAILED, why)
    else:
        want = finish_with(exit_codes.HANG_LIMIT, why)
    return job._replace(want=want), (escalation(again.reason, want), do.LogLine(sentences.sentence(why, ending(want))))
