"""Looks twice at a job that is suspected to hang, says what it saw, and writes the report: started by PID 1.

The one word is the `Question` (messages/evidence.py). `EvidenceCollected` is the last that it says, and comes within
`timeout` s:
as soon as both looks are done and the report is safe on disk. After it only what was late is added to the report.  It
ends with 0 then, or when stdin ends, and with 2 for a question that it does not understand.  It may block on whatever
the job blocks on: it is a process of its own for that.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from ftrun.helpers.evidence.investigation import Investigation
from ftrun.helpers.evidence.request import parse
from ftrun.helpers.lines import write
from ftrun.messages.codec import Malformed
from ftrun.messages.evidence import EVENTS, Event
from ftrun.messages.helpers import Problem

SPARE: Final = 1.0  # s before the end at which we say what we have


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; we end with PID 1
    try:
        request = parse(argv[0])
    except Malformed as why:
        _say(Problem(f"evidence: malformed request: {why}"))
        return 2
    until = time.monotonic() + max(request.timeout - SPARE, SPARE)
    investigation = Investigation(request, _say)
    done, end = os.pipe()
    threading.Thread(target=_run, args=(investigation, until, end), daemon=True).start()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(done, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        ready = dict(poll.poll(left * 1000 + 1))
        if done in ready or (0 in ready and not os.read(0, 65536)):
            break
    else:
        investigation.give_up("nothing was seen in time")
    os._exit(0)  # some thread may be stuck in the kernel


def _run(investigation: Investigation, until: float, end: int) -> None:
    try:
        investigation.run(until)
    except Exception as error:
        investigation.give_up(f"looking failed: {error!r}")
    os.close(end)


def _say(message: Event) -> None:
    try:
        write(EVENTS.dump(message))
    except OSError:
        pass  # nobody listens any more


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
