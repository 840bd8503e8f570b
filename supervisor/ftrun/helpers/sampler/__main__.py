"""Reports the activity of the process tree of the command once a period: `main([PERIOD])`, in seconds.

A `Tree` on stdin names the tree after each start of the command (messages/sampler.py).  A new tree is confirmed by
`Begun`, so that the sampler is never silent for longer than a period or an attempt.  It is not part of PID 1 because
reading `/proc/<pid>/io` waits for a lock that a process blocked in exec may hold.
"""

import os
import select
import sys
import time
from collections.abc import Container, Sequence

from ftrun.helpers.evidence.processes import carries, tree
from ftrun.helpers.lines import write
from ftrun.helpers.sampler.counters import Count, Process, counts, done
from ftrun.host import procfs
from ftrun.host.procfs import Stat
from ftrun.messages.codec import Malformed
from ftrun.messages.helpers import LINE_LIMIT, Problem
from ftrun.messages.sampler import EVENTS, REQUESTS, Begun, Event, Sample, Tree


def main(argv: Sequence[str]) -> int:
    period, sampled, partial = float(argv[0]), Tree(0, ()), b""
    before: dict[Process, Count] = {}
    since = due = time.monotonic()
    while True:
        ready, _, _ = select.select([0], [], [], max(0.0, due - time.monotonic()) if sampled.root else None)
        if ready:
            content = os.read(0, LINE_LIMIT)
            if not content:
                return 0
            *lines, partial = (partial + content).split(b"\n")
            root = sampled.root
            for line in lines:
                sampled = _parse(line) or sampled
            if sampled.root != root:  # for the same tree only the spared processes may change
                # Otherwise a command that restarts more often than once a period would never get a message.
                _send(Begun(sampled.root))
                since, before = time.monotonic(), counts(_processes(sampled, {}))
                due = since + period
        elif time.monotonic() >= due:
            now = time.monotonic()
            after = counts(_processes(sampled, before))
            work, seconds = done(before, after), now - since
            rates = work.cpu / seconds, work.io / seconds
            _send(Sample(now, seconds, *rates, processes=work.processes, root=sampled.root))
            before, since, due = after, now, now + period


def _send(message: Event) -> None:
    write(EVENTS.dump(message))


def _parse(line: bytes) -> Tree | None:
    try:
        return REQUESTS.load(line)
    except Malformed as why:
        _send(Problem(f"malformed request: {why}"))
        return None


def _processes(sampled: Tree, before: Container[Process]) -> list[Stat]:
    """The processes of the tree, and those of `before` that are zombies now."""
    (root, spared), everyone = sampled, procfs.all_processes()
    zombies = [process for process in everyone if process.ended and (process.pid, process.start) in before]
    return tree(everyone, root, frozenset(spared) | {os.getpid()}, carries(root)) + zombies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
