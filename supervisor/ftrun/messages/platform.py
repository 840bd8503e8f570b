"""What the helper `platform` says to PID 1: what MindCluster's `reset.json` asks of this container."""

from typing import Final, NamedTuple

from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem, Ready


class RankFault(NamedTuple):
    """One code of one rank of this container.  `logic`: the number of its chip here."""

    rank: int
    logic: int
    code: str
    severity: str
    status: str


class Platform(NamedTuple):
    """All that the file says, said each time anything of it changes.  `clear`: nothing hinders a start; `flushing`: the
    platform still collects faults; `graceful`: all processes of the job are to end; `retry_time`: pods that were
    scheduled again, None where there is no file."""

    flushing: bool = False
    graceful: bool = False
    restart_process: bool = False
    faults: tuple[RankFault, ...] = ()
    clear: bool = True
    update_time: int = 0
    retry_time: int | None = None


Event = Ready | Platform | Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Ready, Platform, Problem)
