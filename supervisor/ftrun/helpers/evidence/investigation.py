"""One suspicion, from the first look to the report."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from ftrun.core.machine.values import Rank
from ftrun.helpers.evidence import files, processes, report, stacks, waits
from ftrun.helpers.evidence.background import BackgroundWork
from ftrun.helpers.evidence.classification import (
    Change,
    Classification,
    Outside,
    changes,
    classify,
    family,
    silent_as_well,
    works,
)
from ftrun.helpers.evidence.connections import traffic
from ftrun.helpers.evidence.folder import Folder
from ftrun.helpers.evidence.graph import Graph, Outcome
from ftrun.helpers.evidence.limitations import missing
from ftrun.helpers.evidence.processes import Look
from ftrun.helpers.evidence.report import Facts
from ftrun.helpers.evidence.request import Request
from ftrun.helpers.evidence.threads import Task
from ftrun.helpers.evidence.waits import World
from ftrun.messages.evidence import Event, Evidenced
from ftrun.messages.helpers import Problem

LOOK: Final = 0.25  # of the time that there is beside the pause: for the stacks of one look
SEARCHED: Final = 128  # processes that are asked for an open accelerator


class Investigation:
    """`say` takes a message to PID 1."""

    def __init__(self, request: Request, say: Callable[[Event], None]) -> None:
        self._request, self._say = request, say
        self._ranks = {rank.pid for rank in request.ranks}
        self._said = threading.Lock()  # taken by whoever says the last word
        self._processes = 0  # that the last look showed
        self._group = waits.group(request.spared)

    def run(self, until: float) -> None:
        """Say the last word as soon as the report is written, and add to the report what comes until `until`."""
        request, started, spy = self._request, time.monotonic(), stacks.program()
        seconds = LOOK * max(1.0, request.timeout - request.between)
        first = processes.look(request.root, request.spared)
        self._processes = len(first.processes)
        order = self._order(first)
        before = stacks.look(spy, order, seconds)
        waits_before, task_before = self._waits(order)
        aside = BackgroundWork(request, order)
        accelerated = request.accelerated or any(files.accelerated(pid) for pid in order[:SEARCHED])
        restless = stacks.restless(spy, before, order, started + request.between)
        time.sleep(max(0.0, started + request.between - time.monotonic()))

        second = processes.look(request.root, request.spared)
        self._processes = len(second.processes)
        waits_after, task_after = self._waits(self._order(second))
        foreign = {pid for pid, why in before.missing.items() if why == stacks.NO_PYTHON}
        after = stacks.look(spy, [pid for pid in self._order(second) if pid not in foreign], seconds)
        found = sorted(changes(first, before, second, after, restless), key=lambda change: self._place(change.pid))
        for task in (task_before, task_after):
            task.wait(seconds)
        graph = Graph(
            waits_before, waits_after, found, self._names(), self._left(), partial(works, accelerated=accelerated)
        )
        outcome = graph.follow(request.suspect)
        verdict = self._judge(found, accelerated, graph, outcome)
        absent = missing(found, {**before.missing, **after.missing})
        facts = Facts(request, verdict, found, second.at - first.at, *self._times(), missing=absent)
        facts = facts._replace(chain=() if verdict.cleared else outcome.chain)

        facts = aside.added(facts)
        write = self._writer()
        path = write(facts)
        suspects = [change for change in found if change.pid == request.suspect]
        others = any(change.waits or change.reduces for change in suspects)
        self._finish(verdict, report.where(facts), path, waits=others)
        if path is not None and aside.running:
            aside.wait(until)
            write(aside.added(facts._replace(missing=absent)))

    def give_up(self, why: str) -> None:
        """The last word, if it has not been said: who knows nothing convicts nobody by a learned limit."""
        cleared = why if self._request.finding.learned else None
        self._finish(Classification(cleared, why, 0.0, 0.0), "", None, f"evidence: {why}")

    def _finish(
        self, verdict: Classification, why: str, path: str | None, problem: str | None = None, waits: bool = False
    ) -> None:
        if self._said.acquire(blocking=False):
            if problem is not None:
                self._say(Problem(problem))
            rates = round(verdict.cpu, 3), round(verdict.io)
            self._say(Evidenced(verdict.cleared, why, *rates, self._processes, path, waits))

    def _judge(self, found: list[Change], accelerated: bool, graph: Graph, outcome: Outcome) -> Classification:
        request = self._request
        suspects = found if request.whole else family(request.suspect, found)
        silent = self._silent()
        outside = self._outside(graph, outcome, suspects, [rank.pid for rank in silent], found)
        others = [(rank, family(rank.pid, found)) for rank in silent]
        return classify(request.finding, suspects, others, accelerated, outside)

    def _outside(
        self, graph: Graph, outcome: Outcome, suspects: list[Change], silent: list[int], found: list[Change]
    ) -> Outside:
        """What is open of the suspect's wait, or of one of another rank for which it may wait."""
        request = self._request
        families = [suspects, *(family(pid, found) for pid in silent)]
        pids = dict.fromkeys(change.pid for members in families for change in members if not change.gone)
        exchanged, moved = traffic(graph.before, graph.after, list(pids))
        opened = outcome.opened
        for pid in silent if opened is None else ():
            other = graph.follow(pid)
            if other.opened is not None:
                opened = f"it may wait for {graph.name(pid)}: {other.opened}"
                break
        if request.patience is None or request.finding.age >= request.patience:
            opened = None
        return Outside(opened, exchanged, moved, outcome.why)

    def _waits(self, pids: list[int]) -> tuple[World, Task[None]]:
        world = waits.empty(self._group)
        return world, Task(partial(waits.look, world, pids))

    def _silent(self) -> list[Rank]:
        return silent_as_well(self._request.finding, self._request.ranks, self._request.now)

    def _names(self) -> dict[int, int]:
        """The number of the suspect's rank, and of those that stopped as well, by pid."""
        finding = self._request.finding
        names = {rank.pid: rank.rank for rank in self._silent()}
        return names if finding.rank is None or not finding.pid else {**names, finding.pid: finding.rank}

    def _left(self) -> float:
        """For how many seconds a timer may still run."""
        request = self._request
        return inf if request.patience is None else max(0.0, request.patience - request.finding.age)

    def _order(self, look: Look) -> list[int]:
        """Whose stack comes first: the suspect, the ranks, what is below the suspect, the other Pythons, the rest."""
        below = processes.below(self._request.suspect, [seen.stat for seen in look.processes.values()])
        pids = [pid for pid, _ in look.processes]
        return sorted(pids, key=lambda pid: (self._place(pid), pid not in below, not _python(pid)))

    def _place(self, pid: int) -> tuple[bool, bool]:
        return pid != self._request.suspect, pid not in self._ranks

    def _times(self) -> tuple[str, str]:
        """The wall clock now, and when the suspect was last heard of."""
        now = time.time() - (time.monotonic() - self._request.now)
        wall = [time.gmtime(now), time.gmtime(now - self._request.finding.age)]
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", wall[0]), time.strftime("%Y-%m-%d %H:%M:%S UTC", wall[1])

    def _writer(self) -> Callable[[Facts], str | None]:
        """Writes the report; the path of it, or None and a problem."""
        folder: Folder | None = None

        def write(facts: Facts) -> str | None:
            nonlocal folder
            try:
                folder = folder or Folder(self._request.run_dir, self._request.attempt)
                texts = {c.pid: report.stack_text(c) for c in facts.changes if c.stack or c.seen.kernel}
                folder.write(report.markdown(facts), report.document(facts), texts)
                return folder.report
            except OSError as error:
                if not self._said.locked():  # else the report is there, only without what came late
                    self._say(Problem(f"evidence: no report: {error}"))
                return None

        return write


def _python(pid: int) -> bool:
    """By its program's name: embedded ones come later."""
    try:
        return "python" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
