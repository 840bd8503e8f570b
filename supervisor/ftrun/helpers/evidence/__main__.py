"""Examine a job that is suspected to hang, send the result to PID 1, and write the report.  PID 1 starts it.

The only argument is a `Request` (messages/evidence.py).  The last message is a `Reply`; it is sent within `timeout` s,
as soon as the processes were observed twice and the report is safe on disk.  After it the helper only adds to the
report what arrived late.  It exits with 0 then, or when stdin is closed, and with 2 for a malformed request.  It may
block on whatever the job blocks on, which is why it is a separate process.
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
from ftrun.helpers.lines import write
from ftrun.messages.codec import EXACT, Malformed
from ftrun.messages.evidence import EVENTS, Event, Request
from ftrun.messages.helpers import Problem

MARGIN: Final = 1.0  # s before the timeout at which the reply is sent with what is known


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; this helper ends with PID 1
    try:
        request = EXACT.load(Request, argv[0])
    except Malformed as error:
        _send(Problem(f"evidence: malformed request: {error}"))
        return 2
    until = time.monotonic() + max(request.timeout - MARGIN, MARGIN)
    investigation = Investigation(request, _send)
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
        investigation.give_up("the processes could not be observed in time")
    os._exit(0)  # a thread may be stuck in the kernel


def _run(investigation: Investigation, until: float, end: int) -> None:
    try:
        investigation.run(until)
    except Exception as error:
        investigation.give_up(f"the investigation failed: {error!r}")
    os.close(end)


def _send(message: Event) -> None:
    try:
        write(EVENTS.dump(message))
    except OSError:
        pass  # PID 1 does not read any more


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
