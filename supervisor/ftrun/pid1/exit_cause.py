"""Which ends of processes are the end of the command, and the cause of a failure: from tracebacks, the kernel's OOM
counter and the helpers."""

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Final

from ftrun.core.machine.events import CommandExited, GroupOrderReceived
from ftrun.core.machine.states import Phase, Running, Starting, Stopping, Suspect
from ftrun.core.machine.values import Attempt, LocalRank
from ftrun.core.text import sentences
from ftrun.host import oom
from ftrun.host.reaper import ChildChange
from ftrun.pid1.clients.registry import Clients

if TYPE_CHECKING:
    from ftrun.core.rules.crash_causes import Traceback
    from ftrun.core.rules.first_death import Death

OTHER_RANKS: Final = 1.0  # s for the rank that caused the failure of the first one to end as well
LOOK: Final = 0.05  # s between two checks whether it has left an exception meanwhile, and whether all causes are known
EXITING: Final = 10.0  # s for a process to exit after its exception, while the group waits


def load_rest() -> None:
    """Load what is needed after a failure, once the command has started.  At the failure the disk may be gone, or no
    file descriptor free to read a module with; and loading it takes longer than ending eight ranks."""
    import _socket  # noqa: F401 - loaded in advance, for a messenger that is started again

    from ftrun.core.rules import crash_causes, first_death  # noqa: F401 - loaded in advance
    from ftrun.core.text import recurrences  # noqa: F401 - loaded in advance
    from ftrun.host import output_pipes, tracebacks  # noqa: F401 - loaded in advance


class RankProcesses:
    """The ranks of the attempt that was spawned last; without ranks, `processes` is empty and the command is one
    process.  `living`: their pids that have not ended.  `failures`: how ranks failed, by pid, in the order of time."""

    def __init__(self) -> None:
        self.processes: tuple[LocalRank, ...] = ()
        self.living: set[int] = set()
        self.failures: dict[int, CommandExited] = {}
        self._stopped: set[int] = set()
        self._ended = False  # the end of the command was reported
        self.port = 0  # MASTER_PORT of rank 0

    def spawned(self, processes: tuple[LocalRank, ...], port: int = 0) -> None:
        self.__init__()  # type: ignore[misc]
        self.port = port
        self.processes, self.living = processes, {process.pid for process in processes}

    def recovers(self, gone: int) -> None:
        """The process `gone` has ended, and the attempt goes on without it."""
        self._stopped.discard(gone)
        self.living.discard(gone)

    def started(self, local_rank: int, pid: int) -> None:
        """This process takes the place of the rank's earlier process."""
        self.living -= {process.pid for process in self.processes if process.local_rank == local_rank}
        self.processes = tuple(
            process._replace(pid=pid) if process.local_rank == local_rank else process for process in self.processes
        )
        self.living.add(pid)

    def stopped(self, pid: int, living: Iterable[int]) -> bool:
        """A process was stopped by job control.  Returns whether the whole command is stopped now."""
        self._stopped.add(pid)
        return self._stopped.issuperset(living)

    def continued(self, pid: int) -> None:
        """A process was continued by job control."""
        self._stopped.discard(pid)

    def exited(self, pid: int, exited: CommandExited, waits_for_all: bool) -> CommandExited | None:
        """A rank has ended.  Returns the end of the command, once: at the first failure, or when all have ended
        (`waits_for_all`: only then, because the ranks were asked to end).  The end of a process whose rank has another
        one by now, although the attempt ended before that could help, is not the end of the command."""
        self._stopped.discard(pid)
        self.living.discard(pid)
        rank = next((process.rank for process in self.processes if process.pid == pid), None)
        if rank is None:
            return None
        if exited.code != 0:
            self.failures[pid] = exited._replace(rank=rank)
        if self._ended or (self.living and (waits_for_all or not self.failures)):
            return None
        self._ended = True
        return next(iter(self.failures.values()), exited)

    @property
    def deaths(self) -> "list[Death]":
        """The failures as a launcher would report them."""
        from ftrun.core.rules.first_death import Death  # needed after a failure only

        return [
            Death(end.rank or 0, pid, -end.signal if end.signal is not None else end.code or 0)
            for pid, end in self.failures.items()
        ]


class ExitCause:
    """The cause for the attempt that was spawned last; one at a time."""

    def __init__(self, beat_dir: str, clients: Clients) -> None:
        self._beat_dir, self._clients = beat_dir, clients
        self._exited: CommandExited | None = None
        self._pid = 0
        self._ranks = RankProcesses()
        self._postponed = 0.0  # until then another rank may fail, as `_failures` have
        self._failures = 0
        self._since = 0.0
        self._first = False
        self._oom_kills: int | None = None  # at the start of the attempt
        self._order: GroupOrderReceived | None = None  # an order that waits for the end of the command
        self._ordered = 0.0  # until when it waits
        self._known = False  # the cause has become known since

    def spawning(self, now: float, first: bool = False) -> None:
        """Another attempt begins: the end of an earlier one must never be taken for its end.  `first`: this pod has not
        started the command before."""
        self._since, self._first, self._exited = now, first, None

    def spawned(self) -> None:
        self._order = None
        self._oom_kills = oom.oom_kills()

    def begin(self, exited: CommandExited, pid: int, ranks: RankProcesses) -> None:
        """`ranks`: those that ftrun started, of which others may fail before the cause is determined."""
        self._exited, self._pid, self._ranks, self._postponed = exited, pid, ranks, 0.0
        self._clients.on_failed()

    def defers(self, event: object, phase: Phase, command: Container[int]) -> bool:
        """Whether this order to stop has to wait, because the command is about to end by itself: a process of `command`
        has raised an exception, and what broke on other nodes is its consequence.  A later order takes its place."""
        if not isinstance(event, GroupOrderReceived):
            return False
        held, self._order = self._order, None
        stops = event.order.what == "stop" and event.order.cause is None
        if not stops or not isinstance(phase, Starting | Running | Suspect):
            return False
        if held is None:
            if self._exited is None and not self._is_exiting(event.now, command):
                return False
            self._ordered, self._known = event.now + EXITING, False
        self._order = event
        return True

    def _is_exiting(self, now: float, command: Container[int]) -> bool:
        from ftrun.core.rules.crash_causes import first_cause, is_symptom
        from ftrun.host import tracebacks

        cause = first_cause(tracebacks.read(self._beat_dir, self._since), now)
        return cause is not None and cause.pid in command and not is_symptom(cause.chain)

    def events(self, now: float, phase: Phase) -> list[CommandExited | GroupOrderReceived]:
        """The end of the command, once its cause is known; after it, or after `EXITING`, the order that has waited."""
        exited, order = self._due(now, phase), self._order
        found: list[CommandExited | GroupOrderReceived] = [] if exited is None else [exited]
        if order is not None and (self._known or now >= self._ordered):
            self._order = None
            found.append(order._replace(now=now))
        return found

    @property
    def pending(self) -> bool:
        """Whether the command has ended, or is about to end, by itself, and the cause is not known yet."""
        return self._exited is not None or self._order is not None

    def exception(self, ended: ChildChange) -> str:
        """The last exception that a process that failed, or else one below it, has left in this attempt; empty if there
        is none."""
        if not ended.status:
            return ""
        from ftrun.host import tracebacks  # needed after a failure only

        found = tracebacks.last_of(self._beat_dir, self._since, ended.pid)
        return sentences.short(found._replace(rank=None).description, sentences.REASON) if found else ""

    @property
    def deadline(self) -> float | None:
        if self._exited is None:
            return None if self._order is None else self._ordered
        # The failure of another rank may be the cause that is waited for.
        postponed = self._postponed if len(self._ranks.failures) == self._failures else 0.0
        return max(postponed, self._clients.cause_deadline(self._exited.now))

    def _awaits_rank(self, cause: "Traceback | None", is_explained: bool, with_exception: Container[int]) -> bool:
        """Whether a rank that lives may still change the cause, or the exit code, which is that of the cause."""
        if cause is not None and is_explained:
            return cause.pid in self._ranks.living
        from ftrun.core.rules.first_death import may_be_explained

        return may_be_explained(self._ranks.deaths, self._ranks.living, with_exception)

    def _due(self, now: float, phase: Phase) -> CommandExited | None:
        """The exit event with its cause, once every helper that may know it has reported or its time is over.  If the
        command is being stopped meanwhile, nothing depends on the cause, and its end comes before the tree's."""
        exited, is_stopping = self._exited, isinstance(phase, Stopping)
        if exited is None or (not is_stopping and now < (self.deadline or 0.0)):
            return None
        # The heartbeats that were read at its end are not in `phase` before the next pass.
        if not is_stopping and now <= exited.now:
            return None
        from ftrun.core.rules import first_death
        from ftrun.core.rules.crash_causes import PARSED, CommandFailure, first_cause, is_port_taken, is_symptom
        from ftrun.host import output_pipes, tracebacks

        attempt = getattr(phase, "attempt", None) or Attempt(0)
        beaten = any(rank.moved_at is not None or rank.alive_at is not None for rank in attempt.ranks)
        found = tracebacks.read(self._beat_dir, self._since)
        cause, death, also = first_cause(found, exited.now), None, ""
        is_explained = cause is not None and not is_symptom(cause.chain)
        with_exception = {one.pid for one in found if not one.children}
        if (
            not is_stopping
            and now < exited.now + OTHER_RANKS
            and self._awaits_rank(cause, is_explained, with_exception)
        ):
            self._postponed = min(now + LOOK, exited.now + OTHER_RANKS)
            self._failures = len(self._ranks.failures)
            return None
        self._exited, self._known = None, True
        if failures := self._ranks.failures:
            death = None if is_explained else first_death.first_death(self._ranks.deaths, with_exception)
            self._pid = death.pid if death else cause.pid if cause and cause.pid in failures else self._pid
            exited = failures[self._pid]._replace(now=exited.now)
        elif cause is not None and not is_explained:
            # The exception of a launcher describes its children.
            launcher = max((one for one in found if one.children), key=lambda one: one.at, default=None)
            if launcher is not None:
                death = first_death.first_death(launcher.children, with_exception)
            else:
                also = first_death.rank_without_exception(
                    ((r.rank, r.pid) for r in attempt.ranks if r.pid and not r.done), with_exception
                )
        counted, before = oom.oom_kills(), self._oom_kills
        kills = None if counted is None or before is None else counted - before
        ending = CommandFailure(
            exited.code, exited.signal, beaten, cause, self._clients.tail, kills, self._pid, exited.now
        )
        crash = None
        if exited.signal or (exited.code or 0) > 128 or death is not None or (cause and not is_explained):
            crash = tracebacks.crash_of(self._beat_dir, self._since, death.pid if death else self._pid)
        output = () if self._clients.tail else output_pipes.inherited_files()
        accepted = not self._first or exited.now - self._since > PARSED
        ending = ending._replace(death=death, also=also, crash=crash, output=output, accepted=accepted)
        began = cause.at if cause is not None and is_explained and ending.explained else None
        symptom = cause is not None and not is_explained and death is None and not also
        port = self._ranks.port
        taken = port if is_port_taken(cause, port) else None
        return exited._replace(ending=ending, began=began, symptom=symptom, taken_port=taken)
