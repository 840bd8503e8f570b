"""PID 1: poll -> event -> decide -> effects.  One thread, and the only `while True`.

Nothing in here waits for anything but the poll: reading /proc and a memory file system, writing to a local run dir and
signalling are all that it does itself.
"""

import os
import select
import signal
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ftrun import __version__
from ftrun.config.derived import policy
from ftrun.config.option_table import Settings
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Finish, Healing, Job, Launching, Pending, Running, Starting, Stopping, Suspect
from ftrun.core.machine.stopping import ended
from ftrun.core.rules import exit_codes
from ftrun.core.text import redaction, sentences
from ftrun.host import reaper, signals
from ftrun.host.helpers import Helpers
from ftrun.host.job_control import JobControl
from ftrun.host.output_pipes import OutputPipes
from ftrun.host.start_count import Starts
from ftrun.host.tree_killer import TreeKiller
from ftrun.pid1.bootstrap import Setup, SetupError, prepare
from ftrun.pid1.clients.registry import Clients
from ftrun.pid1.crash import give_up
from ftrun.pid1.exit_cause import ExitCause
from ftrun.pid1.launching import Launcher, after_exec
from ftrun.pid1.state_file import StateFile

if TYPE_CHECKING:
    from ftrun.config.group_config import Group

TELLING = 5.0  # s that others have at the end to write down what they were told
LATE = 0.1  # s; waking later than that, we were frozen
WATCHING = (Starting, Running, Suspect)


def supervise(
    command: Sequence[str], settings: Settings, caught: signals.Signals | None = None, part: "Part | None" = None
) -> int:
    """Run `command` to its end, through all its restarts; gives the exit code of DESIGN 2.4.  Never raises."""
    try:
        setup = prepare(settings, caught or signals.Signals(), part.starts if part else None)
        supervisor = Supervisor(command, settings, setup, part or Part())
    except Exception as error:
        os.write(2, f"ftrun: {sentences.printable(str(error))}\n".encode())
        return error.code if isinstance(error, SetupError) else exit_codes.INTERNAL.code
    try:
        return supervisor.run()
    except BaseException as problem:  # whatever it is: a PID 1 that dies takes the container down without a word
        return supervisor.abandon(problem)
    finally:
        supervisor.close()


class Part(NamedTuple):
    """Which of several in sequence it is; `last`: nothing follows.  `group`: what ftrun is one of; `starts`: of all."""

    phase: str = ""
    last: bool = True
    group: "Group | None" = None
    starts: Starts | None = None


class Supervisor:
    """The imperative shell around `decide`: it turns what the kernel says into events, and effects into calls."""

    def __init__(self, command: Sequence[str], settings: Settings, setup: Setup, part: Part) -> None:
        self._command, self._phase, self._last, group = command, part.phase, part.last, part.group
        self._policy = policy(settings, part.phase)._replace(group=group is not None)
        self._words = settings["annotations"].value
        self._journal, self._beats, self._console, self._tree = setup.journal, setup.beats, setup.console, setup.tree
        self._signals, self._setup = setup.signals, setup
        self._control = JobControl()
        self._job, self._start = Job(ledger=setup.ledger), setup.ledger.start_cnt
        self._queue: deque[ev.Event] = deque()
        self._poll = select.poll()
        self._poll.register(self._signals.fd, select.POLLIN)
        self._poll.register(self._beats.bell, select.POLLIN)
        self._capture = OutputPipes((1, 2) if settings["log-dir"].value else ())
        helpers, paths = Helpers(self._poll, self._journal.log_fd), (setup.place, self._beats.path)
        self._clients = Clients(settings, self._policy, helpers, self._tree, *paths, self._capture, group)
        self._policy = self._policy._replace(checks_devices=self._clients.checks_devices)
        self._launcher = Launcher(command, setup, self._control, self._poll, self._capture)
        self._tree_killer = TreeKiller(self._tree)
        self._exit: do.Exit | None = None
        self._spoke = False  # of what was decided
        self._told: str | None = None
        self._fresh = False  # it has just executed
        self._exit_cause = ExitCause(self._beats.path, self._clients)
        run = settings, self._policy, command, self._console, setup.place.given
        self._standing = StateFile(self._journal, self._tree, self._beats.path, *run)

    def run(self) -> int:
        if self._signals.stop is not None:  # after the end of the command before this one
            self._queue.append(ev.SignalReceived(time.monotonic(), self._signals.stop, True))
        self._queue.append(ev.Started(time.monotonic()))
        self._settle()
        for what in self._words.problems:
            self._persist("problem", (("annotations", self._words.path), ("what", what)), False)
            self._console.say(f"{self._words.path}: {what}")
        while True:
            self._settle()
            if self._exit is not None:
                break
            self._wait()
        self._exit = end = self._whole(self._exit)
        self._setup.last_words(end, self._job.ledger)
        self._part(end)
        return end.code

    def _whole(self, end: do.Exit) -> do.Exit:
        """As it is for the job: a command that ended well because it was to end is not followed by the next."""
        stop = self._signals.stop
        if self._last or end.code or stop is None:
            return end
        return do.Exit(128 + stop, exit_codes.STOPPED, f"stopped from outside by {sentences.signal(stop)}")

    def _settle(self) -> None:
        """Decide on every event there is, in order, and do what follows from it."""
        while self._queue:
            before = self._job.ledger.start_cnt
            event = self._queue.popleft()
            self._job, effects = decide(self._job, event, self._policy)
            for effect, start in do.by_start(effects, before, self._job.ledger.start_cnt):
                self._start = start
                if not isinstance(effect, do.Persist):
                    self._standing.follow(self._job, time.monotonic())
                self._perform(effect)
            if isinstance(event, ev.CommandSpawned):  # announced also if it has ended meanwhile
                self._standing.follow(self._job, time.monotonic())
        self._beats.publish_next_read(
            self._job.phase.deadline if isinstance(self._job.phase, WATCHING) else None, self._job.asleep
        )
        now = time.monotonic()
        self._standing.follow(self._job, now)
        self._clients.follow(self._job, now, self._exit_cause.deadline is not None)

    # --- what happened ----------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Sleep until the deadline or an event, and turn what came into events."""
        if self._fresh:  # the command works: there is time
            after_exec(self._beats.path)
            self._fresh = False
        deadline, phase = self._job.phase.deadline, self._job.phase
        others = [self._clients.deadline if self._launcher.report is None else None]  # the command comes before them
        others += [self._exit_cause.deadline, self._standing.due, self._beats.access.due]
        if isinstance(phase, Stopping) and phase.stage not in ("asked", "devices", "verdict"):
            others.append(self._tree_killer.recheck_at)
        until = min((time for time in (deadline, *others) if time is not None), default=None)
        timeout = None if until is None else max(0.0, until - time.monotonic()) * 1000
        ready = {fd for fd, _ in self._poll.poll(None if timeout is None else int(timeout + 0.999))}
        now = time.monotonic()
        if deadline is not None and now - deadline > LATE:
            self._queue.append(ev.WokeLate(now, deadline))
        if self._launcher.report in ready:
            ready -= {self._launcher.report}  # it is closed below, and what is opened next may get its number
            self._launched(now)
        for number in self._signals.read():
            if number != signal.SIGCHLD:
                self._queue.append(ev.SignalReceived(now, number, number in signals.STOP))
            if number in signals.JOB_CONTROL:
                self._control.received(number, idle=isinstance(phase, Pending | Healing))
        self._reap(now)
        self._hear(ready, now)
        if (exited := self._exit_cause.due(now, self._job.phase)) is not None:
            self._queue.append(exited)
        if self._beats.handle_wakeup(ready, now):
            self._look(now)
        elif deadline is not None and deadline <= now <= deadline + LATE:
            if isinstance(phase, Starting | Running):
                self._look(now)
            else:
                self._queue.append(ev.DeadlineReached(now))
        if isinstance(phase, Stopping) and phase.stage not in ("asked", "devices", "verdict"):
            self._check_tree(now, phase.stage)

    def _hear(self, ready: set[int], now: float) -> None:
        """What the helpers say; those that are due are started."""
        for event in self._clients.hear(ready, now):
            if isinstance(event, ev.TreeSampled):
                self._look(now)  # what the ranks said last would be judged as if it held still
            self._queue.append(self._with_ranks(event))
        if self._launcher.report is None:
            self._clients.tend(now)
        for record, fields, text in self._clients.drain_records():
            self._persist(record, fields, False)
            if text is not None:
                self._journal.flush()
                self._console.say(text)

    def _with_ranks(self, event: ev.Event) -> ev.Event:
        return event._replace(ranks=self._beats.read(event.now)) if isinstance(event, ev.EvidenceCollected) else event

    def _look(self, now: float) -> None:
        ranks = self._beats.read(now)
        self._queue.append(ev.BeatsRead(now, ranks, self._beats.access.problem is not None))
        while self._beats.problems:
            what = self._beats.problems.pop()
            self._persist("problem", (("what", what),), False)
            if what == self._beats.access.problem:
                self._console.say(what)

    def _launched(self, now: float) -> None:
        outcome = self._launcher.outcome(now)
        self._queue.append(outcome)
        if isinstance(outcome, ev.CommandSpawned):
            self._exit_cause.spawned()
            self._clients.spawned()
            self._fresh = True
            if (watch := self._beats.start_watching(now)) is not None:
                self._poll.register(watch, select.POLLIN)

    def _reap(self, now: float) -> None:
        """Every child that changed, adopted orphans included; only the command's own end is an event."""
        changes, more = reaper.reap()
        for change in changes:
            if change.ended:
                self._tree_killer.awaited.discard(change.pid)
                self._clients.ended(change.pid, now, change.how == os.CLD_EXITED and change.status == 0)
            elif change.how == os.CLD_STOPPED:
                self._clients.stopped(change.pid)
            if change.pid != self._tree.command:
                continue
            if change.ended and self._launcher.report is not None:
                self._launched(now)  # it has executed, or failed to, before it ended
            if change.ended:
                self._tree.command = None
                self._control.take_back()
                self._look(now)  # what it reported last counts
                by_itself = change.how == os.CLD_EXITED
                exited = (
                    ev.CommandExited(now, code=change.status)
                    if by_itself
                    else ev.CommandExited(now, signal=change.status)
                )
                if change.status and isinstance(self._job.phase, Launching | Starting | Running | Suspect):
                    self._exit_cause.begin(exited, change.pid)
                else:
                    self._queue.append(exited)
            elif change.how == os.CLD_CONTINUED:
                self._queue.append(ev.CommandContinued(now))
            elif change.status in signals.JOB_CONTROL:
                if self._launcher.reported():
                    self._launched(now)  # what has executed may stop as soon as it reads
                if self._control.resumes(change.pid, change.status):
                    continue
                self._queue.append(ev.CommandStopped(now, change.status))
                if self._control.stops_us(change.status):
                    self._settle()  # it is on record before we stop, for as long as the shell likes
                    self._journal.flush()
                    self._control.stop_with(change.pid)
        if more:
            os.kill(os.getpid(), signal.SIGCHLD)  # come back for the rest after the other sources had their turn

    def _check_tree(self, now: float, stage: str) -> None:
        """Look at the tree again when all that the last look showed are reaped, or after a while."""
        if not self._queue and (not self._tree_killer.awaited or now >= self._tree_killer.recheck_at):
            self._queue.extend(self._tree_killer.kill() if stage == "kill" else self._tree_killer.check())

    # --- what is to be done -----------------------------------------------------------------------------------------

    def _perform(self, effect: do.Effect) -> None:
        match effect:
            case do.Persist(event, fields, durable):
                self._persist(event, fields, durable)
            case do.LogLine(text):
                self._spoke = True
                self._journal.log(sentences.printable(text))
                self._console.say(text)
            case do.Spawn():
                self._spawn()
            case do.Forward(number):
                if (problem := self._tree.forward(number, self._control)) is not None:
                    self._persist("problem", (("what", problem),), False)
                    self._console.say(problem, severity="warning")
            case do.Investigate(finding):
                phase = self._job.phase
                if isinstance(phase, WATCHING):
                    self._clients.investigate(finding, phase.attempt, phase.attempt.ranks)
            case do.Terminate():
                self._queue.extend(self._tree_killer.terminate())
            case do.Kill():
                self._queue.extend(self._tree_killer.kill())
            case do.Inspect():
                self._queue.extend(self._tree_killer.inspect())
            case do.Release():
                self._release()
            case do.Heal(fault):
                self._queue.extend(self._clients.heal(fault, time.monotonic()))
            case do.Answer():
                self._clients.answer(effect)
            case do.RequestPermission():
                self._queue.extend(self._clients.consult(self._job.ledger, time.monotonic()))
            case do.Exit():
                self._exit = effect

    def _persist(self, event: str, fields: tuple[tuple[str, object], ...], durable: bool) -> None:
        attempt = self._start
        if event == "started":
            fields += (("version", __version__), ("command", redaction.command(self._command)), ("pid", os.getpid()))
            fields += (("phase", self._phase),) if self._phase else ()
            fields += (("annotations", dict(self._words.relayed)),) if self._words.relayed else ()
        stamp = self._journal.record(event, attempt, fields, durable)
        if durable:
            self._standing.save(self._job, True)
        self._clients.keep(self._job.ledger)
        self._console.attempt = attempt
        self._console.record(stamp, event, fields)
        if self._journal.problem not in (None, self._told):
            self._told = self._journal.problem
            self._console.say(str(self._told))

    def _spawn(self) -> None:
        self._beats.reset()
        self._setup.starts.started(self._job.ledger.start_cnt)
        self._exit_cause.spawning(time.monotonic())
        self._clients.spawning(self._job.ledger.start_cnt)
        if (failed := self._launcher.start(self._job.ledger)) is not None:
            self._queue.append(failed)

    def _release(self) -> None:
        self._queue.extend(self._clients.release(sorted(self._tree_killer.dead), time.monotonic()))

    # --- the end ----------------------------------------------------------------------------------------------------

    def _part(self, end: do.Exit) -> None:
        """What is left to do for others: the verdict for those who share it, and the work at the end of a container."""
        now, grace = time.monotonic(), self._setup.parting_grace
        work = self._setup.parting_work if self._last or end.code else None
        self._clients.end(self._setup.verdict(end, self._job.ledger), work)
        self._clients.keep(self._job.ledger, end.verdict)
        until: dict[str, float | None] = dict.fromkeys(("kept", "told", "left"), now + TELLING)
        until["parted"] = None if grace is None else now + grace + TELLING
        while waited := [until[what] for what in self._clients.unfinished]:
            now = time.monotonic()
            times = [time for time in (*waited, self._clients.deadline) if time is not None]
            if any(time is not None and now >= time for time in waited):
                what = f"not done at the end: {', '.join(self._clients.unfinished)}"
                self._persist("problem", (("what", what),), False)
                self._journal.flush()
                break
            timeout = max(0.0, min(times) - now) * 1000 + 1 if times else None
            ready = {fd for fd, _ in self._poll.poll(timeout)}
            self._signals.read()
            for change in reaper.reap()[0]:
                if change.ended:
                    self._clients.ended(
                        change.pid, time.monotonic(), change.how == os.CLD_EXITED and change.status == 0
                    )
                elif change.how == os.CLD_STOPPED:
                    self._clients.stopped(change.pid)
            self._hear(ready, time.monotonic())
            self._settle()  # whoever asks is answered

    def abandon(self, problem: BaseException) -> int:
        """ftrun itself failed: 125."""
        grace, attempt = self._policy.grace, self._job.ledger.start_cnt
        kill = self._policy.kill_timeout
        self._exit = give_up(problem, self._journal, self._console, self._tree, grace, kill, attempt)
        self._setup.last_words(self._exit, self._job.ledger)
        self._job = ended(self._job, Finish(self._exit.code, self._exit.verdict, self._exit.message))
        try:
            self._standing.save(self._job, False)
            self._clients.follow(self._job, time.monotonic(), False)
            self._part(self._exit)
        except Exception as another:  # maybe the same one
            self._journal.log(f"not all was done at the end: {another!r}")
        return self._exit.code

    def close(self) -> None:
        """Everything put back."""
        self._journal.flush()
        self._control.take_back()
        self._clients.drain()
        self._beats.close()
        if self._exit is not None:  # after the last that the command wrote
            self._setup.sum_up(self._exit, self._job.ledger, self._phase, self._spoke)
        if (left := self._clients.close()) is not None:
            self._console.say(left)
