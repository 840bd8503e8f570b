"""What is to be done, in the imperative and in this order.  A record comes before anything that others can see."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ftrun.core.machine.values import Fault, Finding


class Persist(NamedTuple):
    """Write this record; `durable`: together with the ledger, on disk before the next effect."""

    event: str
    fields: tuple[tuple[str, object], ...] = ()
    durable: bool = False


class LogLine(NamedTuple):
    text: str


class Spawn(NamedTuple):
    """Start the command; its environment comes from the ledger."""

    number: int


class Forward(NamedTuple):
    signal: int


class Investigate(NamedTuple):
    """Look closely at a suspicion and answer with `EvidenceCollected`."""

    finding: Finding


class Terminate(NamedTuple):
    """SIGTERM (and SIGCONT) to the whole tree; answer with `TreeEnded` when none is left."""


class Kill(NamedTuple):
    """SIGKILL to the whole tree until none is left; answer with `TreeEnded`."""


class Inspect(NamedTuple):
    """Name what SIGKILL did not end; answer with `ProcessesSurvived`, or with `TreeEnded` if none is left after all."""


class Release(NamedTuple):
    """See that no device is held by what was killed; answer with `DevicesReleased`."""


class Heal(NamedTuple):
    """Have this fault cured, and see that it is gone; answer with `HealingFinished`.  None: give up what is being
    healed."""

    fault: Fault | None


class RequestPermission(NamedTuple):
    """Ask whether another ftrun of this job has reached a verdict; answer with `VerdictShared`."""


class Answer(NamedTuple):
    """Tell the operator what became of the order `id`."""

    id: str
    ok: bool
    why: str


class Exit(NamedTuple):
    """`node`: the one that the verdict is about, if it is not this one; `device`: of it."""

    code: int
    verdict: str
    message: str
    node: str | None = None
    device: str | None = None


Effect = (
    Persist
    | LogLine
    | Spawn
    | Forward
    | Investigate
    | Terminate
    | Kill
    | Inspect
    | Release
    | Heal
    | RequestPermission
    | Answer
    | Exit
)


def by_start(effects: Sequence[Effect], before: int, after: int) -> Iterator[tuple[Effect, int]]:
    """Each with the number of the start that it is of: what comes before the record of a restart belongs to the one
    that has ended."""
    restarts = (number for number, one in enumerate(effects) if isinstance(one, Persist) and one.event == "restart")
    first = next(restarts, 0)
    return ((effect, before if number < first else after) for number, effect in enumerate(effects))
