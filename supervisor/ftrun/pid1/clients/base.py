"""Base class of the helper clients, and the context that they share."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from ftrun.config.option_table import Settings
from ftrun.core.group.messages import EpochRun
from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Job
from ftrun.core.machine.values import Ledger
from ftrun.core.rules.idle import DeviceUse
from ftrun.core.rules.policy import Policy
from ftrun.host.helpers import Helpers
from ftrun.host.output_pipes import OutputPipes
from ftrun.host.reaper import ChildChange
from ftrun.host.tree import Tree
from ftrun.host.work_dir import WorkDir
from ftrun.messages.codec import Malformed, Protocol
from ftrun.messages.helpers import UNEXPECTED, Problem

if TYPE_CHECKING:
    from typing import Protocol as StructuralType

    from ftrun.config.group_config import Group
    from ftrun.messages.probe import Device

    class StandbysInterface(StructuralType):
        """The standbys (`pid1/standby.py`), as far as the events of the loop concern them."""

        @property
        def pids(self) -> set[int]: ...
        @property
        def wants_imports(self) -> bool: ...
        def receive_imports(self, content: str) -> None: ...
        def attach(self, context: "Context") -> None: ...
        def follow(self, job: Job) -> None: ...
        @property
        def deadline(self) -> float | None: ...
        def settle(self, now: float) -> None: ...
        def child_changed(self, change: ChildChange, now: float) -> None: ...
        def finish(self, until: float) -> None: ...

    class StandbyRequestInterface(StructuralType):
        """What loads the standbys (`pid1/launching.py`), and gives them to the context."""

        def attach(self, context: "Context") -> None: ...
        def settled(self) -> None: ...


SETTLED: Final = 1.0  # s until work without urgency is done, so that it does not slow down the command's start
PERIODS: Final = 10  # samples in an idle timeout
SHORTEST_PERIOD, LONGEST_PERIOD = 0.2, 60.0  # s
REFUSALS: Final = 16  # different malformed messages and unexpected errors of one helper that are recorded
PreparedRecord = tuple[str, tuple[tuple[str, object], ...], str | None]  # name, fields, and a line for the operator
Message = TypeVar("Message", bound=tuple[Any, ...])


class Context:
    """The objects that all clients use, and the state that one client provides to another.

    `records`: records that PID 1 has yet to write.  `lines`: those that the helper `line_writer` has yet to write, if
    it runs.  `idle_period`: seconds between two samples of the idle rule.  `life`, `buried`: as in `Setup`.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        helpers: Helpers,
        tree: Tree,
        work_dir: WorkDir,
        beat_dir: str,
        output_pipes: OutputPipes,
        group: "Group | None" = None,
        lines: deque[bytes] | None = None,
    ) -> None:
        self.settings, self.policy, self.helpers, self.tree = settings, policy, helpers, tree
        self.work_dir, self.beat_dir, self.output_pipes, self.group = work_dir, beat_dir, output_pipes, group
        self.lines = lines
        self.life = ""
        self.buried: EpochRun | None = None
        idle = policy.limits.idle
        self.idle_period = LONGEST_PERIOD if idle is None else min(max(idle / PERIODS, SHORTEST_PERIOD), LONGEST_PERIOD)
        self.records: list[PreparedRecord] = []
        self.settled = False  # `SETTLED` has passed since the start of PID 1 or of the command
        self.attempt = 0  # number of the last attempt that was started
        self.first_rank = 0  # number of the first rank of this node in the job
        self.command = 0  # pid of the last command that was executed
        self.ledger: Ledger | None = None
        self.running: dict[str, Client[Any]] = {}  # by the name of the helper
        self.standbys: StandbysInterface | None = None
        self.devices: tuple[Device, ...] = ()  # as last reported by the probe
        self.powers: dict[str, float] = {}  # the highest that each device has drawn so far, in watts
        # All samples of the devices since the last call.
        self.uses: Callable[[float], tuple[DeviceUse, ...]] = lambda now: ()
        self.blocked_devices: frozenset[str] = frozenset()  # devices on which the platform permits no start
        self.reported: frozenset[tuple[str, str]] = frozenset()  # faults reported by the platform: device and code
        # The same, with what the platform asks for, and whether its reset has failed.
        self.asked: frozenset[tuple[str, str, str, bool]] = frozenset()

    @property
    def excluded(self) -> tuple[int, ...]:
        """Children of ftrun that do not belong to the job, nor do their descendants."""
        return (*self.helpers.pids, *(() if self.standbys is None else self.standbys.pids))


class Client(Generic[Message]):
    """PID 1's side of one helper: starts it, sends requests, and turns its messages into events.

    No method waits.  A helper that is silent, dead or sends invalid messages causes a record and nothing else.
    """

    name: ClassVar[str]  # of the helper; records use it too
    prints_problems: ClassVar[bool] = False  # because the helper serves the operator
    requests: Protocol[Any]
    events: Protocol[Any]

    def __init__(self, context: Context) -> None:
        self.context = context
        self.awaited: set[str] = set()  # requests that have to be completed before ftrun ends
        self._refused: set[str] = set()
        self.start()

    # --- methods that a client overrides where needed --------------------------------------------------------------

    def start(self) -> None:
        """Start the helper, if it runs from the beginning."""

    def handle(self, message: Message, now: float) -> list[ev.Event]:
        return []

    def finish(self) -> str | None:
        """At the very end, when waiting is allowed: let the helper complete its work.  Returns a line for the user if
        it could not."""

    def settle(self, now: float) -> list[ev.Event]:
        """Called after all received messages are handled, and at `deadline`."""
        return []

    def follow(self, job: Job, now: float, awaits_cause: bool) -> None:
        """The job has changed.  `awaits_cause`: the command has ended, and ftrun still looks for the cause."""

    def on_end(self, now: float) -> list[ev.Event]:
        """The helper, which runs once, has ended; its last message was handled before."""
        return []

    def on_spawning(self) -> None:
        """`context.attempt` is about to be started."""

    def on_spawned(self) -> None:
        """`context.command` was executed."""

    def on_helpers_started(self) -> None:
        """Some helpers were started, perhaps this one; a new helper has no state yet."""

    @property
    def deadline(self) -> float | None:
        """The time at which `settle` has to be called even without a message."""
        return None

    @property
    def unfinished(self) -> set[str]:
        """The requests to wait for at the very end."""
        return self.awaited

    # --- common to all clients ----------------------------------------------------------------------------------------

    def parse(self, line: bytes) -> Message | None:
        """The message of this line; None if the line was malformed or a problem, which is then recorded."""
        try:
            message = self.events.load(line)
        except Malformed as why:
            self._problem_once(f"malformed message: {why}")
            return None
        if isinstance(message, Problem):
            once = message.what.startswith(UNEXPECTED)  # of a helper that may end so each time that it is started
            (self._problem_once if once else self.problem)(message.what)
            return None
        found: Message = message
        return found

    def _problem_once(self, what: str) -> None:
        if len(self._refused) < REFUSALS and what not in self._refused:
            self._refused.add(what)
            self.problem(what)

    def send(self, request: tuple[Any, ...]) -> None:
        self.context.helpers.send(self.name, self.requests.dump(request))

    def problem(self, what: str, printed: bool = False) -> None:
        """Record a problem of the helper; if `printed`, print it as well."""
        line = f"{self.name}: {what}; the command is not affected" if printed or self.prints_problems else None
        self.context.records.append(("problem", (("helper", self.name), ("what", what)), line))
