"""What all helper clients have in common, and what they know together."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from ftrun.config.option_table import Settings
from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Job
from ftrun.core.machine.values import Ledger
from ftrun.core.rules.idle import DeviceUse
from ftrun.core.rules.policy import Policy
from ftrun.host.helpers import Helpers
from ftrun.host.output_pipes import OutputPipes
from ftrun.host.tree import Tree
from ftrun.host.work_dir import WorkDir
from ftrun.messages.codec import Malformed, Protocol
from ftrun.messages.helpers import Problem

if TYPE_CHECKING:
    from ftrun.config.group_config import Group
    from ftrun.messages.probe import Device

SETTLED: Final = 1.0  # s until a helper that may wait is started: a command's first second is its own
REFUSALS: Final = 16  # different malformed messages of one helper that are recorded
Record = tuple[str, tuple[tuple[str, object], ...], str | None]  # its name, its fields, a line for the operator
Message = TypeVar("Message", bound=tuple[Any, ...])


class Context:
    """What the clients work with, and what one of them has found out that another needs.

    `records`: to be written down.  `idle_period`: seconds between two samples of the idle rule.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        helpers: Helpers,
        tree: Tree,
        place: WorkDir,
        beat_dir: str,
        captured: OutputPipes,
        group: "Group | None",
        idle_period: float,
    ) -> None:
        self.settings, self.policy, self.helpers, self.tree = settings, policy, helpers, tree
        self.place, self.beat_dir, self.captured, self.group = place, beat_dir, captured, group
        self.idle_period = idle_period
        self.records: list[Record] = []
        self.attempt = 0  # the last that was started
        self.command = 0  # the pid of the last that was executed
        self.ledger: Ledger | None = None
        self.running: dict[str, Client[Any]] = {}  # by the name of the helper
        self.devices: tuple[Device, ...] = ()  # as the probe saw them last
        self.uses: Callable[[float], tuple[DeviceUse, ...]] = _none  # all looks at the devices since the last call
        self.barred: frozenset[str] = frozenset()  # devices on which the platform permits no start
        self.reported: frozenset[tuple[str, str]] = frozenset()  # faults by the platform: the device and the code


def _none(now: float) -> tuple[DeviceUse, ...]:
    return ()


class Client(Generic[Message]):
    """The side of one helper that is in PID 1: what is run, what it is asked, and what its messages mean as events.

    No method waits.  A helper that is silent, dead or sends nonsense costs a record and nothing else.
    """

    name: ClassVar[str]  # of the helper, in records too
    aloud: ClassVar[bool] = False  # its problems are lines too, since it serves the operator
    requests: Protocol[Any]
    events: Protocol[Any]

    def __init__(self, context: Context) -> None:
        self.context = context
        self.awaited: set[str] = set()  # what is to be done before ftrun ends
        self._refused: set[str] = set()
        self.start()

    # --- what a client defines, as far as its helper needs it -------------------------------------------------------

    def start(self) -> None:
        """Have the helper run, where it does so from the beginning."""

    def handle(self, message: Message, now: float) -> list[ev.Event]:
        return []

    def ended(self, now: float) -> list[ev.Event]:
        """The helper was to run once, and has ended; its last message came before."""
        return []

    def finish(self) -> str | None:
        """At the very end, when waiting is allowed: what the helper has to complete; a line for the user if it could
        not."""

    def settle(self, now: float) -> list[ev.Event]:
        """All messages that have come are handled: what follows from them together, or from the time."""
        return []

    def spawning(self) -> None:
        """`context.attempt` is about to be started."""

    def spawned(self) -> None:
        """`context.command` was executed."""

    def helpers_started(self) -> None:
        """Some helpers were started, perhaps this one: it knows nothing yet."""

    def follow(self, job: Job, now: float, unexplained: bool) -> None:
        """The job has changed.  `unexplained`: the command has ended, and it is not known yet why."""

    @property
    def deadline(self) -> float | None:
        """When `settle` has something to do, whatever the helper says."""
        return None

    @property
    def unfinished(self) -> set[str]:
        """What is waited for at the very end."""
        return self.awaited

    # --- what all of them do ----------------------------------------------------------------------------------------

    def read(self, line: bytes) -> Message | None:
        """The message of this line; None if there is nothing to handle: a problem of the helper is on record then."""
        try:
            message = self.events.load(line)
        except Malformed as why:
            if len(self._refused) < REFUSALS and str(why) not in self._refused:
                self._refused.add(str(why))
                self.problem(f"malformed message: {why}")
            return None
        if isinstance(message, Problem):
            self.problem(message.what)
            return None
        found: Message = message
        return found

    def tell(self, request: tuple[Any, ...]) -> None:
        self.context.helpers.send(self.name, self.requests.dump(request))

    def problem(self, what: str, aloud: bool = False) -> None:
        """One line for the records; for the operator's screen too if `aloud`."""
        line = f"{self.name}: {what}; the command is not touched" if aloud or self.aloud else None
        self.context.records.append(("problem", (("helper", self.name), ("what", what)), line))
