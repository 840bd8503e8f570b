"""All communication over ZeroMQ: `messenger RUN_DIR BEAT_DIR [GROUP]`, started by PID 1 after the command.

It creates in the run dir: `ftctl.sock` (operator_channel.py), `records.sock` (record_publisher.py), `steps.jsonl`
(steps.py) and `paces.json` (paces.py).  stdin and stdout are one stream socket, with the messages of
messages/messenger.py.  With GROUP (a `messages.peers.MemberAddress` as JSON) it also communicates with the other nodes
(group_link.py: coordinator_link.py at rank 0, member_link.py elsewhere).
"""

import os
import resource
import time
from functools import partial
from typing import Any, Final

from ftrun.core.machine.effects import AnswerOperator
from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.helpers.messenger.imports import ImportsSeeker
from ftrun.helpers.messenger.paces import Paces
from ftrun.helpers.messenger.steps import Steps, read_slots
from ftrun.messages import peers
from ftrun.messages.messenger import EVENTS, REQUESTS, AttemptNumber, ChangedReport, SeekImports

MEMORY: Final = 96 << 20  # bytes; it needs 10 MiB
MEMORY_PER_MEMBER: Final = 160 << 10  # further bytes for each member at rank 0; it needs 66 KiB, and UNREAD messages


@helper(EVENTS, REQUESTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    import zmq  # here, so that a missing package is reported as a problem

    from ftrun.helpers.messenger.operator_channel import OperatorChannel
    from ftrun.helpers.messenger.record_publisher import RecordPublisher

    run_dir, beat_dir, *group = argv
    address = peers.load(peers.MemberAddress, group[0].encode()) if group else None
    if address is not None and address.secret is not None:  # the working directory changes to the run dir
        address = address._replace(secret=os.path.abspath(address.secret))
    # Clients must not use up the memory of the job: beyond this limit the messenger dies, and is restarted.
    limit = MEMORY if address is None else MEMORY + address.size * MEMORY_PER_MEMBER
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(run_dir)  # the path of a socket is limited to 107 bytes, so names are relative to here
    os.umask(0o177)  # only this user and root can ever open the sockets
    context = zmq.Context(io_threads=1)
    channel, publisher, steps = OperatorChannel(context, lines), RecordPublisher(context, lines), Steps(beat_dir, lines)
    link = seeker = None
    if address is not None:
        from ftrun.helpers.messenger.group_link import GroupLink

        link = GroupLink(address, beat_dir, lines)
        channel.ask, seeker = link.ask, ImportsSeeker(lines, link)
    paces = Paces(lines if link is None else None)
    poller = zmq.Poller()
    for source in (0, channel.socket, publisher.fd):
        if source is not None:
            poller.register(source, zmq.POLLIN)
    of_link: tuple[Any, ...] = ()
    try:
        while not lines.ended:
            now = time.monotonic()
            due = min(channel.due, publisher.due, steps.due, paces.due)
            if link is not None and seeker is not None:
                due = min(due, link.due, seeker.due)
            if link is not None and of_link != link.sources:
                for one in of_link:
                    poller.unregister(one)
                of_link = link.sources
                for one in of_link:
                    poller.register(one, zmq.POLLIN)
            ready = dict(poller.poll(int(max(0.0, due - now) * 1000) + 1))
            now = time.monotonic()
            for request in lines.requests(0.0) if 0 in ready else ():
                match request:
                    case AttemptNumber(number):
                        steps.attempt = number
                    case ChangedReport(report) if link is not None:
                        link.set_report(peers.bounded(report), now)
                    case SeekImports() if seeker is not None:
                        seeker.begin(now)
                    case AnswerOperator():
                        channel.reply(request)
            channel.process(now)
            if publisher.fd in ready:
                poller.unregister(publisher.fd)  # until the batch has been sent
                publisher.changed(now)
            elif now >= publisher.due:
                publisher.send()
                poller.register(publisher.fd, zmq.POLLIN)
            steps.record(now)
            paces.follow(partial(read_slots, beat_dir), steps.attempt, now)
            if link is not None and seeker is not None:
                link.process(now)
                seeker.process(now)
    finally:
        if link is not None:
            link.close(lines.ended)
        context.destroy(linger=200)  # ms, for the last replies
