"""Reports the activity of the process tree of the command once a period: `main([PERIOD])`, in seconds.

A `SampledTree` on stdin names the tree after each start of the command (messages/activity.py).  A new tree is
confirmed by `Begun`, so that the sampler is never silent for longer than a period or an attempt.  It is not part of
PID 1 because reading `/proc/<pid>/io` waits for a lock that a process blocked in exec may hold.
"""

import os
import time
from collections.abc import Container

from ftrun.helpers.evidence.job_processes import carries, tree
from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.helpers.sampler.counters import Count, Process, activity, counts
from ftrun.host import procfs
from ftrun.host.procfs import Stat
from ftrun.messages.activity import SAMPLER_EVENTS, SAMPLER_REQUESTS, Begun, Sample, SampledTree


@helper(SAMPLER_EVENTS, SAMPLER_REQUESTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    period, sampled = float(argv[0]), SampledTree(0, ())
    before: dict[Process, Count] = {}
    since = due = time.monotonic()
    while True:
        requests = lines.requests(max(0.0, due - time.monotonic()) if sampled.root else None)
        if lines.ended:
            return
        previous, sampled = sampled, (requests or [sampled])[-1]
        if sampled.root != previous.root:  # for the same tree only the spared processes may change
            # Otherwise a command that restarts more often than once a period would never get a message.
            lines.send(Begun(sampled.root))
            since, before = time.monotonic(), counts(processes(sampled, {}))
            due = since + period
        elif sampled.root and time.monotonic() >= due:
            now = time.monotonic()
            after = counts(processes(sampled, before))
            cpu, io = activity(before, after)
            seconds = now - since
            lines.send(Sample(now, seconds, cpu / seconds, io / seconds, processes=len(after), root=sampled.root))
            before, since, due = after, now, now + period


def processes(sampled: SampledTree, before: Container[Process]) -> list[Stat]:
    """The processes of the tree, and those of `before` that are zombies now."""
    (root, spared), everyone = sampled, procfs.all_processes()
    zombies = [process for process in everyone if process.ended and (process.pid, process.start) in before]
    return tree(everyone, root, frozenset(spared) | {os.getpid()}, carries(root)) + zombies
