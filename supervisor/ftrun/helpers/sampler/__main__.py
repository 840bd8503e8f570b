"""Says each period what the command's tree does: `main([PERIOD])`, in seconds.

`{"ask": "tree", "root": PID, "spared": [PID...]}` on stdin names the tree, each time the command was started; a new one
is answered by `begun`, so that it is never silent for longer than a period or an attempt.  In here
and not in PID 1, because `/proc/<pid>/io` waits for a lock that a process stuck in exec may hold.
"""

import json
import os
import select
import sys
import time
from collections.abc import Container, Sequence

from ftrun.helpers.evidence.processes import carries, tree
from ftrun.helpers.sampler.counters import Count, Process, counts, done
from ftrun.host import procfs
from ftrun.host.procfs import Stat
from ftrun.wire.helpers import LINE_LIMIT


def main(argv: Sequence[str]) -> int:
    period, asked, rest = float(argv[0]), (0, frozenset[int]()), b""
    before: dict[Process, Count] = {}
    since = due = time.monotonic()
    while True:
        ready, _, _ = select.select([0], [], [], max(0.0, due - time.monotonic()) if asked[0] else None)
        if ready:
            content = os.read(0, LINE_LIMIT)
            if not content:
                return 0
            *lines, rest = (rest + content).split(b"\n")
            root = asked[0]
            for line in lines:
                asked = _asked(line) or asked
            if asked[0] != root:  # others may be spared from now on while the same tree is sampled
                _say("begun", root=asked[0])  # who restarts more often than we sample would take us for stuck
                since, before = time.monotonic(), counts(_members(asked, {}))
                due = since + period
        elif time.monotonic() >= due:
            now = time.monotonic()
            after = counts(_members(asked, before))
            work, seconds = done(before, after), now - since
            rates = {"cpu": work.cpu / seconds, "io": work.io / seconds}
            _say("sample", mono=now, seconds=seconds, **rates, processes=work.processes, root=asked[0])
            before, since, due = after, now, now + period


def _say(event: str, **more: object) -> None:
    os.write(1, json.dumps({"event": event} | more).encode() + b"\n")


def _asked(line: bytes) -> tuple[int, frozenset[int]] | None:
    try:
        found = json.loads(line)
        return int(found["root"]), frozenset(int(pid) for pid in found["spared"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _members(asked: tuple[int, frozenset[int]], before: Container[Process]) -> list[Stat]:
    """The tree, and those of `before` that nobody has waited for yet."""
    (root, spared), everyone = asked, procfs.everyone()
    zombies = [process for process in everyone if process.ended and (process.pid, process.start) in before]
    return tree(everyone, root, spared | {os.getpid()}, carries(root)) + zombies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
