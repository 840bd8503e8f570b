"""What rank 0 knows of the process of another member, and how it names it."""

import json
import math
from typing import Final

from ftrun.core.group.messages import Report
from ftrun.messages import peers

NAME: Final = 100  # characters


class MemberProcess:
    """One ftrun process of a member."""

    def __init__(self, hello: peers.Hello, hello_frame: bytes = b"") -> None:
        self.hello, self.hello_frame = hello, hello_frame
        self.id, self.fd = b"", -1  # of its connection, if there is one
        self.report, self.seq, self.state = b"", 0, ""
        self.last_seen, self.stamp = 0.0, b""  # when the last message arrived, and the sender's time in it
        self.host = ""  # its address
        self.closed = self.until = math.inf  # when its connection closed, and until when it may reconnect
        self.gone = False  # the coordinator has counted it as lost or left
        self.renews = False  # it has announced that it renews its connection
        self.refused = ""
        self.lease: peers.LeaseView | None = None  # what it knows of the lease, as it said at that time
        self.lease_at = 0.0

    def located(self, report: Report) -> Report:
        """The report, with the address from which it came, where the other members can reach this one."""
        if not self.host:
            return report
        ranks = report.ranks and report.ranks._replace(address=report.ranks.address or self.host)
        return report._replace(address=self.host, ranks=ranks)


def sender(content: bytes) -> str:
    """The sender of a `Hello` for a person, as far as it can be decoded."""
    try:
        found = json.loads(content[: peers.LIMIT])
        return f"member {int(found['rank'])} ({peers.line(str(found['node'])[:NAME])})"
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return "a peer"


def job_text(name: str) -> str:
    return f"the job {name}" if name else "a job without a name"
