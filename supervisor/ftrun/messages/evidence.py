"""What PID 1 and the helper `evidence` say to each other: a closer look at a job that is suspected to hang."""

from typing import Final, NamedTuple

from ftrun.core.machine.values import Finding
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem
from ftrun.messages.probe import Device


class RankSeen(NamedTuple):
    """A rank as last seen; the names of its open sections, the innermost last."""

    rank: int
    pid: int
    present: bool = True
    alive_at: float | None = None
    moved_at: float | None = None
    step: int | None = None
    done: bool = False
    sections: tuple[str, ...] = ()


class Question(NamedTuple):
    """The request that it is started with.  Times are CLOCK_MONOTONIC seconds.  `root`: the command.  `spared`:
    processes that, with all below them, are not the job's.  `between`: from look to look.  `timeout`: for everything.
    `patience`: the age of the silence, in seconds, up to which a wait that somebody outside the job may end clears it;
    None: no such wait does."""

    run_dir: str
    attempt: int
    finding: Finding
    root: int
    now: float
    spared: tuple[int, ...] = ()
    ranks: tuple[RankSeen, ...] = ()
    devices: tuple[Device, ...] = ()
    output: tuple[str, ...] = ()
    between: float = 3.0
    timeout: float = 25.0
    patience: float | None = None


class Evidenced(NamedTuple):
    """Its last message.  `cleared`: what speaks for the job, or None.  `why`: where the suspect is, or empty.  `cpu`,
    `io`: cores and bytes a second of the suspect's family; `processes`: in the tree.  `report`: the path, or None where
    it could not be written.  `waits`: the suspect's stack shows that it waits for others."""

    cleared: str | None
    why: str
    cpu: float
    io: int
    processes: int
    report: str | None
    waits: bool


Event = Evidenced | Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Evidenced, Problem)
