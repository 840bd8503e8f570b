"""Everything pyzmq: `python -m ftrun.helpers.messenger RUN_DIR BEAT_DIR [GROUP]`, started by PID 1 after the command.

In the run dir: `ftctl.sock`, the control channel (channel.py); `records.sock`, a stream of the records (stream.py);
and `steps.jsonl`, how far training was when (steps.py).  stdin and stdout are one stream socket; messages/messenger.py
has
what is said on it.  With GROUP (a `messages.peers.Place` in JSON) it also speaks with the other nodes (hub.py at rank
0, member.py).  It ends with 0 when stdin ends or nobody reads any more, with 1 after a problem that it did not expect.
"""

import math
import os
import resource
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ftrun.helpers.lines import Lines, run
from ftrun.helpers.messenger.operator_channel import Channel
from ftrun.helpers.messenger.record_publisher import RecordPublisher
from ftrun.helpers.messenger.steps import Steps
from ftrun.messages import peers
from ftrun.messages.messenger import EVENTS, REQUESTS, Answer, Attempt, Report

if TYPE_CHECKING:
    from ftrun.helpers.messenger.coordinator_link import CoordinatorLink
    from ftrun.helpers.messenger.member_link import MemberLink

MOST: Final = 96 << 20  # bytes; it needs 10 MiB
EACH: Final = 128 << 10  # bytes more of each member at rank 0


def main(argv: Sequence[str]) -> int:
    return run(partial(_run, argv), EVENTS, REQUESTS)


def _run(argv: Sequence[str], lines: Lines) -> None:
    import zmq

    run_dir, beat_dir, *group = argv
    place = _place(group[0]) if group else None
    # What clients make it hold is not the job's: beyond that it dies, and comes again.
    most = MOST if place is None else MOST + place.size * EACH
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(run_dir)  # the path of a socket may have 107 bytes: names are relative to here
    os.umask(0o177)  # from its first moment a socket is for this user, and root
    context = zmq.Context(io_threads=1)
    channel, stream, steps = Channel(context, lines), RecordPublisher(context, lines), Steps(beat_dir, lines)
    link = None if place is None else _link(place, beat_dir, lines)
    poller = zmq.Poller()
    for source in (0, channel.socket, stream.fd, *(() if link is None else link.sources)):
        if source is not None:
            poller.register(source, zmq.POLLIN)
    try:
        while not lines.ended:
            now = time.monotonic()
            due = min(channel.due, stream.due, steps.due, math.inf if link is None else link.due)
            ready = dict(poller.poll(int(max(0.0, due - now) * 1000) + 1))
            now = time.monotonic()
            for request in lines.requests(0.0) if 0 in ready else ():
                match request:
                    case Attempt(number):
                        steps.attempt = number
                    case Report(report) if link is not None:
                        link.take(peers.cleaned(report), now)
                    case Answer():
                        channel.answer(request)
            channel.tend(now)
            if stream.fd in ready:
                poller.unregister(stream.fd)  # until the batch is sent
                stream.changed(now)
            elif now >= stream.due:
                stream.send()
                poller.register(stream.fd, zmq.POLLIN)
            steps.tend(now)
            if link is not None:
                link.tend(now)
    finally:
        if link is not None:
            link.close(lines.ended)
        context.destroy(linger=200)  # ms, for the last answers


def _place(word: str) -> peers.MemberAddress:
    place = peers.load_place(word)
    return place._replace(secret=place.secret and os.path.abspath(place.secret))  # we go to the run dir


def _link(place: peers.MemberAddress, beat_dir: str, lines: Lines) -> "CoordinatorLink | MemberLink":
    if place.rank:
        from ftrun.helpers.messenger.member_link import MemberLink as Link
    else:
        from ftrun.helpers.messenger.coordinator_link import CoordinatorLink as Link  # type: ignore[assignment]
    return Link(place, beat_dir, lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
