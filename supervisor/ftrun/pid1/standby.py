"""Standbys: for each process of the next start a process that waits with its imports done (`--standby`, `--preload`).

They are started beside a healthy attempt, or before the first one, and never belong to it: not to its tree, its
evidence or its leftovers.  A standby that fails costs only its advantage: the command is then executed as without it.
"""

import os
import select
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ftrun.core.machine.states import Done, Finish, Job, Running
from ftrun.core.rules import standby as rules
from ftrun.host import memory, oom, safe_files
from ftrun.host.reaper import ChildChange
from ftrun.host.spawn import Start
from ftrun.host.standby_process import StandbyProcess
from ftrun.pid1 import preload
from ftrun.pid1.bootstrap import Setup
from ftrun.pid1.preload import Imports
from ftrun.pid1.standby_pool import Pool
from ftrun_hooks import layout

if TYPE_CHECKING:
    from ftrun.pid1.clients.base import Context

REPORT: Final = 512  # bytes of a report that PID 1 reads: why it cannot be used, or nothing
FIELDS: Final = ("local_rank", "warm", "ready", "forked", "of", "memory", "seconds")  # of the record, in this order
UNKNOWN: Final = "it is not known yet what the members at work have imported"
AGAIN: Final = (5.0, 60.0)  # s between two looks for a report that is not there yet


class Standbys:
    """`kept`: what a later ftrun may import in advance.  `starting`: standbys that were started in place of a process
    of the command and have not answered, by descriptor; `answers_due`: when they are late.  `preparing`: the first
    start waits for its standbys."""

    def __init__(self, setup: Setup, poll: select.poll, mode: rules.Mode) -> None:
        self._setup, self._poll = setup, poll
        self._pool = Pool(setup.tree, lambda: setup.signals.inherited, poll, self)
        self._failures: dict[int, int] = {}  # in a row, by local rank
        self._refused: str | None = None  # why there is no standby in this attempt
        self._forked = 0  # of the standbys of the start under way
        self._outcomes: list[str] = []  # of the start under way: empty for a warm one, else why it is cold
        self.preparing = False
        self.starting: dict[int, StandbyProcess] = {}
        self.answers_due: float | None = None
        self._mode = mode
        self._folder = f"{setup.beats.path}/{layout.IMPORTS}"
        self._alone: str | None = None  # why ranks are not forked from a template in this attempt
        self._starts: Sequence[Start] = ()
        self._reports: Sequence[int] = ()  # pids of the attempt, by local rank
        self._due: float | None = None
        self._looks_at: float | None = None  # when the memory is looked at
        self._asked = 0  # how often a report was looked for in vain
        self._announced = False
        self._is_restart = self._was_prepared = False
        self._expected = mode != "auto"  # the next start may be warm, as far as its records say
        self._attempt = 0
        self._cold_start: float | None = None  # s from the last cold start to its first heartbeat
        self._warm_start = False
        self._context: Context | None = None
        self._running = False  # the attempt is healthy
        self._ended = False
        self._spare: SpareStandbys | None = None  # while this member waits as a spare
        self.saved: float | None = None  # seconds that the last warm start has saved
        self.kept: Imports | None = None

    def attach(self, context: "Context") -> None:
        self._context, context.standbys = context, self

    @property
    def pids(self) -> set[int]:
        """Processes that are not part of the command."""
        return self._pool.pids

    # --- the start of the command -----------------------------------------------------------------------------------

    def begun(self, starts: Sequence[Start], command: Sequence[str]) -> None:
        """The command was started before these standbys were loaded."""
        self._starts, self.kept = starts, self._earlier(command)

    def spawning(self, starts: Sequence[Start], command: Sequence[str], now: float, problem: str | None = None) -> None:
        """The command is about to be started, and will report its imports, unless there is a `problem`.  `preparing`:
        it has to wait."""
        self._is_restart, self._was_prepared, self._spare = bool(self._starts), self._spare is not None, None
        self._starts, self._outcomes, self._due, self._forked = starts, [], None, 0
        if problem is not None:
            self._refuse(problem)
        elif not self._is_restart:
            self._prepare(command, now)

    def _prepare(self, command: Sequence[str], now: float) -> None:
        """Before the first start of several ranks: import once what is known.  One process imports as fast itself."""
        self.kept = earlier = self._earlier(command)
        if len(self._starts) < 2 or (self._mode is None and not self._setup.settings.preload):
            return
        try:
            imports = preload.write(self._setup, self._folder, command, earlier)
            if imports is None:
                return
            if why := self._lacks_memory(rules.FIRST_SIZE + len(self._starts) * rules.FORKED_SIZE):
                raise ValueError(why)
            self._pool.patience = rules.FIRST_IMPORTING
            self._pool.execute_first(dict(enumerate(self._starts)), imports, now)
        except (OSError, ValueError) as error:
            self._refuse(str(error))
            return
        self.preparing = self._was_prepared = True

    def _earlier(self, command: Sequence[str]) -> Imports | None:
        """What an earlier ftrun has imported for this command."""
        stored = "" if (store := self._state_store) is None else store.imports
        found = preload.loaded(self._setup.imports, command) or preload.read(stored, command)
        if found is not None:
            self._cold_start = found.seconds
        return found

    def prepare_spare(self, starts: Sequence[Start], command: Sequence[str]) -> None:
        """This member waits as a spare: have standbys ready for a start like these."""
        if self._pool.waiting or self._pool.is_importing:
            return
        self._starts, self._refused, self._announced = starts, None, False
        self._spare = SpareStandbys(self._setup, self._pool, starts, command, self.kept or self._earlier(command))

    def receive_imports(self, content: str) -> None:
        """What a member at work has imported, for a spare."""
        if self._spare is not None and (imports := preload.read(content, None)) is not None:
            self._cold_start = imports.seconds
            self._spare.receive_imports(imports)

    @property
    def wants_imports(self) -> bool:
        return self._spare is not None and self._spare.wanting

    def _execute_spares(self, spare: "SpareStandbys", now: float) -> None:
        try:
            if why := self._lacks_memory(rules.FIRST_SIZE + len(self._starts) * rules.FORKED_SIZE):
                raise ValueError(why)
            if self._refused is not None or not spare.execute(self._mode, self._folder, self._failures, now):
                self._announce()
            if spare.wanting and self._context is not None:
                messenger: Any = self._context.running["messenger"]
                messenger.seek_imports()
        except (OSError, ValueError) as error:
            spare.due = None
            self._refuse(str(error))
        self._looks_at = now + rules.looking(oom.killed_together())

    def prepared(self, now: float) -> bool:
        """Whether the first start need not wait any longer.  It does not where ftrun is asked to end."""
        if self.preparing:
            self._pool.read(now)
            self.preparing = self._may_wait
        return not self.preparing

    @property
    def _may_wait(self) -> bool:
        return self._pool.is_importing and self._setup.signals.stop is None

    @property
    def descriptors(self) -> set[int]:
        """What is readable when `prepared` has to be called."""
        return self._pool.descriptors

    def rank_started(self, local_rank: int, now: float) -> None:
        """A single rank was started again, beside the others.  Its next standby has what the attempt had imported."""
        why = self._outcomes.pop()
        if self._mode is None:
            return
        if self._expected or not why:
            self._record("start", why or None, local_rank, warm=int(not why), forked=self._forked, of=1)
        self._forked, self._expected = 0, self._mode != "auto"
        self._due, self._announced = rules.due(self._mode, now), False
        self._on_processes_started()

    def spawned(self) -> None:
        """All processes of the command are started."""
        why = next((why for why in self._outcomes if why), None)
        warm = self._outcomes.count("")
        self._warm_start = bool(self._outcomes) and why is None
        if self._was_prepared or (self._mode is not None and self._is_restart and self._expected):
            self._record("start", why, warm=warm, forked=self._forked, of=len(self._outcomes))
        self._was_prepared, self._pool.patience = False, rules.IMPORTING
        self._expected = self._mode != "auto"
        self._pool.end_all()  # those that were not ready, or that fit no process

    # --- warm starts --------------------------------------------------------------------------------------------------

    def take(self, local_rank: int, start: Start) -> StandbyProcess | None:
        """The standby for this start, which is not one any more; None if there is none."""
        taken = self._pool.take(local_rank, start)
        if taken is None:
            waits = local_rank in self._pool.waiting
            self._outcomes.append(self._refused or ("it was still importing" if waits else "it was not ready"))
            return None
        self._forked += taken.forked
        return taken.process

    def begin(self, process: StandbyProcess, start: Start, group: int, now: float) -> bool:
        """Start this standby; False if that was not possible, and it has ended."""
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
        """Whether the standby is the command now; None: it has not answered yet."""
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

    def abandon(self) -> None:
        """Some process cannot be started: end the standbys that were."""
        self.preparing = False
        for answers, process in self.starting.items():
            self._poll.unregister(answers)
            process.kill()
            process.close()
        self.starting, self.answers_due = {}, None

    # --- beside a healthy attempt -------------------------------------------------------------------------------------

    def follow(self, job: Job) -> None:
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
        self._attempt, self._announced, self._asked = attempt.number, False, 0
        self._refused = self._alone = None
        self._reports = [process.pid for process in attempt.processes] or [attempt.pid]
        self._due = None if self._mode is None else rules.due(self._mode, moved)
        self._compare(moved - attempt.spawned_at)

    def _compare(self, seconds: float) -> None:
        """Record what a warm start has saved, up to the first heartbeat."""
        if not self._warm_start:
            self._cold_start = seconds
        elif self._cold_start is not None:
            self.saved = round(self._cold_start - seconds, 3)
            self._record("saved", seconds=self.saved)

    @property
    def next_start(self) -> rules.NextStart | None:
        if self._mode is None and self._spare is None:
            return None
        ready = sum(one.ready for one in self._pool.waiting.values())
        given_up = any(count >= rules.TRIES for count in self._failures.values())
        why = self._refused or ("too many standbys failed" if given_up else None)
        why = UNKNOWN if why is None and self.wants_imports else why
        return rules.NextStart(ready, max(1, len(self._starts)), why, self.saved)

    @property
    def deadline(self) -> float | None:
        if self.preparing and not self._may_wait:
            return 0.0
        if self._pool.is_importing:
            return self._pool.deadline
        times = [self._due if self._running else None, self._looks_at if self._pool.waiting else None]
        times += [self._spare.due] if self._spare is not None else []
        return min((at for at in times if at is not None), default=None)

    def settle(self, now: float) -> None:
        """Read the answers, end standbys that hang or take too much memory, and start the next ones."""
        if self.preparing:
            return  # `prepared` is called
        self._pool.read(now)
        if self._pool.waiting and self._looks_at is not None and now >= self._looks_at:
            self._looks_at = now + rules.looking(oom.killed_together())
            if why := self._lacks_memory(0):
                self._pool.end_all()
                self._refuse(why)
        if self._spare is not None and self._spare.due is not None and not self._pool.is_importing:
            self._execute_spares(self._spare, now)
        if self._due is not None and self._running and now >= self._due and not self._pool.is_importing:
            self._next(now)

    def _next(self, now: float) -> None:
        self._expected = True
        wanted = range(rules.number(self._mode, len(self._starts)))
        missing = [number for number in wanted if number not in self._pool.waiting and self._may_try(number)]
        if self._refused is not None or not missing:
            self._due = None
            self._announce()
            return
        if self._alone is not None:
            missing = missing[:1]
        found = {number: self._report(number) for number in missing}
        reported = {number: why for number, why in found.items() if why is not None}
        if len(reported) < len(missing) and self._asked < len(AGAIN):
            self._due = now + AGAIN[self._asked]
            self._asked += 1
            return
        why = next((why for why in reported.values() if why), None)
        if not reported:
            self._refuse("the attempt has not reported its imports")
        elif why := why or self._lacks_memory(self._size(len(reported))):
            self._refuse(why)
        else:
            self._import([*reported], now)

    def _import(self, numbers: Sequence[int], now: float) -> None:
        """Start the standbys of these local ranks."""
        numbers = self._pool.alike({number: self._starts[number] for number in numbers}) or numbers[:1]
        first, *others = [f"{self._folder}/{self._reports[number]}" for number in numbers]
        try:
            if others:
                self._pool.fork({number: self._starts[number] for number in numbers}, first, others, now)
            else:
                self._pool.park(numbers[0], self._starts[numbers[0]], first, now)
        except (OSError, ValueError) as error:
            self._refuse(f"a standby cannot be started: {error}")
        self._looks_at = now + rules.looking(oom.killed_together())

    def _size(self, standbys: int) -> int:
        """How much memory so many further standbys may need."""
        alone = [one.size for one in self._pool.waiting.values() if not one.forked]  # which shares nothing
        measured = max(alone, default=rules.FIRST_SIZE)
        return measured + (standbys - 1) * rules.FORKED_SIZE

    def _report(self, number: int) -> str | None:
        """Why the imports of this rank cannot be done in advance, or nothing; None if it has not reported yet."""
        path = f"{self._folder}/{self._reports[number]}"
        content = safe_files.read_foreign(path, REPORT)
        if not content and not os.path.exists(path):
            return None
        return content.partition(b"\0")[0].decode("utf-8", "replace")

    def _may_try(self, number: int) -> bool:
        return self._failures.get(number, 0) < rules.TRIES and number < len(self._reports)

    def _lacks_memory(self, size: int) -> str | None:
        return rules.lacks_memory(memory.available(), size, oom.killed_together())

    # --- what becomes of them (`standby_pool.Owner`) ------------------------------------------------------------------

    def on_forked(self) -> None:
        self._on_processes_started()

    def on_imported(self, process: StandbyProcess, command: Sequence[str]) -> None:
        found = preload.parsed(process.imports(), command, self._cold_start)
        if found is not None and found != self.kept:
            self.kept = found
            if (store := self._state_store) is not None:
                store.keep_imports(found._asdict())

    @property
    def _state_store(self) -> Any:
        return None if self._context is None else self._context.running.get("state_store")

    def on_alone(self, why: str) -> None:
        self._alone = why
        self._record("alone", why)
        if self._spare is not None:
            self._spare.alone, self._spare.due = True, 0.0

    def on_cold(self, why: str) -> None:
        self._refuse(why)

    def on_failed(self, local_ranks: Sequence[int], why: str) -> None:
        """Replace these standbys, a few times."""
        for local_rank in local_ranks:
            self._failures[local_rank] = self._failures.get(local_rank, 0) + 1
        count, which = self._failures[local_ranks[0]], local_ranks[0] if len(local_ranks) == 1 else None
        self._record("failed", why, which)
        if count >= rules.TRIES:
            self._record("off", f"{count} standbys failed", which)
        elif self._due is None and not self._ended and self._mode is not None:
            self._due = 0.0
        if self._spare is not None:
            self._spare.due = 0.0
        self._announced = False

    def child_changed(self, change: ChildChange, now: float) -> None:
        self._pool.child_changed(change, now)

    def _refuse(self, why: str) -> None:
        self._due = None
        if self._refused != why:
            self._refused = why
            self._record("cold", why)

    def _announce(self) -> None:
        ready = [one for one in self._pool.waiting.values() if one.ready]
        if ready and not self._announced:
            self._announced = True
            seconds, size = max(one.seconds for one in ready), sum(one.size for one in ready)
            forked, of = sum(one.forked for one in ready), len(self._starts)
            self._record("ready", ready=len(ready), forked=forked, of=of, seconds=seconds, memory=size)

    def _record(self, what: str, why: str | None = None, local_rank: int | None = None, **numbers: float) -> None:
        given: dict[str, object] = {"local_rank": local_rank, **numbers}
        fields = tuple((name, given[name]) for name in FIELDS if given.get(name) is not None)
        reason = () if why is None else (("why", why),)
        if self._context is not None:
            self._context.records.append(("standby", (("what", what), *fields, *reason), None))

    def _on_processes_started(self) -> None:
        """Exclude the new processes from what the helper of the idle rule counts."""
        if self._context is not None and (sampler := self._context.running.get("sampler")) is not None:
            sampler.on_helpers_started()

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all; there will be no other.  A first start that waits for them goes on (`prepared`)."""
        self._ended, self._due = True, None
        self._pool.end_all()

    def finish(self, until: float) -> None:
        """At the very end, when waiting is allowed: wait until all that were killed are gone."""
        self.close()
        self._pool.wait_until_gone(until)


class SpareStandbys:
    """The standbys of a member that waits as a spare: processes of a command that has not run here, at a place in the
    group that is not known yet.  What they import is what `--preload` names, what an earlier ftrun has left, or what
    the standbys of a member at work have imported: for that the messenger asks the others
    (`helpers/messenger/imports.py`).

    `due`: when `execute` is to be called; None: there are enough, or something has to happen first.  `alone`: each
    rank imports by itself, since ranks that are forked could differ.  `wanting`: nobody has said yet what the command
    imports."""

    def __init__(
        self, setup: Setup, pool: Pool, starts: Sequence[Start], command: Sequence[str], known: Imports | None
    ) -> None:
        self._setup, self._pool, self._starts, self._command, self._known = setup, pool, starts, command, known
        self.due: float | None = 0.0
        self.alone = self.wanting = False

    def receive_imports(self, imports: Imports) -> None:
        """A member at work has imported this."""
        if self._known is None:
            self._known, self.due, self.wanting = imports, 0.0, False

    def execute(self, mode: rules.Mode, folder: str, failures: dict[int, int], now: float) -> bool:
        """Execute those that are missing; whether there are any.  `failures`: in a row, by local rank.  Raises OSError,
        or ValueError with the reason why there can be none."""
        wanted = range(len(self._starts) if mode is None else rules.number(mode, len(self._starts)))
        waiting = self._pool.waiting
        missing = [one for one in wanted if one not in waiting and failures.get(one, 0) < rules.TRIES]
        self.due = None
        if not missing:
            return False
        os.makedirs(folder, 0o700, exist_ok=True)
        imports = preload.write(self._setup, folder, self._command, self._known)
        self.wanting = imports is None
        if imports is not None:
            next_ones = missing[:1] if self.alone else missing
            self._pool.execute_first({one: self._starts[one] for one in next_ones}, imports, now)
            self.due = now  # once these are ready
        return True
