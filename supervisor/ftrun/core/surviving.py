"""Processes of the tree that cannot be ended: SIGKILL was not permitted (EPERM), or it has no effect (state D)."""

from ftrun.core import effects as do
from ftrun.core import events as ev
from ftrun.core import exitcode, words
from ftrun.core.ending import Effects, ending, escalation, finish_with
from ftrun.core.states import Again, Finish, Job, Stopping

BY_COMMAND = (exitcode.SUCCEEDED, exitcode.FAILED, exitcode.STOPPED)


def decisive(job: Job, phase: Stopping, event: ev.Survived) -> bool:
    """Whether waiting longer is of no use.  A refusal is final, but where a restart is wanted the grace is kept: the
    processes may end by themselves, and the restart is possible then."""
    if not event.refused:
        return phase.stage == "inspect"
    return phase.stage in ("kill", "inspect") or (phase.stage == "term" and isinstance(job.want, Finish))


def leaves_node(job: Job, event: ev.Survived) -> bool:
    """Whether the node is not to be blamed: the signal was never delivered; or the command has ended by itself, and
    what it has left behind does not change its status."""
    by_command = isinstance(job.want, Finish) and job.want.verdict in BY_COMMAND and not event.command
    return event.refused or by_command


def accepted(job: Job, event: ev.Survived) -> tuple[Job, Effects]:
    """The job ends beside them; it is never started again beside them."""
    reason = "no permission to signal it (CAP_KILL)" if event.refused else "SIGKILL has no effect"
    cannot = f"cannot end {'; '.join(event.processes)}: {reason}"
    if isinstance(job.want, Finish):
        text = f"{cannot}; the exit code stays {job.want.code}"
        return job, (do.Persist("problem", (("what", text),)), do.Say(text))
    why = words.short(f"no restart beside what is left: {cannot}", words.REASON)
    again = job.want if isinstance(job.want, Again) else Again("hang")
    if again.own is not None:  # as without us
        want = Finish(again.own, exitcode.FAILED, why)
    else:
        want = finish_with(exitcode.HANG_LIMIT, why)
    return job._replace(want=want), (escalation(again.reason, want), do.Say(words.sentence(why, ending(want))))
