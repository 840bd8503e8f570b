"""Runs the command that heals a device: `heal JSON`, started by PID 1.

The argument is a `Remedy` (messages/healing.py): its command runs by `sh -c` in a session of its own, with its output
on stderr.  `Healed` is the last message; by then no process of the command is left, background processes included.
When stdin ends earlier, all of them are killed likewise, and no message is sent.
"""

import os
import time
from functools import partial
from typing import Final

from ftrun.core.text import durations
from ftrun.helpers.heal.children import Children, why
from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.host import procfs, spawn, tree
from ftrun.host.procfs import Stat
from ftrun.messages.codec import EXACT
from ftrun.messages.healing import HEAL_EVENTS, Healed, Remedy

KILL_TIMEOUT: Final = 10.0  # s in which SIGKILL ends every process that is not blocked in the kernel
TURN: Final = 0.1  # s between searches for processes forked meanwhile


@helper(HEAL_EVENTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    remedy = EXACT.load(Remedy, argv[0])
    spawn.become_subreaper()  # daemons are reparented to this process, and ended by it
    children = Children(lines)
    failure = _run_command(remedy, children)
    listening = not lines.ended
    survivors = _end_all(children)
    if survivors:
        failure = f"{failure or 'it ended'}; SIGKILL does not end {'; '.join(map(procfs.describe, survivors[:4]))}"
    if listening:
        lines.send(Healed(failure is None, failure))


def _run_command(remedy: Remedy, children: Children) -> str | None:
    """Run the command.  Returns why it failed, or None."""
    try:
        pid = children.start(["sh", "-c", remedy.command], remedy.environment, kill_with_parent=True)
    except (OSError, ValueError) as error:
        return f"it cannot be started: {error}"
    code = children.wait(pid, remedy.until)
    late = f"the heal command did not end within {durations.seconds(remedy.timeout)}"
    return late if code is None else why(code)


def _end_all(children: Children) -> list[Stat]:
    """Kill all processes of the command: the descendants of this subreaper.  Returns those that survive SIGKILL."""
    until = time.monotonic() + KILL_TIMEOUT
    while children.reap():
        tree.kill(_descendants, partial(tree.walk, lambda process: True))
        if time.monotonic() >= until:
            return _descendants()
        children.listen(TURN)
    return []


def _descendants(listings: int = procfs.COMPLETE) -> list[Stat]:
    everyone = procfs.all_processes(listings)
    pids, fresh = set[int](), {os.getpid()}
    while fresh := {process.pid for process in everyone if process.parent in fresh} - pids:
        pids |= fresh
    return [process for process in everyone if process.pid in pids and not process.ended]
