"""What is (`phase`) and what we want (`want`).  Each phase but Done carries one deadline; None: until an event."""

from typing import Literal, NamedTuple

from ftrun.core.values import Attempt, Fault, Finding, Ledger, Reason


class Pending(NamedTuple):
    """No process; the next start is due at the deadline."""

    deadline: float | None = None


class Launching(NamedTuple):
    """Forked, not yet executed."""

    attempt: Attempt
    deadline: float | None = None


class Starting(NamedTuple):
    """Executed; nothing has moved yet."""

    attempt: Attempt
    deadline: float | None = None


class Running(NamedTuple):
    """Some rank has moved."""

    attempt: Attempt
    deadline: float | None = None


class Suspect(NamedTuple):
    """A limit was passed; evidence is being gathered until the deadline."""

    attempt: Attempt
    finding: Finding
    deadline: float | None = None


class Stopping(NamedTuple):
    """The tree is being ended: `asked` from outside, by SIGTERM (`term`), by SIGKILL (`kill`), or what SIGKILL left
    is being named (`inspect`); or it has ended, and its devices are to become free (`devices`)."""

    attempt: Attempt
    stage: Literal["asked", "term", "kill", "inspect", "devices"]
    deadline: float | None = None


class Healing(NamedTuple):
    fault: Fault
    deadline: float | None = None


class Done(NamedTuple):
    code: int
    deadline: None = None


Phase = Pending | Launching | Starting | Running | Suspect | Stopping | Healing | Done
PHASES: tuple[type[Phase], ...] = (Pending, Launching, Starting, Running, Suspect, Stopping, Healing, Done)


class Keep(NamedTuple):
    """Keep the command running."""


class Again(NamedTuple):
    """Start it again once the tree is dead; `fault`: heal first."""

    reason: Reason
    consecutive: int = 0
    delay: float = 0.0
    fault: Fault | None = None


class Finish(NamedTuple):
    """End.  `own`: with the command's own status where it still gives one; `code` is what holds without one."""

    code: int
    verdict: str
    message: str
    own: bool = False


Want = Keep | Again | Finish


class Job(NamedTuple):
    phase: Phase = Pending()
    want: Want = Keep()
    ledger: Ledger = Ledger()
