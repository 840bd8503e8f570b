"""One suspicion, from the first observation to the report."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from ftrun.helpers.evidence import files, processes, report, stacks, waits
from ftrun.helpers.evidence.background import BackgroundWork
from ftrun.helpers.evidence.classification import (
    Change,
    Classification,
    Outside,
    changes,
    classify,
    other_silent_ranks,
    process_subtree,
    works,
)
from ftrun.helpers.evidence.connections import traffic
from ftrun.helpers.evidence.folder import Folder
from ftrun.helpers.evidence.graph import Graph, Outcome
from ftrun.helpers.evidence.limitations import unavailable
from ftrun.helpers.evidence.processes import Observation
from ftrun.helpers.evidence.report import Facts
from ftrun.helpers.evidence.threads import Task
from ftrun.helpers.evidence.waits import World
from ftrun.messages.evidence import Event, RankState, Reply, Request
from ftrun.messages.helpers import Problem

STACKS: Final = 0.25  # share of the time beside the pause that is for the stacks of one observation
SEARCHED: Final = 128  # processes that are searched for an open accelerator


class Investigation:
    """`send` sends a message to PID 1."""

    def __init__(self, request: Request, send: Callable[[Event], None]) -> None:
        self._request, self._send = request, send
        self._ranks = {rank.pid for rank in request.ranks}
        self._replied = threading.Lock()  # acquired by the thread that sends the reply
        self._processes = 0  # number of processes in the last observation
        self._group = waits.group(request.excluded)

    def run(self, until: float) -> None:
        """Send the reply as soon as the report is written, and add to the report what arrives until `until`."""
        request, started, spy = self._request, time.monotonic(), stacks.program()
        seconds = STACKS * max(1.0, request.timeout - request.between)
        excluded = frozenset(request.excluded)
        first = processes.observe(request.root, excluded)
        self._processes = len(first.processes)
        order = self._order(first)
        before = stacks.collect(spy, order, seconds)
        waits_before, task_before = self._waits(order)
        background = BackgroundWork(request, order)
        accelerated = request.uses_device or any(files.accelerated(pid) for pid in order[:SEARCHED])
        moving = stacks.find_moving(spy, before, order, started + request.between)
        time.sleep(max(0.0, started + request.between - time.monotonic()))

        second = processes.observe(request.root, excluded)
        self._processes = len(second.processes)
        waits_after, task_after = self._waits(self._order(second))
        not_python = {pid for pid, why in before.missing.items() if why == stacks.NO_PYTHON}
        after = stacks.collect(spy, [pid for pid in self._order(second) if pid not in not_python], seconds)
        found = sorted(changes(first, before, second, after, moving), key=lambda change: self._priority(change.pid))
        for task in (task_before, task_after):
            task.wait(seconds)
        graph = Graph(
            waits_before,
            waits_after,
            found,
            self._rank_numbers(),
            self._remaining_patience(),
            partial(works, accelerated=accelerated),
        )
        outcome = graph.follow(request.suspect)
        verdict = self._classify(found, accelerated, graph, outcome)
        limitations = unavailable(found, {**before.missing, **after.missing})
        facts = Facts(request, verdict, found, second.at - first.at, *self._times(), missing=limitations)
        facts = facts._replace(chain=() if verdict.cleared else outcome.chain)

        facts = background.add_to(facts)
        write = self._writer()
        path = write(facts)
        suspects = [change for change in found if change.pid == request.suspect]
        waits = any(change.waits_for_ranks or change.waits_in_backward for change in suspects)
        self._finish(verdict, report.location_summary(facts), path, waits=waits)
        if path is not None and background.running:
            background.wait(until)
            write(background.add_to(facts._replace(missing=limitations)))

    def give_up(self, why: str) -> None:
        """Send the reply if it was not sent yet.  Without evidence a learned timeout never kills a rank."""
        cleared = why if self._request.finding.learned else None
        self._finish(Classification(cleared, why, 0.0, 0.0), "", None, f"evidence: {why}")

    def _finish(
        self, verdict: Classification, why: str, path: str | None, problem: str | None = None, waits: bool = False
    ) -> None:
        if self._replied.acquire(blocking=False):
            if problem is not None:
                self._send(Problem(problem))
            rates = round(verdict.cpu, 3), round(verdict.io)
            self._send(Reply(verdict.cleared, why, *rates, self._processes, path, waits))

    def _classify(self, found: list[Change], accelerated: bool, graph: Graph, outcome: Outcome) -> Classification:
        request = self._request
        suspects = found if request.suspects_whole_tree else process_subtree(request.suspect, found)
        silent = self._silent_ranks()
        outside = self._outside(graph, outcome, suspects, [rank.pid for rank in silent], found)
        others = [(rank, process_subtree(rank.pid, found)) for rank in silent]
        return classify(request.finding, suspects, others, accelerated, outside)

    def _outside(
        self, graph: Graph, outcome: Outcome, suspects: list[Change], silent: list[int], found: list[Change]
    ) -> Outside:
        """Why the suspect's wait is open, or that of another rank for which it may wait."""
        request = self._request
        families = [suspects, *(process_subtree(pid, found) for pid in silent)]
        pids = dict.fromkeys(change.pid for members in families for change in members if not change.gone)
        exchanged, transferred = traffic(graph.before, graph.after, list(pids))
        open_reason = outcome.open_reason
        for pid in silent if open_reason is None else ():
            other = graph.follow(pid)
            if other.open_reason is not None:
                open_reason = f"it may wait for {graph.name(pid)}: {other.open_reason}"
                break
        if request.patience is None or request.finding.age >= request.patience:
            open_reason = None
        return Outside(open_reason, exchanged, transferred, outcome.why)

    def _waits(self, pids: list[int]) -> tuple[World, Task[None]]:
        world = waits.empty(self._group)
        return world, Task(partial(waits.observe, world, pids))

    def _silent_ranks(self) -> list[RankState]:
        return other_silent_ranks(self._request.finding, self._request.ranks, self._request.now)

    def _rank_numbers(self) -> dict[int, int]:
        """The rank numbers of the suspect and of the ranks that stopped as well, by pid."""
        finding = self._request.finding
        numbers = {rank.pid: rank.rank for rank in self._silent_ranks()}
        return numbers if finding.rank is None or not finding.pid else {**numbers, finding.pid: finding.rank}

    def _remaining_patience(self) -> float:
        """Seconds within which a timer must end to open a wait."""
        request = self._request
        return inf if request.patience is None else max(0.0, request.patience - request.finding.age)

    def _order(self, observation: Observation) -> list[int]:
        """The order in which stacks are read: the suspect, ranks, its descendants, other Pythons, the rest."""
        below = processes.below(self._request.suspect, [seen.stat for seen in observation.processes.values()])
        pids = [pid for pid, _ in observation.processes]
        return sorted(pids, key=lambda pid: (self._priority(pid), pid not in below, not _python(pid)))

    def _priority(self, pid: int) -> tuple[bool, bool]:
        return pid != self._request.suspect, pid not in self._ranks

    def _times(self) -> tuple[str, str]:
        """The wall clock now, and when the suspect was last active."""
        now = time.time() - (time.monotonic() - self._request.now)
        wall = [time.gmtime(now), time.gmtime(now - self._request.finding.age)]
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", wall[0]), time.strftime("%Y-%m-%d %H:%M:%S UTC", wall[1])

    def _writer(self) -> Callable[[Facts], str | None]:
        """A function that writes the report and returns its path, or sends a problem and returns None."""
        folder: Folder | None = None

        def write(facts: Facts) -> str | None:
            nonlocal folder
            try:
                folder = folder or Folder(self._request.run_dir, self._request.attempt)
                texts = {c.pid: report.stack_text(c) for c in facts.changes if c.stack or c.seen.kernel}
                folder.write(report.markdown(facts), report.document(facts), texts)
                return folder.report
            except OSError as error:
                if not self._replied.locked():  # otherwise the report exists and only lacks what arrived late
                    self._send(Problem(f"evidence: the report could not be written: {error}"))
                return None

        return write


def _python(pid: int) -> bool:
    """Whether its program's name is that of Python; a program that embeds Python is not recognised."""
    try:
        return "python" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
