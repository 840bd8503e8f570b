"""Look at a job that stands still, or examine one that is suspected to hang, and send the result to PID 1.

The only argument is a `LookRequest` or an `EvidenceRequest` (messages/evidence.py).  A `LookRequest` is answered by a
`Looked`; one that fails or lasts longer than `timeout` s by nothing but a problem.  An `EvidenceRequest` is answered by
a `Reply` within `timeout` s, as soon as the processes were observed twice and the report is safe on disk; after it the
helper only adds to the report what arrived late.  One with `due` is answered after the line `Overdue` on stdin; until
then nothing is written.  It may block on whatever the job blocks on, so it is a process of its own.
"""

import gc
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.lines import write
from ftrun.messages.codec import Malformed
from ftrun.messages.evidence import EVENTS, REQUESTS, EvidenceEvent, EvidenceRequest, LookRequest
from ftrun.messages.helpers import Problem

MARGIN: Final = 1.0  # s before the timeout at which the reply is sent with what is known


class EvidenceWork(NamedTuple):
    """`run` does the work until the given time; `give_up` reports why it could not be completed; `receive` gets what
    comes on stdin."""

    run: Callable[[float], None]
    give_up: Callable[[str], None]
    receive: Callable[[bytes], None]


def main(argv: Sequence[str]) -> int:
    gc.disable()  # a large job is hundreds of thousands of values, and this process ends with its answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; this helper ends with PID 1
    try:
        request = REQUESTS.load(argv[0].encode())
    except Malformed as error:
        _send(Problem(f"malformed request: {error}"))
        return 2
    due = 0.0 if isinstance(request, LookRequest) else request.due or 0.0
    until = max(time.monotonic(), due) + max(request.timeout - MARGIN, MARGIN)
    work = _look(request) if isinstance(request, LookRequest) else _investigation(request)
    done, end = os.pipe()
    threading.Thread(target=_run, args=(work, until, end), daemon=True).start()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(done, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        ready = dict(poll.poll(left * 1000 + 1))
        if done in ready:
            break
        if 0 in ready:
            if not (content := os.read(0, 65536)):
                break
            work.receive(content)
    else:
        work.give_up("the processes could not be observed in time")
    os._exit(0)  # a thread may be stuck in the kernel


def _look(request: LookRequest) -> EvidenceWork:
    from ftrun.helpers.evidence.look import look  # a look is light, so it loads nothing of an investigation

    def give_up(why: str) -> None:
        _send(Problem(why))

    return EvidenceWork(lambda until: _send(look(request)), give_up, lambda content: None)


def _investigation(request: EvidenceRequest) -> EvidenceWork:
    from ftrun.helpers.evidence.investigation import Investigation

    investigation = Investigation(request, _send)
    return EvidenceWork(investigation.run, investigation.give_up, investigation.receive)


def _run(work: EvidenceWork, until: float, end: int) -> None:
    try:
        work.run(until)
    except Exception as error:
        work.give_up(f"an error occurred: {error!r}")
    os.close(end)


def _send(message: EvidenceEvent) -> None:
    try:
        write(EVENTS.dump(message))
    except OSError:
        pass  # PID 1 does not read any more
