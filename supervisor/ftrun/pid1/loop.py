"""PID 1: poll -> event -> decide -> effects.  One thread, and the only `while True`.

Nothing here waits except the poll.  PID 1 itself only reads /proc and a memory file system, writes to a local run dir,
and sends signals.
"""

import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ftrun.config.derived import policy
from ftrun.config.option_table import Settings
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.group_member import ends_alone
from ftrun.core.machine.job import decide
from ftrun.core.machine.notices import GivenNotices, Notices, notices
from ftrun.core.machine.states import Finish, Healing, Job, Launching, Pending, Running, Starting, Stopping, Suspect
from ftrun.core.machine.stopping import done_with
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations, sentences
from ftrun.host import oom, reaper, signals
from ftrun.host.console import print_error
from ftrun.host.helpers import Helpers
from ftrun.host.output_pipes import OutputPipes
from ftrun.host.standard_input import StandardInput
from ftrun.host.terminal import JobControl
from ftrun.host.tree import RECHECK, Tree, TreeKiller
from ftrun.pid1 import exit_cause
from ftrun.pid1.bootstrap import PhaseContext, Setup, SetupError, prepare, with_group
from ftrun.pid1.clients.base import SETTLED, Context
from ftrun.pid1.clients.registry import Clients
from ftrun.pid1.launching import Launcher, tidy
from ftrun.pid1.state_file import StateFile

if TYPE_CHECKING:
    from ftrun.pid1.rank_recovery import RankRecovery

FREEZE = 0.1  # s after a deadline of the job; a later wake-up means that ftrun was frozen
LONG_FREEZE = 5.0  # s after any other deadline
SUPERVISED = (Starting, Running, Suspect)
FINISHING = 5.0  # s for the helpers to complete their last requests
LONGEST = 86400.0  # s of one poll: the kernel counts milliseconds in 32 bits, 24 days


def supervise(
    command: Sequence[str],
    settings: Settings,
    caught: signals.Signals | None = None,
    phase: PhaseContext | None = None,
) -> int:
    """Run `command` to its end, through all restarts.  Returns the exit code (docs/reference.md); never raises."""
    try:
        if (asked := settings.nproc_per_node) is not None:
            from ftrun.pid1 import rank_launching

            rank_launching.check_input(command, asked)
        phase = phase or PhaseContext()
        setup = prepare(command, settings, caught or signals.Signals(), phase)
    except Exception as error:
        return _not_started(error)
    try:
        supervisor = Supervisor(command, settings, setup, phase)
    except Exception as error:
        setup.journal.log(_traceback(error))
        setup.beats.close()
        return _not_started(error)
    try:
        code = supervisor.run()
    except BaseException as problem:  # any error: if PID 1 dies, the kernel kills the container without a message
        code = supervisor.abandon(problem)
    supervisor.close()
    return code


def _not_started(error: Exception) -> int:
    print_error(sentences.printable(str(error) or type(error).__name__))  # a MemoryError has no text
    return error.code if isinstance(error, SetupError) else exit_codes.INTERNAL.code


class Supervisor:
    """The imperative shell around `decide`: it turns what the kernel reports into events, and effects into calls."""

    def __init__(self, command: Sequence[str], settings: Settings, setup: Setup, phase: PhaseContext) -> None:
        self._command, self._phase, self._last, group = command, phase.name, phase.last, phase.group
        self._policy = with_group(policy(settings, phase.name), settings, group)
        self._journal, self._beats, self._console, self._tree = setup.journal, setup.beats, setup.console, setup.tree
        self._signals, self._setup = setup.signals, setup
        self._console.before_line = self._journal.barrier
        self._control, self._job, self._input = JobControl(), Job(ledger=setup.ledger), StandardInput()
        self._queue, self._poll = deque[ev.Event](), select.poll()
        for fd in (self._signals.fd, self._beats.bell):
            self._poll.register(fd, select.POLLIN)
        self._output_pipes = pipes = OutputPipes(setup.rank_output)
        helpers, paths = Helpers(self._poll, self._journal.log_fd), (setup.run_dir, self._beats.path)
        context = Context(settings, self._policy, helpers, self._tree, *paths, pipes, group, self._console.queue)
        context.life, context.buried = setup.life, setup.buried
        launcher, has_ranks = Launcher, settings.nproc_per_node is not None
        if has_ranks:
            from ftrun.pid1 import rank_launching, rank_recovery  # with all that it needs when a rank dies

            launcher = rank_launching.RankLauncher
        self._launcher = launcher(command, setup, self._control, self._poll, self._output_pipes, group)
        self._clients = Clients(context, self._launcher.standby_request)
        self._policy = self._policy._replace(checks_devices=self._clients.checks_devices)
        self._tree_killer, self._ranks = TreeKiller(self._tree), exit_cause.RankProcesses()
        self._early_changes = list[reaper.ChildChange]()  # of ranks before all have executed
        self._has_read_last = False  # heartbeats of the processes that were reaped together
        self._exit: do.Exit | None = None
        self._settled_at: float | None = time.monotonic() + SETTLED  # when work that can wait is done
        self._exit_cause = exit_cause.ExitCause(self._beats.path, self._clients)
        self._state_file = StateFile(setup, self._policy, command, self._launcher.standby_request, group)
        self._attempt = setup.ledger.start_cnt  # the attempt to which the next record belongs
        self._logged = False  # whether a decision was logged
        self._printed_problem: str | None = None
        self._notices = Notices(GivenNotices())
        self._recovery: RankRecovery | None = None
        if has_ranks:
            shared = self._poll, self._launcher, self._ranks, self._exit_cause, self._problem
            self._recovery = rank_recovery.RankRecovery(setup, self._policy, *shared)

    def run(self) -> int:
        if self._signals.stop is not None:  # the signal came after the end of the command of the phase before
            self._queue.append(ev.SignalReceived(time.monotonic(), self._signals.stop, True))
        self._queue.append(ev.Started(time.monotonic()))
        self._decide()
        annotated = self._setup.settings.annotated
        for what in annotated.problems:
            self._persist("problem", (("annotations", annotated.path), ("what", what)))
            self._console.print(f"{annotated.path}: {what}")
        while True:
            self._decide()
            if self._exit is not None:
                break
            self._wait()
        self._exit = end = self._exit_of_job(self._exit)
        self._setup.write_termination_message(end, self._job.ledger)
        self._finish(end)
        return end.code

    def _decide(self) -> None:
        """Decide on all queued events in order, and perform the effects."""
        if self._queue and not self._job.input_spent and self._input.is_spent():
            self._queue.appendleft(ev.InputSpent(self._queue[0].now))
        while self._queue:
            before = self._job.ledger.start_cnt
            event = self._queue.popleft()
            self._job, effects = decide(self._job, event, self._policy)
            for effect, start in do.by_start(effects, before, self._job.ledger.start_cnt):
                self._attempt = start
                if not isinstance(effect, do.Persist):
                    self._publish(time.monotonic())
                self._perform(effect)
            if isinstance(event, ev.CommandSpawned):  # announced also if it has ended meanwhile
                self._publish(time.monotonic())
        self._beats.publish_next_read(
            self._job.phase.deadline if isinstance(self._job.phase, SUPERVISED) else None, self._job.asleep
        )
        now = time.monotonic()
        self._publish(now)
        self._clients.follow(self._job, now, self._exit_cause.pending)

    def _publish(self, now: float) -> None:
        """Called with each new job, before any effect of it: first the notices that are due, then all records, then the
        state that follows from them."""
        self._write_notices(now)
        self._journal.barrier()
        self._state_file.follow(self._job, now)

    # --- events ----------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Sleep until the deadline or an event, and queue the events."""
        deadline, phase = self._job.phase.deadline, self._job.phase
        others = [self._exit_cause.deadline, self._state_file.due, self._notices.due]
        others += [self._beats.access.due, self._launcher.deadline]
        if self._launcher.report is None:  # the start of the command comes first
            others += [self._clients.deadline, self._settled_at, self._recovery.due if self._recovery else None]
        stage = phase.stage if isinstance(phase, Stopping) else "none"
        ends_tree = stage not in ("none", "asked", "devices", "verdict")
        if ends_tree:
            others.append(self._tree_killer.recheck_at)
        until = min((time for time in (deadline, *others) if time is not None), default=None)
        before = time.monotonic()
        timeout = None if until is None else min(max(0.0, until - before), LONGEST) * 1000
        ready = {fd for fd, _ in self._poll.poll(None if timeout is None else int(timeout + 0.999))}
        now = time.monotonic()
        due = now if until is None else max(until, before)
        if deadline is not None and now - deadline > FREEZE:
            self._queue.append(ev.WokeLate(now, min(deadline, due)))
        elif now - due > LONG_FREEZE and isinstance(phase, Starting | Running | Suspect):
            self._queue.append(ev.WokeLate(now, due))
        if (reports := ready & self._launcher.descriptors) or self._launcher.is_late(now):
            ready -= reports  # closed below, and the next descriptor may get such a number
            self._launched(now)
        for number in self._signals.read():
            if number != signal.SIGCHLD:
                self._queue.append(ev.SignalReceived(now, number, number in signals.STOP))
            if number in signals.JOB_CONTROL:
                self._control.received(number, idle=isinstance(phase, Pending | Healing))
        self._reap(now)
        self._handle_ranks(ready, now)
        self._handle_helpers(ready, now)
        self._queue.extend(self._exit_cause.events(now, self._job.phase))
        if self._beats.handle_wakeup(ready, now):
            self._read_beats(now)
        elif deadline is not None and deadline <= now <= deadline + FREEZE:
            if isinstance(phase, Starting | Running):
                self._read_beats(now)
            else:
                self._queue.append(ev.DeadlineReached(now))
        if ends_tree:
            self._check_tree(now, stage)

    def _handle_helpers(self, ready: set[int], now: float) -> None:
        """Handle the messages of the helpers, and start the helpers that are due."""
        for event in self._clients.receive(ready, now):
            if self._exit_cause.defers(event, self._job.phase, self._tree.processes):
                continue
            if isinstance(event, ev.TreeSampled | ev.Looked):
                self._read_beats(now)  # what was seen must not be compared with outdated heartbeats
            if isinstance(event, ev.EvidenceCollected):
                event = event._replace(ranks=self._beats.read(event.now))
            self._queue.append(event)
        if self._launcher.report is None:
            if self._settled_at is not None and now >= self._settled_at:
                self._settled_at = None
                self._clients.load_rest()
                exit_cause.load_rest()
                tidy(self._beats.path)
            self._clients.supervise(now)
        self._write_records_of_helpers()

    def _handle_ranks(self, ready: set[int] | None, now: float) -> None:
        """Handle what the ranks that can recover have reported, once all have executed."""
        if self._recovery is None or self._launcher.report is not None:
            return
        if events := self._recovery.receive(ready, now, isinstance(self._job.phase, SUPERVISED)):
            self._read_beats(now)  # who moved before it counts
            self._queue.extend(events)

    def _read_beats(self, now: float, ended: bool = False) -> None:
        ranks = self._beats.read(now, ended)
        losses = [self._beats.access.problem, self._beats.lost]
        cannot_beat = any(losses)
        self._queue.append(ev.BeatsRead(now, ranks, cannot_beat, self._beats.frameworks))
        while self._beats.problems:
            what = self._beats.problems.pop()
            self._problem(what, printed=what in losses)

    def _launched(self, now: float) -> None:
        outcome = self._launcher.collect(now, isinstance(self._job.phase, SUPERVISED))
        if outcome is None:
            return
        self._queue.append(outcome)
        if isinstance(outcome, ev.SpawnFailed):
            self._tree.kill()  # the ranks that were executed before a rank failed to start
        if isinstance(outcome, ev.CommandSpawned):
            self._ranks.spawned(outcome.processes, outcome.port)
            self._exit_cause.spawned()
            self._clients.on_spawned()
            self._settled_at = now + SETTLED
            oom.exempt_from_group_kill()
            if (watch := self._beats.start_watching(now)) is not None:
                self._poll.register(watch, select.POLLIN)
            if (faults := self._signals.watch_faults()) is not None:
                self._poll.register(faults, select.POLLIN)
            if self._beats.is_touched:  # before it was watched
                self._read_beats(now)
        early, self._early_changes = self._early_changes, []
        for change in early:
            self._command_changed(change, now)

    def _reap(self, now: float) -> None:
        """Reap every child that changed, including adopted orphans; only the end of the command itself is an event."""
        changes, more = reaper.reap()
        self._has_read_last = False
        for change in changes:
            self._clients.child_changed(change, now)
            if change.ended:
                self._tree_killer.reaped(change.pid)
            if change.pid in self._tree.processes and self._launcher.awaits(change.pid):
                self._launched(now)  # the report of an exec comes before what the process does
            if change.pid in self._tree.processes:
                if self._launcher.report is not None:
                    self._early_changes.append(change)
                else:
                    self._command_changed(change, now)
        if more:
            os.kill(os.getpid(), signal.SIGCHLD)  # the other event sources come first; then the rest is reaped

    def _command_changed(self, change: reaper.ChildChange, now: float) -> None:
        """The command, or one of its ranks, has ended, stopped or continued."""
        if change.ended:
            self._command_ended(change, now)
        elif change.how == os.CLD_CONTINUED:
            self._ranks.continued(change.pid)
            self._queue.append(ev.CommandContinued(now))
        elif change.status in signals.JOB_CONTROL:
            group = self._tree.group or change.pid
            if self._control.resumes(group, change.status) or not self._ranks.stopped(change.pid, self._tree.processes):
                return
            self._queue.append(ev.CommandStopped(now, change.status))
            if self._control.stops_us(change.status):
                self._decide()  # the record must be written before ftrun stops itself
                self._journal.barrier()
                self._control.stop_with(group)

    def _command_ended(self, change: reaper.ChildChange, now: float) -> None:
        self._handle_ranks(None, now)  # what the ranks sent before it ended comes first
        local_rank = self._tree.reaped(change.pid)
        if not self._tree.processes:
            self._control.take_back()
        if not self._has_read_last:  # its last heartbeats count
            self._has_read_last = True
            self._read_beats(now, ended=True)
        watched = isinstance(self._job.phase, Launching | Starting | Running | Suspect)
        exited_itself = change.how == os.CLD_EXITED
        end = (
            ev.CommandExited(now, code=change.status) if exited_itself else ev.CommandExited(now, signal=change.status)
        )
        exited: ev.CommandExited | None = end
        if self._ranks.processes:
            self._queue.append(ev.RankExited(now, local_rank, end.code, end.signal, self._exit_cause.exception(change)))
            if watched and self._recovers(change):
                return
            exited = self._ranks.exited(change.pid, end, not watched)
        if exited is not None and change.status and watched:
            self._exit_cause.begin(exited, change.pid, self._ranks)
        elif exited is not None:
            self._queue.append(exited)

    def _recovers(self, change: reaper.ChildChange) -> bool:
        """Whether the attempt goes on without this process, which is decided at once."""
        self._ranks.recovers(change.pid)
        self._decide()
        return bool(change.status) and self._job.recovers_ranks

    def _check_tree(self, now: float, stage: str) -> None:
        """Scan the tree again once all processes of the last scan are reaped, or after a pause."""
        if not self._queue and (not self._tree_killer.awaited or now >= self._tree_killer.recheck_at):
            self._queue.extend(self._tree_killer.kill() if stage == "kill" else self._tree_killer.check())

    # --- effects -----------------------------------------------------------------------------------------

    def _perform(self, effect: do.Effect) -> None:
        match effect:
            case do.Persist(event, fields, durable):
                self._persist(event, fields, durable)
            case do.LogLine(text):
                self._logged = True
                self._journal.log(sentences.printable(text))
                self._console.print(text)
            case do.Spawn():
                self._spawn(effect)
            case do.PrepareStandbys(place, node):
                self._launcher.listed_devices = len(self._job.devices)
                self._launcher.prepare_standbys(self._job.ledger, place, node)
            case _ if isinstance(effect, do.RankEffect) and self._recovery is not None:
                self._queue.extend(self._recovery.perform(effect, self._job.ledger))
            case do.Forward(number):
                if (problem := self._tree.forward(number, self._control)) is not None:
                    self._problem(problem, printed=True)
            case do.Investigate():
                if isinstance(self._job.phase, SUPERVISED):
                    self._clients.investigate(effect, self._job.phase.attempt)
            case do.Look():
                if isinstance(self._job.phase, SUPERVISED):
                    self._clients.look(self._job.phase.attempt)
            case do.Terminate() | do.Kill() | do.Inspect():
                # An exit whose cause was still waited for belongs to this attempt: the tree may end at once.
                self._queue.extend(self._exit_cause.events(time.monotonic(), self._job.phase))
                self._queue.extend(self._tree_killer.perform(effect))
            case do.Release():
                self._queue.extend(self._clients.release(sorted(self._tree_killer.dead), time.monotonic()))
            case do.Heal(fault):
                self._queue.extend(self._clients.heal(fault, time.monotonic()))
            case do.AnswerOperator():
                self._clients.answer(effect)
            case do.AskForVerdict():
                self._queue.extend(self._clients.consult(self._job.ledger, time.monotonic()))
            case do.Exit():
                self._exit = effect

    def _spawn(self, spawn: do.Spawn) -> None:
        self._beats.reset()
        self._input.rewind()
        if self._recovery is not None:
            self._recovery.spawning(spawn.round)
        self._setup.starts.started(self._job.ledger.starts)
        ledger = self._job.ledger
        # The count goes on from phase to phase, each with its own command.
        first = ledger.starts == 1 or (bool(self._phase) and ledger.reason == "first")
        self._exit_cause.spawning(time.monotonic(), first)
        self._clients.on_spawning(self._job.ledger.start_cnt, spawn.place.first if spawn.place else 0)
        self._launcher.listed_devices = len(self._job.devices)
        if (failed := self._launcher.start(self._job.ledger, spawn.place, spawn.node, spawn.round)) is not None:
            self._tree.kill()  # the ranks that were started before it
            self._queue.append(failed)

    # --- records -----------------------------------------------------------------------------------------

    def _persist(self, event: str, fields: do.Fields, durable: bool = False) -> None:
        """`durable`: the record and the state are on disk when this returns."""
        journal, console = self._journal, self._console
        if event == "started":
            fields += self._setup.describe_run(self._command, self._phase)
        stamp = journal.record(event, self._attempt, fields, durable)
        if durable:
            self._state_file.save(self._job, True)
        self._clients.keep(self._job.ledger)
        console.attempt = self._attempt
        console.record(stamp, event, fields)
        if journal.problem not in (None, self._printed_problem):
            self._printed_problem = journal.problem
            console.print(str(journal.problem))

    def _problem(self, what: str, printed: bool = False) -> None:
        self._persist("problem", (("what", what),))
        if printed:
            self._console.print(what)

    def _write_records_of_helpers(self) -> None:
        """Write the records that the clients of the helpers have made, and print what is for the operator.  During a
        pause a debugger may hold a rank, which is no straggler then."""
        for event, fields, text in self._clients.drain_records():
            if event == "straggler" and self._job.paused is not None:
                continue
            self._persist(event, fields)
            if text is not None:
                self._console.print(text, severity="warning" if event == "problem" else "info")

    def _write_notices(self, now: float) -> None:
        """Write what ftrun notes of its own accord."""
        run_dir = self._setup.run_dir.given
        self._notices = found = notices(self._job, self._policy, self._notices.given, run_dir, now)
        for line in found.lines:
            self._journal.log(line)
            self._console.print(line, severity="info")
        if (wait := found.wait) is not None:
            start = self._job.ledger.start_cnt
            self._journal.record("waiting", start, (("seconds", wait.seconds), ("why", wait.why)), False)
            self._console.print(f"no command has run for {durations.seconds(wait.seconds)}: {wait.why}")

    # --- the end ----------------------------------------------------------------------------------------------------

    def _exit_of_job(self, end: do.Exit) -> do.Exit:
        """After a stop signal the next phase is not started, even if this one exited with 0."""
        stop = self._signals.stop
        if self._last or end.code or stop is None:
            return end
        return do.Exit(128 + stop, exit_codes.STOPPED, f"stopped from outside by {sentences.signal(stop)}")

    def _finish(self, end: do.Exit) -> None:
        """Complete the last requests: the verdict for the other ftruns, and the work at the end of the container."""
        work = self._setup.exit_work(end, self._job.ledger) if self._last or end.code else None
        verdict, alone = self._setup.verdict(end, self._job.ledger), ends_alone(end.verdict, self._policy)
        self._clients.end(verdict, alone, work)
        self._clients.keep(self._job.ledger, end.verdict)
        begun, grace = time.monotonic(), self._setup.exit_grace
        until = {"exit hooks": float("inf") if grace is None else begun + grace + FINISHING}
        while waited := self._clients.unfinished:
            limit = min(until.get(what, begun + FINISHING) for what in waited)
            if time.monotonic() >= limit:
                self._problem(f"not completed at the end: {', '.join(waited)}")
                self._journal.barrier()
                break
            others = [at for at in (self._clients.deadline, self._settled_at) if at is not None]
            left = min((limit, *others)) - time.monotonic()
            ready = {fd for fd, _ in self._poll.poll(min(max(0.0, left), LONGEST) * 1000 + 1)}
            self._signals.read()
            for change in reaper.reap()[0]:
                self._clients.child_changed(change, time.monotonic())
            self._handle_helpers(ready, time.monotonic())
            self._decide()  # answer pending requests

    def abandon(self, problem: BaseException) -> int:
        """Handle an internal error of ftrun: exit code 125, unless the end of the run had been recorded before it."""
        self._exit = end = give_up(problem, self._setup, self._policy, self._job.ledger.start_cnt, self._exit)
        self._job = done_with(self._job, Finish(end.code, end.verdict, end.message))
        try:
            self._setup.write_termination_message(end, self._job.ledger)
            self._state_file.save(self._job, False)
            self._clients.follow(self._job, time.monotonic(), False)
            self._finish(end)
        except Exception as another:  # possibly the same error again
            self._journal.log(f"the end of the run is incomplete: {another!r}")
        return end.code

    def close(self) -> None:
        """Release everything.  The code is recorded, so that a failure of one step changes nothing else."""
        steps: list[Callable[[], object]]
        steps = [self._journal.barrier, self._control.take_back, self._input.close, self._launcher.close]
        steps += [] if self._recovery is None else [self._recovery.close]
        steps += [self._clients.drain, self._write_records_of_helpers, self._beats.close]
        steps += [self._print_summary, partial(self._clients.close, self._console.print), self._journal.close]
        for step in steps:
            try:
                step()
            except Exception as problem:
                self._journal.log(_traceback(problem))

    def _print_summary(self) -> None:
        """After the last output of the command."""
        if self._exit is not None:
            self._setup.print_summary(self._exit, self._job.ledger, self._phase, self._logged)


def give_up(problem: BaseException, setup: Setup, policy: Policy, attempt: int, recorded: do.Exit | None) -> do.Exit:
    """After an internal error: send SIGTERM to the tree, and SIGKILL after the grace, until the kill timeout; record
    the error and the end, unless there is a record of the end (`recorded`)."""
    journal, tree = setup.journal, setup.tree
    text = _traceback(problem)
    journal.log(text)
    journal.record("problem", attempt, (("traceback", text),), True)
    why = f"ftrun itself failed ({problem!r})"
    setup.console.print(f"{why}; ending the command; traceback: {journal.path}/run.log", severity="error")
    try:
        _end_tree(tree, policy)
    except Exception as another:  # possibly the same error again
        journal.log(f"the processes of the command cannot be listed: {another!r}")
        tree.kill_groups()
    if recorded is not None:
        return recorded
    end = do.Exit(exit_codes.INTERNAL.code, exit_codes.INTERNAL.name, f"ftrun itself failed: {problem!r}")
    fields = (("verdict", end.verdict), ("exit_code", end.code), ("why", end.message))
    journal.record("ended", attempt, fields, True)
    return end


def _end_tree(tree: Tree, policy: Policy) -> None:
    deadline = time.monotonic() + policy.limits.grace
    tree.terminate()
    while time.monotonic() < deadline + policy.limits.kill_timeout:
        reaper.reap()
        members = tree.members()
        if (not members and tree.is_empty()) or (members and tree.beyond_reach(members)):
            break
        if time.monotonic() >= deadline:
            tree.kill()
        time.sleep(RECHECK)


def _traceback(problem: BaseException) -> str:
    try:
        import traceback  # needed for an internal error only

        return "".join(traceback.format_exception(problem))
    except Exception:  # the disk is gone, or there is no memory
        return repr(problem)
