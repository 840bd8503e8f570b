"""Requests of the platform about the command: to stop it in an orderly way, or to restart it with the other pods.

MindCluster makes them in `reset.json` (helpers/platform/reset.py): GracefulExit and RetryTime.  They are explicit, so
ftrun follows them even if the command is healthy.  They use up no restart budget.
"""

import signal
from typing import Final

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine import restarting
from ftrun.core.machine.operator import early
from ftrun.core.machine.states import Job, Launching, Phase, Restart, Running, Starting, Suspect
from ftrun.core.machine.stopping import Outcome, await_end, stop
from ftrun.core.rules.policy import Policy
from ftrun.core.text import sentences

GRACE: Final = 600.0  # s from SIGTERM to SIGKILL that MindCluster's own agent gives the processes (taskd, GracefulExit)


def held(job: Job, phase: Phase, event: ev.StartHeld, policy: Policy) -> Outcome:
    """Where the platform requests the end of the command: SIGTERM and the grace of a stop from outside
    (`--stop-grace`), or `GRACE`, so that the command can save.  ftrun itself keeps running, since its end would count
    as the end of the job, and starts nothing until the platform permits it."""
    job, effects = restarting.held(job, phase, event, policy)
    if not event.ends or event.why is None:
        return job, effects
    match phase:
        case Launching():
            return early(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            grace = GRACE if policy.stop_grace is None else policy.stop_grace
            line = sentences.sentence(
                f"requested by the platform: {event.why}", "stopping the command, ftrun keeps running"
            )
            return await_end(job._replace(want=Restart("peer")), phase.attempt, event.now, grace), (
                do.Persist("platform", (("what", "end"), ("why", event.why))),
                do.Persist("stopping", (("by", "platform"), ("signal", int(signal.SIGTERM)))),
                do.LogLine(line),
                do.Forward(signal.SIGTERM),
            )
    return job, effects


def rescheduled(job: Job, phase: Starting | Running | Suspect, event: ev.Rescheduled, policy: Policy) -> Outcome:
    """Restart the command, since the other pods wait for this one."""
    written = do.Persist("platform", (("what", "restart"), ("why", event.why)))
    line = sentences.sentence(event.why, "restarting the command together with the other pods")
    return stop(job._replace(want=Restart("peer")), phase.attempt, event.now, policy, (written,), line)
