"""Cause of a failure of the command, from tracebacks, the kernel's OOM counter and the helpers."""

from ftrun.core.machine.events import CommandExited
from ftrun.core.machine.states import Phase
from ftrun.core.machine.values import Attempt
from ftrun.host import oom
from ftrun.pid1.clients.registry import Clients


class ExitCause:
    """The cause for the attempt that was spawned last; one at a time."""

    def __init__(self, beat_dir: str, clients: Clients) -> None:
        self._beat_dir, self._clients = beat_dir, clients
        self._exited: CommandExited | None = None
        self._pid = 0
        self._since = 0.0
        self._oom_kills: int | None = None  # at the start of the attempt

    def spawning(self, now: float) -> None:
        self._since = now

    def spawned(self) -> None:
        self._oom_kills = oom.oom_kills()

    def begin(self, exited: CommandExited, pid: int) -> None:
        self._exited, self._pid = exited, pid
        self._clients.request_tail()

    @property
    def deadline(self) -> float | None:
        return None if self._exited is None else self._clients.cause_deadline(self._exited.now)

    def due(self, now: float, phase: Phase) -> CommandExited | None:
        """The exit event with its cause, once every helper that may know it has reported or its time is over."""
        exited = self._exited
        if exited is None or now < self._clients.cause_deadline(exited.now):
            return None
        from ftrun.core.rules import first_death
        from ftrun.core.rules.crash_causes import CommandFailure, first_cause, is_symptom
        from ftrun.host import tracebacks

        self._exited = None
        attempt = getattr(phase, "attempt", None) or Attempt(0)
        beaten = any(rank.moved_at is not None or rank.alive_at is not None for rank in attempt.ranks)
        found = tracebacks.read(self._beat_dir, self._since)
        cause, death, also = first_cause(found, exited.now), None, ""
        if cause is not None and is_symptom(cause.chain):
            # The exception of a launcher describes its children.
            with_exception = {one.pid for one in found if not one.children}
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
        return exited._replace(ending=ending._replace(death=death, also=also))
