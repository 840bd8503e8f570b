"""What is known of a job when it is over: plain values, for whoever judges it."""

from typing import Any, NamedTuple

from proof.chaos.plan import Fault, Job

Record = dict[str, Any]


class Struck(NamedTuple):
    """A fault that was done: from `at` to `until` by the clock of the ftrun number `life`, while the start `attempt`
    was under way (0: none yet).  `pid` is that of who was struck, as seen from outside."""

    fault: Fault
    at: float
    life: int
    attempt: int
    pid: int = 0
    until: float = 0.0


class Life(NamedTuple):
    """One ftrun.  `code`: as a shell has it; None: it did not end in time.  `killed`: by us.  `state`: the state.json
    that it began with; `late`: for how long, in s, we ourselves were not awake meanwhile."""

    records: tuple[Record, ...]
    code: int | None
    killed: bool = False
    state: bytes | None = None
    stderr: str = ""
    late: float = 0.0

    @property
    def refused(self) -> bool:
        """It started nothing, or could not be started itself (1), and the next one was."""
        return self.code in (1, 2, 125) and not self.records


class Seen(NamedTuple):
    """`attempts`: what the training wrote down; `left`: processes; `beats`: beat folders; `verdict`: the termination
    message; `orders`: how ftctl ended; `copied`: a run dir on a slow disk is as the local one; `unread`: lines of the
    records that are none."""

    job: Job
    lives: tuple[Life, ...]
    struck: tuple[Struck, ...] = ()
    attempts: tuple[Record, ...] = ()
    left: tuple[str, ...] = ()
    beats: tuple[str, ...] = ()
    verdict: Record | None = None
    orders: tuple[int, ...] = ()
    copied: bool = True
    unread: int = 0
    seconds: float = 0.0
