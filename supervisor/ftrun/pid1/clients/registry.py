"""The table of helpers that run beside the command, and the interface of PID 1's loop to their clients.

To add a helper: the program `ftrun.helpers.NAME`, its messages in `ftrun.messages`, its client in this package, and one
entry of `TABLE`.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ftrun.config.derived import reset_file, state_dir, uses_journal
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.group_member import newest_order
from ftrun.core.machine.states import Job
from ftrun.core.machine.values import Attempt, Fault, Ledger
from ftrun.core.named_tuple import NamedTuple
from ftrun.host import devices
from ftrun.host.reaper import ChildChange
from ftrun.pid1.clients.base import Client, Context, PreparedRecord

if TYPE_CHECKING:
    from ftrun.messages.exit_hooks import Work
    from ftrun.messages.state_store import SharedVerdict
    from ftrun.pid1.clients.activity import CheckpointWatcherClient
    from ftrun.pid1.clients.base import StandbyRequestInterface, StandbysInterface
    from ftrun.pid1.clients.evidence import EvidenceClient
    from ftrun.pid1.clients.exit_hooks import ExitHooksClient
    from ftrun.pid1.clients.heal import HealClient
    from ftrun.pid1.clients.messenger import MessengerClient
    from ftrun.pid1.clients.output import OutputClient
    from ftrun.pid1.clients.probe import ProbeClient
    from ftrun.pid1.clients.reset_file import ResetFileClient
    from ftrun.pid1.clients.state_store import StateStoreClient

ASKING: Final = 2.0  # s at most for all helpers to report the cause of a failure
ENDING: Final = 1.0  # s at the very end for standbys that were killed
REPORTING: Final = 0.5  # s within which the probe reports a device fault that ended the command


class HelperEntry(NamedTuple):
    """One helper.  Its client is created if `runs` is true when PID 1 starts; with `later`, `runs` is also asked after
    each start of the command and at each message, when the context may have changed.  Without `runs`, the client is
    created at the first request."""

    helper: str
    client: str  # module and class in this package
    runs: Callable[[Context], bool] | None = None
    later: bool = False

    def load(self) -> type[Client[Any]]:
        name, _, client = self.client.partition(".")
        module = __import__(f"ftrun.pid1.clients.{name}", fromlist=("",))  # importlib would cost PID 1 more memory
        found: type[Client[Any]] = getattr(module, client)
        return found


def _probes(context: Context) -> bool:
    kind = context.settings.probe
    return kind != "off" and (kind != "auto" or devices.has_driver())


def _samples(context: Context) -> bool:
    """Whether the idle rule may apply: with a given timeout to any command, or else to a job that has accelerators or
    gives heartbeats."""
    limits = context.policy.limits
    return limits.idle is not None and (limits.idle_given or bool(context.devices) or (limits.auto and context.settled))


def _serves_operators(context: Context) -> bool:
    return context.group is None and context.settled


def _exports_metrics(context: Context) -> bool:
    return bool(context.command) and bool(context.settings.metrics or context.settings.metrics_file)


def _notifies(context: Context) -> bool:
    return bool(context.command) and bool(context.settings.on_event or context.settings.webhook)


def _exports_records(context: Context) -> bool:
    return bool(context.settings.otlp) or uses_journal(context.settings)


TABLE: Final = (
    HelperEntry("line_writer", "output.LineWriterClient", lambda context: context.lines is not None),
    HelperEntry("mirror", "output.MirrorClient", lambda context: bool(context.work_dir.copied)),
    HelperEntry("messenger", "messenger.MessengerClient", _serves_operators, later=True),
    HelperEntry("messenger", "messenger.GroupMessengerClient", lambda context: context.group is not None),
    HelperEntry(
        "checkpoint_watcher", "activity.CheckpointWatcherClient", lambda context: bool(context.settings.progress)
    ),
    HelperEntry("output", "output.OutputClient", lambda context: context.output_pipes.captures),
    HelperEntry("state_store", "state_store.StateStoreClient", lambda context: state_dir(context.settings) is not None),
    HelperEntry("reset_file", "reset_file.ResetFileClient", lambda context: reset_file(context.settings) is not None),
    HelperEntry("probe", "probe.ProbeClient", _probes),
    HelperEntry("sampler", "activity.SamplerClient", _samples, later=True),
    HelperEntry("metrics", "exports.MetricsClient", _exports_metrics, later=True),
    HelperEntry("notifier", "exports.NotifierClient", _notifies, later=True),
    HelperEntry("telemetry", "exports.TelemetryClient", _exports_records),
    HelperEntry("evidence", "evidence.EvidenceClient"),
    HelperEntry("heal", "heal.HealClient"),
    HelperEntry("exit_hooks", "exit_hooks.ExitHooksClient"),
)
LATER: Final = [entry for entry in TABLE if entry.later]


class Clients:
    """All helper clients of one supervised command, and its standbys."""

    def __init__(self, context: Context, standbys: "StandbyRequestInterface | None" = None) -> None:
        self._context, self._standby_request = context, standbys
        if standbys is not None:
            standbys.attach(context)
        self._helpers, self._tree = context.helpers, context.tree
        self._running: dict[str, Any] = context.running
        self._start(TABLE)
        if context.settings.probe == "auto" and (why := devices.why_not_probed()) is not None:
            context.records.append(("problem", (("helper", "probe"), ("what", why)), why))

    def _start(self, entries: Iterable[HelperEntry]) -> None:
        for entry in entries:
            if entry.helper not in self._running and entry.runs is not None and entry.runs(self._context):
                self._running[entry.helper] = entry.load()(self._context)

    @property
    def _standbys(self) -> "StandbysInterface | None":
        return self._context.standbys

    def client(self, helper: str) -> Any:
        """The client of this helper; it is loaded if needed."""
        if helper not in self._running:
            entry = next(entry for entry in TABLE if entry.helper == helper)
            self._running[helper] = entry.load()(self._context)
        return self._running[helper]

    # --- events -----------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        times = [self._helpers.deadline, *(client.deadline for client in self._running.values())]
        times += [] if self._standbys is None else [self._standbys.deadline]
        return min((at for at in times if at is not None), default=None)

    def supervise(self, now: float) -> None:
        """Start the helpers that are due.  Not to be called while the command is being launched, which comes first."""
        started = self._helpers.supervise(now)
        for pid in started:
            self._tree.exclude(pid)
        for client in self._running.values() if started else ():
            client.on_helpers_started()
        for name, what in self._helpers.problems:
            self._running[name].problem(what)
        self._helpers.problems.clear()

    def load_rest(self) -> None:
        """Create the clients that can wait until the command has started, and load all others.  Once they are needed,
        the disk may be gone, or no file descriptor free to read a module with."""
        self._context.settled = True
        if self._standby_request is not None:
            self._standby_request.settled()
        self._start(LATER)
        for entry in TABLE:
            if entry.runs is None:
                entry.load()

    def child_changed(self, change: ChildChange, now: float) -> None:
        if self._standbys is not None:
            self._standbys.child_changed(change, now)
        if change.ended:
            self._tree.forget(change.pid)
            self._helpers.child_ended(change.pid, now, change.how == os.CLD_EXITED and change.status == 0)
        elif change.how == os.CLD_STOPPED:
            self._helpers.child_stopped(change.pid)

    def on_spawning(self, number: int, first_rank: int = 0) -> None:
        self._context.attempt, self._context.first_rank = number, first_rank
        for client in self._running.values():
            client.on_spawning()

    def on_spawned(self) -> None:
        self._give_up_healing()
        self._context.command = self._tree.command or 0
        for client in self._running.values():
            client.on_spawned()
        self._start(LATER)

    def follow(self, job: Job, now: float, awaits_cause: bool) -> None:
        """To be called with each new `job`.  `awaits_cause`: the command has ended, and ftrun still
        looks for the cause."""
        for client in self._running.values():
            client.follow(job, now, awaits_cause)
        if self._standbys is not None:
            self._standbys.follow(job)

    def receive(self, ready: set[int], now: float) -> list[ev.Event]:
        """The events from the helpers' messages; `EvidenceCollected` is without the ranks, which the caller has to
        read."""
        found: list[ev.Event] = []
        for name, line in self._helpers.read_lines(ready, now):
            client: Client[Any] = self._running[name]
            if line is None:
                found += client.on_end(now)
            elif (message := client.parse(line)) is not None:
                heal: HealClient | None = self._running.get("heal")
                if heal is not None and name == "probe":
                    found += heal.handle_probe(message, now)
                found += client.handle(message, now)
        for client in self._running.values():
            found += client.settle(now)
        if self._standbys is not None:
            self._standbys.settle(now)
        self._start(LATER)
        return newest_order(found)

    def drain_records(self) -> list[PreparedRecord]:
        """The records that were made since the last call."""
        found, self._context.records[:] = self._context.records[:], []
        return found

    # --- requests ----------------------------------------------------------------------------------------

    @property
    def checks_devices(self) -> bool:
        """Whether the first start waits for a check of the devices, `DevicesChecked`."""
        probe: ProbeClient | None = self._running.get("probe")
        return probe is not None and probe.checks

    def investigate(self, wanted: do.Investigate, attempt: Attempt) -> None:
        """Answered by `EvidenceCollected`, unless it is `due` later."""
        evidence: EvidenceClient = self.client("evidence")
        if wanted.due is None:
            evidence.investigate(wanted.finding, attempt)
        else:
            evidence.investigate_early(wanted.finding, wanted.due, attempt)

    def look(self, attempt: Attempt) -> None:
        """Answered by `Looked`, if at all."""
        evidence: EvidenceClient = self.client("evidence")
        evidence.look(attempt)

    def release(self, pids: Sequence[int], now: float) -> list[ev.Event]:
        """Ask whether the devices are free; answered at once without devices, or else later."""
        self._give_up_healing()
        probe: ProbeClient | None = self._running.get("probe")
        return [ev.DevicesReleased(now)] if probe is None else probe.release(pids, now)

    def heal(self, fault: Fault | None, now: float) -> list[ev.Event]:
        """Answered by `HealingFinished`; without a fault, by `StartPermission`, of the platform."""
        if fault is not None:
            heal: HealClient = self.client("heal")
            return heal.heal(fault, now)
        self._give_up_healing()
        reset: ResetFileClient | None = self._running.get("reset_file")
        return [ev.StartPermission(now) if reset is None else reset.permitted(now)]

    def _give_up_healing(self) -> None:
        heal: HealClient | None = self._running.get("heal")
        if heal is not None:
            heal.give_up()

    def answer(self, answer: do.AnswerOperator) -> None:
        messenger: MessengerClient = self._running["messenger"]
        messenger.answer(answer)

    def keep(self, ledger: Ledger, final: str | None = None) -> None:
        """Keep the parts of the ledger that outlive the pod.  `final`: the verdict, at the end."""
        self._context.ledger = ledger
        if (store := self._store) is not None:
            store.keep(ledger, final)

    def consult(self, ledger: Ledger, now: float) -> list[ev.Event]:
        """Ask whether another ftrun of this job has reached a verdict; answered by `VerdictShared`."""
        store = self._store
        return [ev.VerdictShared(now)] if store is None else store.consult(ledger, now)

    @property
    def _store(self) -> "StateStoreClient | None":
        found: StateStoreClient | None = self._running.get("state_store")
        return found

    def on_failed(self) -> None:
        """The command has failed: ask for the last lines of its output, if it is captured, which later are in `tail`,
        and for the checkpoints that it has saved, which come before the decision about the restart."""
        if (output := self._output) is not None:
            output.request_tail()
        if (watcher := self._watcher) is not None:
            watcher.request_rest()

    @property
    def tail(self) -> tuple[str, ...]:
        return () if self._output is None else self._output.tail

    @property
    def _output(self) -> "OutputClient | None":
        found: OutputClient | None = self._running.get("output")
        return found

    @property
    def _watcher(self) -> "CheckpointWatcherClient | None":
        found: CheckpointWatcherClient | None = self._running.get("checkpoint_watcher")
        return found

    def cause_deadline(self, since: float) -> float:
        """Until when a helper may still report the cause of a failure at `since`, or what counts against it: a device
        fault, the last output, the last checkpoints, or the history; 0 if none is expected."""
        store, output, watcher = self._store, self._output, self._watcher
        if (store is not None and not store.loaded) or (output is not None and output.tail_requested):
            return since + ASKING
        if watcher is not None and watcher.rest_requested:
            return since + ASKING
        return since + REPORTING if self._context.devices else 0.0

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self, verdict: "SharedVerdict | None", alone: bool, work: "Work | None") -> None:
        """The last requests: `verdict` for the other ftruns, or `alone` about this member of their group; `work` for
        the end of the container."""
        if (store := self._store) is not None:
            store.end(verdict, alone)
        if work is not None:
            hooks: ExitHooksClient = self.client("exit_hooks")
            hooks.begin(work)

    @property
    def unfinished(self) -> set[str]:
        """The requests to wait for at the end: `history`, `verdict`, `exit hooks`, `group`."""
        return {what for client in self._running.values() for what in client.unfinished}

    def drain(self) -> None:
        """Forward the rest of the command's output."""
        if (output := self._running.pop("output", None)) is not None:
            output.finish()

    def close(self, tell: Callable[[str], None]) -> None:
        """End all helpers: after the others the mirror, because it copies their files, and last the one that writes
        lines.  `tell` gets a line for the user if files are missing on the network disk."""
        if self._standbys is not None:
            self._standbys.finish(time.monotonic() + ENDING)
        for client in reversed(self._running.values()):
            if (line := client.finish()) is not None:
                tell(line)
        self._helpers.close()
