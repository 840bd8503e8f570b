"""Report saved checkpoints: `checkpoint_watcher [--since=TIME] GLOB...`, started by PID 1.

The messages are in messages/activity.py: `Ready` when the existing matches are known, which are no progress unless they
were written since TIME, of time.monotonic(); then `Saved`.  `GetRest` is answered by what is complete now that the
command has ended, then `AllSent`.  It may block on a disk that does not respond; no process waits for it.  Memory:
about 250 bytes for each match, at most 200,000 of them, and 2 KiB for each folder on the way, at most 16,384.
"""

import os
import select
import signal
import time
from typing import Final

from ftrun.helpers.checkpoint_watcher.folders import Folders
from ftrun.helpers.checkpoint_watcher.globs import Globs, parse
from ftrun.helpers.checkpoint_watcher.matches import Matches
from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.host.inotify import Inotify
from ftrun.messages.activity import SINCE, WATCHER_EVENTS, WATCHER_REQUESTS, AllSent
from ftrun.messages.helpers import Ready

BATCH: Final = 0.1  # s: continuous events wake this helper, and PID 1, at most 10 times per second
AT_ONCE: Final = 1000  # of matches saved at the same instant only the last ones are reported: one would suffice


@helper(WATCHER_EVENTS, WATCHER_REQUESTS)
def main(globs: list[str], lines: ProtocolLines) -> None:
    since = None
    if globs and globs[0].startswith(SINCE):
        since = time.time_ns() - round((time.monotonic() - float(globs[0].removeprefix(SINCE))) * 1e9)
        globs = globs[1:]
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # raised by a lease (disk.busy)
    parsed = Globs([parse(glob, "" if glob.startswith("/") else os.getcwd()) for glob in globs])
    notify = None
    try:
        notify = Inotify()
    except OSError as error:
        lines.problem(f"no inotify ({error.strerror}; fs.inotify.max_user_instances?): folders are listed instead")
    mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)  # before the first look: no change is missed
    matches = Matches(parsed)
    folders = Folders(parsed, matches, notify, lines.problem, since)
    _send_saved(matches, lines)
    lines.send(Ready())

    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(mounts, select.POLLPRI)  # after each mount and unmount (proc(5))
    if notify is not None:
        poll.register(notify.fd, select.POLLIN)
    while True:
        ready = dict(poll.poll(_until(matches.due(), folders.due())))
        asked = lines.requests(0.0) if 0 in ready else []
        if lines.ended:
            return
        if mounts in ready:
            poll.unregister(mounts)  # until the next round: mounts may be continuous
            folders.remounted()
        events = notify.read() if notify is not None and (asked or notify.fd in ready) else []
        for event in events:
            folders.on(event)
        for event in notify.read() if asked and notify is not None else ():  # of folders that are watched only now
            folders.on(event)
        matches.look()
        due = folders.due()
        if due is not None and due <= time.monotonic():
            folders.round()
            poll.register(mounts, select.POLLPRI)
        if asked:
            matches.count_unopened()
        _send_saved(matches, lines)
        for _ in asked:
            lines.send(AllSent())
        if events:
            lines.has_requests(BATCH)


def _until(*times: float | None) -> float | None:
    """Milliseconds until the earliest time; None: forever."""
    due = min((at for at in times if at is not None), default=None)
    return None if due is None else max(0.0, (due - time.monotonic()) * 1000 + 1)


def _send_saved(matches: Matches, lines: ProtocolLines) -> None:
    for saved in matches.saved[-AT_ONCE:]:
        lines.send(saved)
    matches.saved.clear()
