"""Messages between PID 1 and the helpers `heal`, which runs the command that heals a device, and `reset_file`, which
reads the requests in MindCluster's `reset.json` to this container."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem, Ready


class Remedy(NamedTuple):
    """The request that the helper is started with: run `sh -c command` with these variables added, until `until`
    (CLOCK_MONOTONIC).  `timeout`: the time that it was given, in s, for its message."""

    command: str
    timeout: float
    until: float
    environment: dict[str, str]


class Healed(NamedTuple):
    """The last message.  `why` is None if the command succeeded."""

    ok: bool
    why: str | None


HealEvent = Healed | Problem
HEAL_EVENTS: Final[Protocol[HealEvent]] = Protocol("event", HealEvent)


class RankFault(NamedTuple):
    """One fault code of one rank of this container.  `logic`: the number of its chip in the container.  `retry`: the
    class of a fault that a retry may cure; `request`: the platform asks for a retry.  `local`: its number among the
    ranks of this container as the platform counts them; None: these are not known."""

    rank: int
    logic: int
    code: str
    severity: str
    status: str
    retry: str = ""
    local: int | None = None


class Contents(NamedTuple):
    """The content of the file, sent after each change.  `clear`: nothing prevents a start.  `flushing`: the platform
    still collects faults.  `graceful`: all processes of the job have to end.  `retry_time`: number of pods that were
    scheduled again; None without a file.  `one_process`: the processes of the faulty ranks alone have to end."""

    flushing: bool = False
    graceful: bool = False
    faults: tuple[RankFault, ...] = ()
    clear: bool = True
    retry_time: int | None = None
    one_process: bool = False


ResetEvent = Ready | Contents | Problem
RESET_EVENTS: Final[Protocol[ResetEvent]] = Protocol("event", ResetEvent)
