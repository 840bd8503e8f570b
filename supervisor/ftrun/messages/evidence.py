"""Messages between PID 1 and the helper `evidence`, which examines a job that stands still, or is suspected to hang."""

from typing import Final

from ftrun.core.machine.events import Looked as Looked
from ftrun.core.machine.values import Finding
from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.group_waits import LookMembership
from ftrun.messages.helpers import Problem
from ftrun.messages.probe import Device

UNKNOWN: Final = "whether the job hangs is not known"  # begins a problem of which that is the consequence


class RankState(NamedTuple):
    """The last known state of a rank.  `sections`: the names of its open sections, the innermost last."""

    rank: int
    pid: int
    present: bool = True
    alive_at: float | None = None
    moved_at: float | None = None
    step: int | None = None
    done: bool = False
    sections: tuple[str, ...] = ()


class LookRequest(NamedTuple):
    """The helper's only argument: look whether anything can still end the wait of a job that stands still.  The answer
    is exactly one `Looked`.  The fields are as in `EvidenceRequest`."""

    root: int
    now: float
    excluded: tuple[int, ...] = ()
    ranks: tuple[RankState, ...] = ()
    devices: tuple[Device, ...] = ()
    between: float = 2.0
    timeout: float = 20.0
    group: LookMembership | None = None
    powers: tuple[tuple[str, float], ...] = ()


class EvidenceRequest(NamedTuple):
    """The helper's only argument: collect evidence about a suspicion.  Times are CLOCK_MONOTONIC seconds.

    `root`: the pid of the command.  `excluded`: processes that do not belong to the job, nor do their descendants.
    `between`: the time between the two observations, and `timeout` the time for everything, in seconds.
    `due`: the limit passes only then; evidence is collected in advance and reported after `Overdue`.  None: it has
    passed.
    `given`: a person has given the time that has passed.
    `powers`: the highest power in watts that each device has drawn so far.
    """

    run_dir: str
    attempt: int
    finding: Finding
    root: int
    now: float
    excluded: tuple[int, ...] = ()
    ranks: tuple[RankState, ...] = ()
    devices: tuple[Device, ...] = ()
    output: tuple[str, ...] = ()
    between: float = 3.0
    timeout: float = 25.0
    given: bool = True
    due: float | None = None
    group: LookMembership | None = None
    powers: tuple[tuple[str, float], ...] = ()

    @property
    def suspect(self) -> int:
        """The process that is suspected: that of the finding, or else the command."""
        return self.finding.pid or self.root

    @property
    def suspects_whole_tree(self) -> bool:
        """Whether the process tree is suspected, and not one process of it."""
        return self.finding.rank is None or not self.finding.pid

    @property
    def uses_device(self) -> bool:
        """Whether one of the devices is busy."""
        return any(device.util is not None and device.util > 0 for device in self.devices)


class Overdue(NamedTuple):
    """A line to the helper, on its stdin: the limit of an `EvidenceRequest` with `due` has passed.  The fields replace
    those of the request."""

    finding: Finding
    now: float
    ranks: tuple[RankState, ...]


class Reply(NamedTuple):
    """The helper's last message about an `EvidenceRequest`.  `cleared`: why the job is not hung, or None.  `why`: where
    the suspect is, or empty.  `cpu`, `io`: cores and bytes per second that the suspect and its descendants use.
    `processes`: their number in the tree.  `report`: its path, or None.  `waits`: the suspect's stack shows that it
    waits for other ranks.  `mechanism`: why it stands still, in one sentence, or empty.  `culprits`: the ranks that
    cause the hang, if that is certain."""

    cleared: str | None
    why: str
    cpu: float
    io: int
    processes: int
    report: str | None
    waits: bool
    mechanism: str = ""
    culprits: tuple[int, ...] = ()


ON_TIME: Final[Protocol[Overdue]] = Protocol("request", Overdue)
EvidenceEvent = Reply | Looked | Problem
EVENTS: Final[Protocol[EvidenceEvent]] = Protocol("event", EvidenceEvent)
REQUESTS: Final[Protocol[EvidenceRequest | LookRequest]] = Protocol("request", EvidenceRequest, LookRequest)
