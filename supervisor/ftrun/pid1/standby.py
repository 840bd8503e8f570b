"""Standbys: for each process of the next start one that waits with its imports done (`--standby`).

They are started one after another beside a healthy attempt, and never belong to it: not to its tree, its evidence or
its leftovers.  Whatever is wrong with one costs only its advantage: the command is then executed as without it.
"""

import os
import select
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ftrun.core.machine.states import Done, Finish, Job, Running
from ftrun.core.rules import standby as rules
from ftrun.host import memory, safe_files
from ftrun.host.reaper import Change
from ftrun.host.standby_process import StandbyProcess, wait_until_gone
from ftrun.pid1.bootstrap import Setup
from ftrun_hooks import layout

if TYPE_CHECKING:
    from ftrun.pid1.clients.base import Context

REPORT: Final = 512  # bytes of a report that PID 1 reads: why it cannot be used, or nothing
AGAIN: Final = (5.0, 60.0)  # s between two looks for a report that is not there yet


class Startable(Protocol):
    """How one process of the command is started (`launching.Start`)."""

    @property
    def command(self) -> Sequence[str]: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def streams(self) -> Mapping[int, int]: ...


class Standby:
    """One standby: `ready` after its imports, which took `seconds`; then it has `size` bytes of memory."""

    def __init__(self, process: StandbyProcess, command: Sequence[str], now: float) -> None:
        self.process, self.command, self.started_at = process, tuple(command), now
        self.ready = False
        self.seconds, self.size = 0.0, 0
        self.modules: tuple[str, ...] = ()


class Standbys:
    """`pids`: processes that are not part of the command.  `starting`: standbys that were started and have not
    answered, by descriptor; `answers_due`: when they are late."""

    def __init__(self, setup: Setup, poll: select.poll) -> None:
        self._setup, self._poll = setup, poll
        self._mode: rules.Mode = setup.settings["standby"].value
        self._folder = f"{setup.beats.path}/{layout.IMPORTS}"
        self._waiting: dict[int, Standby] = {}  # by local rank
        self._failures: dict[int, int] = {}  # in a row, by local rank
        self._refused: str | None = None  # why there is no standby in this attempt
        self._starts: Sequence[Startable] = ()
        self._reports: Sequence[int] = ()  # pids of the attempt, by local rank
        self._due: float | None = None
        self._asked = 0  # how often a report was looked for in vain
        self._announced = False
        self._attempt = 0
        self._spawned_at = 0.0
        self._cold_start: float | None = None  # s from the last cold start to its first heartbeat
        self._warm_start = False
        self._outcomes: list[str] = []  # of the start under way: empty for a warm one, else why it is cold
        self._context: Context | None = None
        self._running = False  # the attempt is healthy
        self._ended = False
        self.pids: set[int] = set()
        self.starting: dict[int, StandbyProcess] = {}
        self.answers_due: float | None = None
        self.saved: float | None = None  # seconds that the last warm start has saved

    def attach(self, context: "Context") -> None:
        self._context = context

    # --- the start of the command -----------------------------------------------------------------------------------

    def spawning(self, starts: Sequence[Startable], command: Sequence[str]) -> None:
        """The command is about to be started: ask it to report its imports."""
        self._starts, self._outcomes, self._due = starts, [], None
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            for name in os.listdir(self._folder):
                os.unlink(f"{self._folder}/{name}")
            content = os.fsencode("".join(f"{word}\0" for word in command))
            safe_files.replace(f"{self._folder}/{layout.COMMAND}", content, durable=False)
        except OSError as error:
            self._refuse(f"the imports cannot be reported: {error.strerror}")

    def take(self, local_rank: int, start: Startable) -> StandbyProcess | None:
        """The standby for this start, which is not one any more; None if there is none."""
        usable = (number for number in (local_rank, *self._waiting) if self._fits(number, start))
        number = next(usable, None)
        if number is None:
            one = self._waiting.get(local_rank)
            self._outcomes.append(self._refused or ("it was not ready" if one is None else "it was still importing"))
            return None
        taken = self._waiting.pop(number)
        self._poll.unregister(taken.process.answers)
        self.pids.discard(taken.process.pid)
        return taken.process

    def _fits(self, number: int, start: Startable) -> bool:
        one = self._waiting.get(number)
        if one is None or not one.ready or one.command != tuple(start.command):
            return False
        return one.process.streams == dict(start.streams)

    def begin(self, process: StandbyProcess, start: Startable, group: int, now: float) -> bool:
        """Start it; False if that is not possible, and it has ended."""
        try:
            process.start(start.environment, rules.OURS, rules.withheld(start.environment), group)
        except OSError as error:
            self._outcomes.append(f"it could not be started: {error.strerror}")
            process.kill()
            process.close()
            return False
        self.starting[process.answers] = process
        self._poll.register(process.answers, select.POLLIN)
        self.answers_due = now + rules.ANSWERING
        return True

    def answered(self, answers: int, now: float) -> bool | None:
        """Whether it is the command now; None: it has not answered yet."""
        process = self.starting[answers]
        content = process.read()
        if content is None and self.answers_due is not None and now < self.answers_due:
            return None
        warm = content == b"warm\n"
        if warm:
            self._failures.clear()
        _, _, why = (content or b"").decode("utf-8", "replace").strip().partition("\0")
        self._outcomes.append("" if warm else why or ("it ended" if content == b"" else "it did not answer"))
        self._poll.unregister(answers)
        del self.starting[answers]
        if not self.starting:
            self.answers_due = None
        if not warm:
            process.kill()
        process.close()
        return warm

    def rank_started(self, local_rank: int, now: float) -> None:
        """A single rank was started again, beside the others.  Its next standby has what the attempt had imported."""
        why = self._outcomes.pop()
        self._record("start", why or None, local_rank, warm=int(not why), of=1)
        self._due, self._announced = rules.due(self._mode, now), False
        self._tell()

    def abandon(self) -> None:
        """Some process cannot be started: end the standbys that were."""
        for answers, process in self.starting.items():
            self._poll.unregister(answers)
            process.kill()
            process.close()
        self.starting, self.answers_due = {}, None

    def spawned(self) -> None:
        """All processes of the command are started."""
        why = next((why for why in self._outcomes if why), None)
        warm = self._outcomes.count("")
        self._warm_start = bool(self._outcomes) and why is None
        if self._setup.starts.count > 1 and self._outcomes:
            self._record("start", why, warm=warm, of=len(self._outcomes))
        for local_rank in [*self._waiting]:
            self._end(local_rank)  # it was not ready, or no process was started that it fits

    # --- beside a healthy attempt -------------------------------------------------------------------------------------

    def follow(self, job: Job, now: float) -> None:
        """The job has changed."""
        if isinstance(job.want, Finish) or isinstance(job.phase, Done):
            self.close()
            return
        self._running = isinstance(job.phase, Running)
        if not isinstance(job.phase, Running):
            return
        attempt = job.phase.attempt
        if attempt.number == self._attempt:
            return
        moved = min((rank.moved_at for rank in attempt.ranks if rank.moved_at is not None), default=None)
        if moved is None:
            return
        self._attempt, self._refused, self._announced, self._asked = attempt.number, None, False, 0
        self._reports = [process.pid for process in attempt.processes] or [attempt.pid]
        self._due = rules.due(self._mode, moved)
        self._compare(moved - attempt.spawned_at)

    def _compare(self, seconds: float) -> None:
        """Record what a warm start has saved, up to the first heartbeat."""
        if not self._warm_start:
            self._cold_start = seconds
        elif self._cold_start is not None:
            self.saved = round(self._cold_start - seconds, 3)
            self._record("saved", seconds=self.saved)

    @property
    def next_start(self) -> rules.NextStart:
        ready = sum(one.ready for one in self._waiting.values())
        given_up = any(count >= rules.TRIES for count in self._failures.values())
        why = self._refused or ("too many standbys failed" if given_up else None)
        return rules.NextStart(ready, max(1, len(self._starts)), why, self.saved)

    @property
    def deadline(self) -> float | None:
        importing = [one.started_at + rules.IMPORTING for one in self._waiting.values() if not one.ready]
        return min(importing) if importing else self._due if self._running else None

    def settle(self, now: float) -> None:
        """Read the answers, end a standby that hangs, and start the next one."""
        for local_rank, one in [*self._waiting.items()]:
            self._read(local_rank, one, now)
        is_due = self._due is not None and self._running and now >= self._due
        if is_due and all(one.ready for one in self._waiting.values()):
            self._next(now)

    def _next(self, now: float) -> None:
        wanted = range(rules.number(self._mode, len(self._starts)))
        missing = [number for number in wanted if number not in self._waiting and self._may_try(number)]
        if self._refused is not None or not missing:
            self._due = None
            self._announce()
            return
        report = f"{self._folder}/{self._reports[missing[0]]}"
        found = safe_files.read_foreign(report, REPORT)
        if not found and not os.path.exists(report):
            self._due = None if self._asked == len(AGAIN) else now + AGAIN[self._asked]
            self._asked += 1
            if self._due is None:
                self._refuse("the attempt has not reported its imports")
            return
        why = found.partition(b"\0")[0].decode("utf-8", "replace") or self._lacks_memory()
        if why:
            self._refuse(why)
        else:
            self._park(missing[0], report, now)

    def _may_try(self, number: int) -> bool:
        return self._failures.get(number, 0) < rules.TRIES and number < len(self._reports)

    def _lacks_memory(self) -> str | None:
        size = max((one.size for one in self._waiting.values()), default=rules.FIRST_SIZE)
        return rules.lacks_memory(memory.available(), size)

    def _park(self, number: int, report: str, now: float) -> None:
        start, setup = self._starts[number], self._setup
        environment = rules.parked_environment(start.environment)
        try:
            process = StandbyProcess(start.command, environment, report, setup.signals.inherited, start.streams)
        except (OSError, ValueError) as error:
            self._refuse(f"a standby cannot be started: {error}")
            return
        setup.tree.exclude(process.pid)
        self.pids.add(process.pid)
        self._waiting[number] = Standby(process, start.command, now)
        self._poll.register(process.answers, select.POLLIN)
        self._tell()

    def _read(self, local_rank: int, one: Standby, now: float) -> None:
        content = one.process.read()
        if content is None:
            if not one.ready and now >= one.started_at + rules.IMPORTING:
                self._fail(local_rank, "its imports hang")
            return
        what, *words = content.decode("utf-8", "replace").strip().split("\0")
        if what == "ready" and len(words) >= 2 and not one.ready:
            one.ready, one.modules = True, tuple(words[2:])
            one.seconds, one.size = float(words[0]), int(words[1])
        elif what == "cold" and words:
            self._end(local_rank)
            self._refuse(words[0])
        else:
            self._fail(local_rank, "it ended")

    def child_changed(self, change: Change, now: float) -> None:
        """A child was reaped, stopped or continued; perhaps a standby."""
        if change.ended:
            self.pids.discard(change.pid)
        number = next((number for number, one in self._waiting.items() if one.process.pid == change.pid), None)
        if number is None or change.how == os.CLD_CONTINUED:
            return
        if change.ended:
            self._read(number, self._waiting[number], now)  # the reason, and then its end
        if number in self._waiting:
            self._fail(number, "it ended" if change.ended else "it was stopped")

    def _fail(self, local_rank: int, why: str) -> None:
        """It is replaced, a few times."""
        self._end(local_rank)
        count = self._failures[local_rank] = self._failures.get(local_rank, 0) + 1
        self._record("failed", why, local_rank)
        if count >= rules.TRIES:
            self._record("off", f"{count} standbys failed", local_rank)
        elif self._due is None and not self._ended:
            self._due = 0.0
        self._announced = False

    def _refuse(self, why: str) -> None:
        self._due = None
        if self._refused != why:
            self._refused = why
            self._record("cold", why)

    def _announce(self) -> None:
        ready = [one for one in self._waiting.values() if one.ready]
        if ready and not self._announced:
            self._announced = True
            seconds, size = max(one.seconds for one in ready), sum(one.size for one in ready)
            self._record("ready", ready=len(ready), of=len(self._starts), seconds=seconds, memory=size)

    def _record(
        self,
        what: str,
        why: str | None = None,
        local_rank: int | None = None,
        warm: int | None = None,
        ready: int | None = None,
        of: int | None = None,
        seconds: float | None = None,
        memory: int | None = None,
    ) -> None:
        numbers = ("local_rank", local_rank), ("warm", warm), ("ready", ready), ("of", of), ("memory", memory)
        fields: tuple[tuple[str, object], ...] = (("what", what), *numbers, ("seconds", seconds), ("why", why))
        if self._context is not None:
            self._context.records.append(("standby", tuple(one for one in fields if one[1] is not None), None))

    def _tell(self) -> None:
        """The helper of the idle rule must not count it."""
        if self._context is not None and (sampler := self._context.running.get("sampler")) is not None:
            sampler.on_helpers_started()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self, local_rank: int) -> None:
        one = self._waiting.pop(local_rank)
        self._poll.unregister(one.process.answers)
        one.process.kill()
        one.process.close()

    def close(self) -> None:
        """End all; there will be no other."""
        self._ended, self._due = True, None
        for local_rank in [*self._waiting]:
            self._end(local_rank)

    def finish(self, until: float) -> None:
        """At the very end, when waiting is allowed: wait until all that were killed are gone."""
        self.close()
        for pid in self.pids:
            wait_until_gone(pid, until)
