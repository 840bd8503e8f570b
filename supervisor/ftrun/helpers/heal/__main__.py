"""Runs what heals a device: `python -m ftrun.helpers.heal JSON`, started by PID 1.

The one word is a `Remedy` (messages/heal.py): its command is run by `sh -c` in a session of its own; its output goes to
stderr.  `HealingFinished` is the last that it says ("it ended with 3", "it did not end within 5m", ...); by then
nothing of the
command is left, what it left in the background included.  When stdin ends before, all of it is killed just the same,
and nothing is said.  It ends with 0, or with 1 after a `problem`.
"""

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ftrun.core.text import durations
from ftrun.helpers.evidence.processes import below
from ftrun.helpers.heal.children import Children, why
from ftrun.helpers.lines import Lines, run
from ftrun.host import procfs, spawn, tree
from ftrun.host.procfs import Stat
from ftrun.messages.codec import EXACT
from ftrun.messages.heal import EVENTS, Healed, Remedy

LAST: Final = 10.0  # s in which SIGKILL ends all but what is stuck in the kernel
TURN: Final = 0.1  # s between looks for what forked meanwhile


def main(argv: Sequence[str]) -> int:
    return run(partial(_run, argv), EVENTS)


def _run(argv: Sequence[str], lines: Lines) -> None:
    remedy = EXACT.load(Remedy, argv[0])
    spawn.become_subreaper()  # a daemon's parent is gone: it comes to us, and is ended
    children = Children(lines)
    failure = _apply(remedy, children)
    listening = not lines.ended
    stuck = _end_all(children)
    if stuck:
        failure = f"{failure or 'it ended'}; SIGKILL does not end {'; '.join(map(procfs.describe, stuck[:4]))}"
    if listening:
        lines.say(Healed(failure is None, failure))


def _apply(remedy: Remedy, children: Children) -> str | None:
    """Why it has not healed."""
    try:
        pid = children.start(["sh", "-c", remedy.command], remedy.environment, with_us=True)
    except (OSError, ValueError) as error:
        return f"it cannot be started: {error}"
    code = children.wait(pid, time.monotonic() + remedy.timeout)
    return f"it did not end within {durations.seconds(remedy.timeout)}" if code is None else why(code)


def _end_all(children: Children) -> list[Stat]:
    """What SIGKILL did not end.  Orphans are ours: no child of ours is left only if nothing is."""
    until = time.monotonic() + LAST
    while children.reap():
        tree.kill(_ours)
        if time.monotonic() >= until:
            return _ours()
        children.listen(TURN)
    return []


def _ours() -> list[Stat]:
    everyone = procfs.all_processes()
    pids = below(os.getpid(), everyone) - {os.getpid()}
    return [process for process in everyone if process.pid in pids and not process.ended]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
