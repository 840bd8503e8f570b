"""Everything pyzmq: `python -m ftrun.helpers.courier RUN_DIR BEAT_DIR`, started by PID 1 after the command.

In the run dir: `ftctl.sock`, the control channel (channel.py); `records.sock`, a stream of the records (stream.py); and
`steps.jsonl`, how far training was when (steps.py).  stdin and stdout are one stream socket.  JSON lines come out:
    {"event": "order", "id": ID, "verb": V, "by": TEXT, "lasting": S | null,     an order of an operator; not
     "until": T}                                         to be obeyed after that, of time.monotonic()
    {"event": "problem", "what": TEXT}                   one line for a person, each at most once
Requests come in:
    {"ask": "answer", "id": ID, "ok": B, "why": TEXT}    what became of that order
    {"ask": "attempt", "number": N}                      the attempt that is under way
It ends with 0 when stdin ends or nobody reads any more, with 1 after a problem that it did not expect.
"""

import os
import resource
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ftrun.helpers.courier.channel import Channel
from ftrun.helpers.courier.steps import Steps
from ftrun.helpers.courier.stream import Stream
from ftrun.helpers.lines import Lines, run

MOST: Final = 96 << 20  # bytes; it needs 10 MiB


def main(argv: Sequence[str]) -> int:
    return run(partial(_run, argv))


def _run(argv: Sequence[str], lines: Lines) -> None:
    import zmq

    # What clients make it hold is not the job's: beyond that it dies, and comes again.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST, MOST))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run_dir, beat_dir = argv
    os.chdir(run_dir)  # the path of a socket may have 107 bytes: names are relative to here
    os.umask(0o177)  # from its first moment a socket is for this user, and root
    context = zmq.Context(io_threads=1)
    channel, stream, steps = Channel(context, lines), Stream(context, lines), Steps(beat_dir, lines)
    poller = zmq.Poller()
    for source in (0, channel.socket, stream.fd):
        if source is not None:
            poller.register(source, zmq.POLLIN)
    try:
        while not lines.ended:
            now = time.monotonic()
            due = min(channel.due, stream.due, steps.due)
            ready = dict(poller.poll(int(max(0.0, due - now) * 1000) + 1))
            now = time.monotonic()
            for request in lines.requests(0.0) if 0 in ready else ():
                if request["ask"] == "attempt":
                    steps.attempt = int(request["number"])
                else:
                    channel.answer(request)
            channel.tend(now)
            if stream.fd in ready:
                poller.unregister(stream.fd)  # until the batch is sent
                stream.changed(now)
            elif now >= stream.due:
                stream.send()
                poller.register(stream.fd, zmq.POLLIN)
            steps.tend(now)
    finally:
        context.destroy(linger=200)  # ms, for the last answers


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
