"""Looks twice at a job that is suspected to hang, says what it saw, and writes the report: started by PID 1.

The one word is the question (request.py).  JSON lines come out, ASCII:
    {"event": "problem", "what": TEXT}                   one line for a person
    {"event": "evidenced", "cleared": null | WHY,        WHY: what speaks for the job
     "why": TEXT, "cpu": CORES, "io": BYTES_PER_S,       TEXT: where the suspect is, or empty; the rates: its family's
     "processes": N, "report": PATH | null,              N: in the tree; null: it could not be written
     "waits": B}                                         the suspect's stack shows that it waits for others
`evidenced` is the last, and comes within `timeout` s: as soon as both looks are done and the report is safe on disk.
After it only what was late is added to the report.  It ends with 0 then, or when stdin ends, and with 2 for a question
that it does not understand.  It may block on whatever the job blocks on: it is a process of its own for that.
"""

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from ftrun.helpers.evidence.inquiry import Inquiry
from ftrun.helpers.evidence.request import parse

SPARE: Final = 1.0  # s before the end at which we say what we have


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; we end with PID 1
    try:
        request = parse(argv[0])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        _say({"event": "problem", "what": f"evidence: not a question: {error!r}"})
        return 2
    until = time.monotonic() + max(request.timeout - SPARE, SPARE)
    inquiry = Inquiry(request, _say)
    done, end = os.pipe()
    threading.Thread(target=_run, args=(inquiry, until, end), daemon=True).start()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(done, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        ready = dict(poll.poll(left * 1000 + 1))
        if done in ready or (0 in ready and not os.read(0, 65536)):
            break
    else:
        inquiry.give_up("nothing was seen in time")
    os._exit(0)  # some thread may be stuck in the kernel


def _run(inquiry: Inquiry, until: float, end: int) -> None:
    try:
        inquiry.run(until)
    except Exception as error:
        inquiry.give_up(f"looking failed: {error!r}")
    os.close(end)


def _say(line: dict[str, object]) -> None:
    content = json.dumps(line).encode("ascii") + b"\n"
    try:
        while content:
            content = content[os.write(1, content) :]
    except OSError:
        pass  # nobody listens any more


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
