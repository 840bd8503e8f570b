"""One suspicion, from the first observation to the report."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ftrun.core.machine.values import Spin
from ftrun.core.rules import liveness
from ftrun.core.rules.culprit import RankSeen, culprits
from ftrun.core.rules.hang_rules import RULES
from ftrun.core.text.sentences import sentence
from ftrun.helpers.evidence import (
    blocking_calls,
    flight_recorder,
    hccl_log,
    job_processes,
    look,
    nccl_ras,
    processes,
    report,
    wait_picture,
)
from ftrun.helpers.evidence.blocking_calls import Task
from ftrun.helpers.evidence.classification import Classification, Outside, classify, deliberate
from ftrun.helpers.evidence.nccl_ras import NcclView
from ftrun.helpers.evidence.other_members import OtherMembers
from ftrun.helpers.evidence.processes import Observation, ProcessChange, changes, find_moving, process_subtree
from ftrun.helpers.evidence.report import ReportFacts, ReportFolder
from ftrun.messages.evidence import ON_TIME, UNKNOWN, EvidenceEvent, EvidenceRequest, Reply
from ftrun.messages.helpers import Problem
from ftrun.records.files import state
from waitproof import libraries, procfs, stacks, wait_graph, waits
from waitproof.connections import traffic
from waitproof.proof import Walk
from waitproof.stacks import Stacks
from waitproof.world import LATE, World

ELSEWHERE: Final = -1  # stands for the ranks of other members
STACKS: Final = 0.25  # share of the time beside the pause that is for the stacks of one observation
AGAIN: Final = 1.5  # times the duration of the first observation, for the second one
MOMENT: Final = 1.0  # s, or half of the silence: a process of that age has just been started;
FEW: Final = 16  # the stacks of no more such processes are read
CONCLUSION: Final = 0.05  # s for what follows it
OUTPUTS: Final = 4  # output files that are read


class Investigation:
    """`send` sends a message to PID 1."""

    def __init__(self, request: EvidenceRequest, send: Callable[[EvidenceEvent], None]) -> None:
        self._request, self._send = request, send
        self._received, self._overdue = b"", threading.Event()
        self._by_proof = RULES[request.finding.rule].by_proof
        self._ranks = {rank.pid for rank in request.ranks}
        self._replied = threading.Lock()  # acquired by the thread that sends the reply
        self._processes = 0  # number of processes in the last observation,
        self._excluded = frozenset(request.excluded)  # and those that were not a part of it
        self._group = waits.group(request.excluded)
        self._others = OtherMembers(request.group) if request.group is not None else None
        self._folder: ReportFolder | None = None

    def run(self, until: float) -> None:
        """Send the reply as soon as the report is written, and add to the report what arrives until `until`."""
        request, started, spy = self._request, time.monotonic(), stacks.program()
        resume = started + request.between
        seconds = STACKS * max(1.0, request.timeout - request.between)
        first, order = self._observe()
        first_waits, first_task = self._observe_waits(first, order)
        if self._by_proof:
            first_task.wait(seconds)  # a proof needs the stacks of the time between the observations
        before = self._collect_stacks(spy, first, order, seconds)
        background = BackgroundWork(request, order)
        if request.due is not None:  # the second observation takes as long as the first
            resume = max(resume, request.due - AGAIN * (time.monotonic() - started) - CONCLUSION)
        moving = find_moving(spy, before, order, resume)
        spinning = self._computing()
        time.sleep(max(0.0, resume - time.monotonic()))

        second, order = self._observe()
        second_waits, second_task = self._observe_waits(second, order)
        not_python = {pid for pid, why in before.missing.items() if why == stacks.NO_PYTHON}
        after = self._collect_stacks(spy, second, [pid for pid in order if pid not in not_python], seconds)
        found = sorted(changes(first, before, second, after, moving), key=lambda change: self._priority(change.pid))
        for task in (first_task, second_task):
            task.wait(seconds)
        request = self._request = self._when_overdue()
        failed = {("waits of the threads", task.problem) for task in (first_task, second_task) if task.problem}
        worlds = first_waits.copy(), second_waits.copy()
        walk = self._walk(*worlds, before)
        wait, chain = walk.describe.explain(request.suspect, walk.reasons)
        open_reason: str | None = None
        if request.finding.rule in liveness.SPIN_LIMITS:
            open_reason, wait = self._still_computes(spinning), request.finding.mechanism
        elif self._by_proof:
            late = first_task.running or second_task.running or bool(failed)
            open_reason, wait = (LATE, wait) if late else self._prove(walk)
        verdict = self._classify(found, worlds, open_reason, wait)
        facts = ReportFacts(
            request,
            verdict,
            found,
            second.at - first.at,
            *self._times(),
            missing=[
                *report.unavailable(found, {**before.missing, **after.missing}, worlds[1], request.suspect),
                *failed,
            ],
            files=report.open_files(worlds[1], request.suspect),
            chain=() if verdict.cleared else chain,
        )
        facts = _explained(_with_origin(facts), walk)
        complete = background.add_to(facts)
        path = self._write(complete)
        suspects = [change for change in found if change.pid == request.suspect]
        in_collective = any(change.is_in_collective for change in suspects)
        named = culprits(_seen_ranks(facts)) or nccl_ras.culprits(complete.nccl)
        self._reply(verdict, report.location_summary(complete), path, in_collective, complete.mechanism, named)
        if path is not None and background.running:
            background.wait(until)
            self._write(background.add_to(facts))

    def receive(self, content: bytes) -> None:
        """Receive a part of the line `Overdue`."""
        self._received += content
        if content.endswith(b"\n"):
            self._overdue.set()

    def _when_overdue(self) -> EvidenceRequest:
        """Wait until the limit has passed; return the request with what PID 1 knows of the ranks then."""
        request = self._request
        if request.due is None:
            return request
        self._overdue.wait()
        over = ON_TIME.load(self._received)
        self._ranks = {rank.pid for rank in over.ranks}
        return request._replace(finding=over.finding, now=over.now, ranks=over.ranks)

    def give_up(self, why: str) -> None:
        """Send the reply if it was not sent yet.  Without evidence only a given timeout ends anything."""
        cleared = None if self._request.given else why
        self._reply(Classification(cleared, why, 0.0, 0.0), "", None, problem=f"{UNKNOWN}: {why}" if cleared else why)

    def _reply(
        self,
        verdict: Classification,
        why: str,
        path: str | None,
        waits: bool = False,
        mechanism: str = "",
        named: tuple[int, ...] = (),
        problem: str | None = None,
    ) -> None:
        if self._replied.acquire(blocking=False):
            if problem is not None:
                self._send(Problem(problem))
            rates = round(verdict.cpu, 3), round(verdict.io)
            self._send(Reply(verdict.cleared, why, *rates, self._processes, path, waits, mechanism, named))

    def _observe(self) -> tuple[Observation, list[int]]:
        """The processes, and the order in which stacks and waits are read: the suspect, ranks, its descendants, other
        Pythons, the rest."""
        request = self._request
        self._excluded = job_processes.with_newly_started(request.excluded, request.root, self._ranks)
        seen = processes.observe(job_processes.members(request.root, self._excluded))
        self._processes = len(seen.processes)
        below = procfs.below(self._request.suspect, [process.stat for process in seen.processes.values()])
        pids = [pid for pid, _ in seen.processes]
        return seen, sorted(pids, key=lambda pid: (self._priority(pid), pid not in below, not _is_python(pid)))

    def _collect_stacks(self, spy: str | None, seen: Observation, pids: list[int], seconds: float) -> Stacks:
        """The stacks of these processes.  Where more than a few have just been started, these are left out, except
        ranks: in a tree that forks all the time each of them would delay the end of the hang, only to have ended before
        it is read."""
        moment = min(MOMENT, self._request.finding.age / 2) * procfs.TICKS
        starts = dict(seen.processes.keys())
        new = {pid for pid in pids if all(self._priority(pid)) and seen.ticks - starts[pid] < moment}
        if len(new) <= FEW:
            return stacks.collect(spy, pids, seconds)
        found = stacks.collect(spy, [pid for pid in pids if pid not in new], seconds)
        return found._replace(missing={**found.missing, **dict.fromkeys(new, stacks.NEW)})

    def _priority(self, pid: int) -> tuple[bool, bool]:
        return pid != self._request.suspect, pid not in self._ranks

    def _observe_waits(self, seen: Observation, pids: list[int]) -> tuple[World, Task[None]]:
        world = waits.empty(self._group)
        listed = {pid: (process.stat.parent, start) for (pid, start), process in seen.processes.items()}
        in_group = self._request.group is not None
        return world, Task(partial(waits.observe, world, pids, self._excluded, in_group, listed=listed))

    def _walk(self, before: World, after: World, found: Stacks) -> Walk:
        """The walk over the waits.  Where the suspect is not known as a rank, it is the one that the finding names."""
        job, finding = look.facts(self._request), self._request.finding
        if not self._by_proof and finding.rank is not None and finding.pid:
            job = job._replace(ranks={**job.ranks, finding.pid: finding.rank})
        in_group, code = self._others is not None, libraries.of(before, found.found)
        return Walk(before, after, found.found, job, in_group=in_group, code=code)

    def _classify(
        self, found: list[ProcessChange], worlds: tuple[World, World], open_reason: str | None, wait: str
    ) -> Classification:
        request = self._request
        suspects = found if request.suspects_whole_tree else process_subtree(request.suspect, found)
        exchanged, transferred = traffic(*worlds, [change.pid for change in suspects if not change.gone])
        if not self._by_proof:
            open_reason = self._deliberate(worlds[1])
        accelerated = request.uses_device or any(world.uses_accelerator for world in worlds)
        return classify(request.finding, suspects, accelerated, Outside(open_reason, exchanged, transferred, wait))

    def _deliberate(self, world: World) -> str | None:
        """Why a tree that does nothing does so on purpose; None: it does not, or a person has given the time for that.
        Only ranks count, where there are any."""
        if self._request.given:
            return None
        ranks = {rank.pid for rank in self._request.ranks if rank.present and not rank.done}
        pids = (ranks & world.processes.keys()) or world.processes.keys()
        return next((why for pid in sorted(pids) if (why := deliberate(pid, world)) is not None), None)

    def _computing(self) -> Spin | None:
        if self._request.finding.rule not in liveness.SPIN_LIMITS:
            return None
        asked = look.ask_nccl(self._request)
        asked.wait(nccl_ras.ANSWER)
        return look.unproved(self._request, asked.value)

    def _still_computes(self, before: Spin | None) -> str | None:
        """Why the rank that looks have found to compute no longer does, or does something that can be seen; None: it
        still computes."""
        after = self._computing()
        same = before is not None and after is not None and liveness.follow_spin(before, after) is before
        suspected = same and before is not None and before.pid == self._request.finding.pid
        return None if suspected else "it does something else now"

    def _prove(self, walk: Walk) -> tuple[str | None, str]:
        """Why the wait is open, and what it is for: a deadlock that looks have proved is open unless the proof holds
        once more."""
        finding, proved, others = self._request.finding, walk.proof(), self._others
        proved = proved if others is None else others.apply(proved, walk.job)
        # Any process of a circle may be named as its end.
        same = proved.pid == finding.pid or finding.pid in {pid for pid, _ in proved.followed}
        elsewhere = None if same else f"the deadlock that was proved is not found again, but this: {proved.mechanism}"
        return (elsewhere if proved.open_reason is None else proved.open_reason), proved.mechanism

    def _times(self) -> tuple[str, str]:
        """The wall clock now, and when the suspect was last active."""
        now = time.time() - (time.monotonic() - self._request.now)
        since = time.gmtime(now - self._request.finding.age)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)), time.strftime("%Y-%m-%d %H:%M:%S UTC", since)

    def _write(self, facts: ReportFacts) -> str | None:
        """Write the report and return its path, or send a problem and return None."""
        try:
            self._folder = self._folder or ReportFolder(self._request.run_dir, self._request.attempt)
            texts = {c.pid: report.stack_text(c) for c in facts.changes if c.stack or c.seen.kernel}
            picture = wait_picture.render(facts.graph, facts.mechanism)
            text = report.markdown(facts, self._folder.picture)
            self._folder.write(text, report.document(facts), texts, picture)
            return self._folder.report
        except OSError as error:
            if not self._replied.locked():  # otherwise the report exists and only lacks what arrived late
                self._send(Problem(f"the report could not be written: {error}"))
            return None


class BackgroundWork:
    """Data that is collected between the two observations, and may never arrive.  Starts at once.  `pids`: the job's
    processes, the most interesting ones first."""

    def __init__(self, request: EvidenceRequest, pids: Sequence[int]) -> None:
        self._commands: dict[int, str] = {}
        self._output = {path: Task(partial(blocking_calls.tail, path)) for path in request.output[:OUTPUTS]}
        ranks = {rank.pid: rank.rank for rank in request.ranks}
        self._answers = Task(partial(flight_recorder.ask_all, pids, ranks))
        self._views: list[NcclView] = []  # what NCCL says, the last one last
        self._hccl = Task(partial(hccl_log.collect, ranks))
        self._tasks: dict[str, Task[Any]] = {
            "command lines": Task(partial(blocking_calls.read_commands, pids, self._commands)),
            "flight recorder": self._answers,
            "logs of HCCL": self._hccl,
            "NCCL's RAS": Task(partial(nccl_ras.watch, ranks, ranks, self._views.append)),
            **{f"output in {path}": task for path, task in self._output.items()},
        }

    @property
    def running(self) -> bool:
        return any(task.running for task in self._tasks.values())

    def wait(self, until: float) -> None:
        for task in self._tasks.values():
            task.wait(until - time.monotonic())

    def add_to(self, facts: ReportFacts) -> ReportFacts:
        """The facts with all that has arrived so far, and with the names of what has not.  The numbers of collectives
        that do not match are the headline."""
        failed = [(name, task.problem) for name, task in self._tasks.items() if task.problem is not None]
        late = [(name, "it did not arrive in time") for name, task in self._tasks.items() if task.running]
        answers, nccl = self._answers.value or {}, self._views[-1] if self._views else None
        if nccl is not None and nccl.problem is not None:
            failed.append(("NCCL's RAS", nccl.problem))
        facts = facts._replace(answers=answers, nccl=nccl, hccl=tuple(self._hccl.value or ()))
        return facts._replace(
            commands=dict(self._commands),
            mechanism=flight_recorder.mismatch(answers) or _with_culprit(facts),
            output={path: task.value for path, task in self._output.items() if task.value},
            missing=[*facts.missing, *failed, *late],
        )


def _with_culprit(facts: ReportFacts) -> str:
    """The headline; where all ranks wait for their devices, with the rank that is behind."""
    named = report.late(facts)[:1] if facts.request.finding.rule == "device-wait" else []
    return facts.mechanism if all(one in facts.mechanism for one in named) else sentence(facts.mechanism, *named)


def _with_origin(facts: ReportFacts) -> ReportFacts:
    """The facts with the command and the host, as `state.json` of the run has them."""
    run = state.load(facts.request.run_dir).rest.run
    return facts._replace(job=run.command, node=run.node)


def _explained(facts: ReportFacts, walk: Walk) -> ReportFacts:
    """The facts with the headline and the graph of the waits."""
    found = facts.request.finding.mechanism or report.headline(walk.sentence(facts.request.suspect))
    return facts._replace(mechanism=found, graph=wait_graph.build(walk, facts.request.suspect, report.clean))


def _seen_ranks(facts: ReportFacts) -> list[RankSeen]:
    """What each rank of this node that has not ended was seen to do."""
    graph, numbers = facts.graph, {rank.pid: rank.rank for rank in facts.request.ranks if rank.present}
    awaits: dict[int, set[int]] = {}
    waiting_outside: set[int] = set()  # processes that wait for another host, which in a group has ranks, too
    for node in graph.nodes:
        if node.main and node.pid in numbers:
            others = {graph.nodes[place].pid for place in node.wakers} & numbers.keys()
            awaits.setdefault(node.pid, set()).update(numbers[pid] for pid in others)
            if facts.request.group is not None and "outside the job" in node.ends:
                waiting_outside.add(node.pid)
                awaits[node.pid].add(ELSEWHERE)
    return [
        RankSeen(
            numbers[change.pid],
            change.is_stopped,
            change.is_in_collective or bool(waiting_outside and awaits.get(change.pid)),
            bool(change.moved),
            frozenset(awaits.get(change.pid, ())),
        )
        for change in facts.changes
        if change.pid in numbers and not change.gone
    ]


def _is_python(pid: int) -> bool:
    """Whether its program's name is a name of Python; a program that embeds Python is not recognised."""
    try:
        return "python" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
