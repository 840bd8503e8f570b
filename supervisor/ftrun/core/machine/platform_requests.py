"""What the platform wants of the command itself: to be ended in order, or to start again with the other pods.

MindCluster says so in `reset.json` (helpers/platform/reset.py): GracefulExit and RetryTime.  That is its explicit word,
so it is obeyed though the command is healthy.  It costs no restart of the budget.
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
    """Where it wants the command to end: SIGTERM, and the time of a stop from outside (`--stop-grace`), or `GRACE`,
    so that it can save.  ftrun stays, for its end would be taken for that of the job, and starts nothing until the
    platform permits it."""
    job, effects = restarting.held(job, phase, event, policy)
    if not event.ends or event.why is None:
        return job, effects
    match phase:
        case Launching():
            return early(job, phase, event, policy)
        case Starting() | Running() | Suspect():
            grace = GRACE if policy.stop_grace is None else policy.stop_grace
            said = sentences.sentence(f"the platform wants this: {event.why}", "ending the command, ftrun stays")
            return await_end(job._replace(want=Restart("peer")), phase.attempt, event.now, grace), (
                do.Persist("platform", (("what", "end"), ("why", event.why))),
                do.Persist("stopping", (("by", "platform"), ("signal", int(signal.SIGTERM)))),
                do.LogLine(said),
                do.Forward(signal.SIGTERM),
            )
    return job, effects


def rescheduled(job: Job, phase: Starting | Running | Suspect, event: ev.Rescheduled, policy: Policy) -> Outcome:
    """The other pods wait for this one."""
    written = do.Persist("platform", (("what", "restart"), ("why", event.why)))
    said = sentences.sentence(event.why, "the command starts again with the others")
    return stop(job._replace(want=Restart("peer")), phase.attempt, event.now, policy, (written,), said)
