"""Says each period what the command's tree does: `main([PERIOD])`, in seconds.

`Tree` on stdin names the tree, each time the command was started (messages/sampler.py); a new one is answered by
`Begun`,
so that it is never silent for longer than a period or an attempt.  In here and not in PID 1, because `/proc/<pid>/io`
waits for a lock that a process stuck in exec may hold.
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
    period, asked, rest = float(argv[0]), Tree(0, ()), b""
    before: dict[Process, Count] = {}
    since = due = time.monotonic()
    while True:
        ready, _, _ = select.select([0], [], [], max(0.0, due - time.monotonic()) if asked.root else None)
        if ready:
            content = os.read(0, LINE_LIMIT)
            if not content:
                return 0
            *lines, rest = (rest + content).split(b"\n")
            root = asked.root
            for line in lines:
                asked = _asked(line) or asked
            if asked.root != root:  # others may be spared from now on while the same tree is sampled
                _say(Begun(asked.root))  # who restarts more often than we sample would take us for stuck
                since, before = time.monotonic(), counts(_members(asked, {}))
                due = since + period
        elif time.monotonic() >= due:
            now = time.monotonic()
            after = counts(_members(asked, before))
            work, seconds = done(before, after), now - since
            rates = work.cpu / seconds, work.io / seconds
            _say(Sample(now, seconds, *rates, processes=work.processes, root=asked.root))
            before, since, due = after, now, now + period


def _say(message: Event) -> None:
    write(EVENTS.dump(message))


def _asked(line: bytes) -> Tree | None:
    try:
        return REQUESTS.load(line)
    except Malformed as why:
        _say(Problem(f"malformed request: {why}"))
        return None


def _members(asked: Tree, before: Container[Process]) -> list[Stat]:
    """The tree, and those of `before` that nobody has waited for yet."""
    (root, spared), everyone = asked, procfs.all_processes()
    zombies = [process for process in everyone if process.ended and (process.pid, process.start) in before]
    return tree(everyone, root, frozenset(spared) | {os.getpid()}, carries(root)) + zombies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
