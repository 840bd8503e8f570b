"""What the members of a group have to know of each other to see a deadlock over several of them.  Pure values.

`Link` and `Blocked` have the fields of `OutsideLink` and `BlockedProcess`, which ftrun sends to other members
(ftrun/core/group/waits.py): this package imports nothing of ftrun, and nothing that PID 1 loads imports this package.
"""

from typing import NamedTuple


class Link(NamedTuple):
    """A TCP connection whose other end is not in this process tree.  `holders`: the indexes of the processes that have
    it open.  `moved`: bytes received, and sent and acknowledged.  `closed`: only these processes have it open, and no
    data waits in it, in either direction.  `launchers`: only launchers of ranks have it open, which exchange signs of
    life and say nothing about ranks."""

    local: str
    remote: str
    holders: tuple[int, ...] = ()
    moved: int = 0
    closed: bool = False
    launchers: bool = False


class Blocked(NamedTuple):
    """A process of which no thread can run by itself.  `rank`: None if the process is no rank.  `text`: what its main
    thread waits for; `collective`: the name of the collective in which it waits, or empty.  `stopped`: by a signal.
    `needs`: the processes of this tree, and `links`: the connections, that may end one of its waits.  `listens`: so may
    a rank of the job that connects."""

    pid: int
    rank: int | None = None
    text: str = ""
    collective: str = ""
    stopped: bool = False
    needs: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    listens: bool = False


class GroupWaits(NamedTuple):
    """`fingerprint`: a hash over all threads of `processes`, equal for two looks if none of them has run in between.
    `processes`: empty if the job moves.  `size`: the number of ranks of the job, if it is known.  `why`: why the ranks
    of this tree may go on by themselves, or empty."""

    fingerprint: str = ""
    processes: tuple[Blocked, ...] = ()
    links: tuple[Link, ...] = ()
    size: int | None = None
    why: str = ""
