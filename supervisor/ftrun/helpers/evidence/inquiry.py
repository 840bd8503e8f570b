"""One suspicion, from the first look to the report."""

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from ftrun.helpers.evidence import files, processes, report, stacks
from ftrun.helpers.evidence.aside import Aside
from ftrun.helpers.evidence.folder import Folder
from ftrun.helpers.evidence.judgement import Change, Verdict, changes, family, judge, silent_as_well
from ftrun.helpers.evidence.missing import missing
from ftrun.helpers.evidence.processes import Look
from ftrun.helpers.evidence.report import Facts
from ftrun.helpers.evidence.request import Request

Message = dict[str, object]
LOOK: Final = 0.25  # of the time that there is beside the pause: for the stacks of one look
SEARCHED: Final = 128  # processes that are asked for an open accelerator


class Inquiry:
    """`say` takes a message to PID 1."""

    def __init__(self, request: Request, say: Callable[[Message], None]) -> None:
        self._request, self._say = request, say
        self._ranks = {rank.pid for rank in request.ranks}
        self._said = threading.Lock()  # taken by whoever says the last word
        self._processes = 0  # that the last look showed

    def run(self, until: float) -> None:
        """Say the last word as soon as the report is written, and add to the report what comes until `until`."""
        request, started, spy = self._request, time.monotonic(), stacks.program()
        seconds = LOOK * max(1.0, request.timeout - request.between)
        first = processes.look(request.root, request.spared)
        self._processes = len(first.processes)
        order = self._order(first)
        before = stacks.look(spy, order, seconds)
        aside = Aside(request, order)
        accelerated = request.accelerated or any(files.accelerated(pid) for pid in order[:SEARCHED])
        restless = stacks.restless(spy, before, order, started + request.between)
        time.sleep(max(0.0, started + request.between - time.monotonic()))

        second = processes.look(request.root, request.spared)
        self._processes = len(second.processes)
        foreign = {pid for pid, why in before.missing.items() if why == stacks.NO_PYTHON}
        after = stacks.look(spy, [pid for pid in self._order(second) if pid not in foreign], seconds)
        found = sorted(changes(first, before, second, after, restless), key=lambda change: self._place(change.pid))
        verdict = self._judge(found, accelerated)
        absent = missing(found, {**before.missing, **after.missing})
        facts = Facts(request, verdict, found, second.at - first.at, *self._times(), missing=absent)

        facts = aside.added(facts)
        write = self._writer()
        path = write(facts)
        waits = any(change.waits for change in found if change.pid == self._request.suspect)
        self._finish(verdict, report.where(facts), path, waits=waits)
        if path is not None and aside.running:
            aside.wait(until)
            write(aside.added(facts._replace(missing=absent)))

    def give_up(self, why: str) -> None:
        """The last word, if it has not been said: nobody knows anything."""
        self._finish(Verdict(None, why, 0.0, 0.0), "", None, f"evidence: {why}")

    def _finish(
        self, verdict: Verdict, why: str, path: str | None, problem: str | None = None, waits: bool = False
    ) -> None:
        if self._said.acquire(blocking=False):
            if problem is not None:
                self._say({"event": "problem", "what": problem})
            seen: dict[str, object] = {
                "cpu": round(verdict.cpu, 3),
                "io": round(verdict.io),
                "processes": self._processes,
            }
            seen |= {"report": path, "waits": waits}
            self._say({"event": "evidenced", "cleared": verdict.cleared, "why": why, **seen})

    def _judge(self, found: list[Change], accelerated: bool) -> Verdict:
        request = self._request
        suspects = found if request.whole else family(request.suspect, found)
        silent = silent_as_well(request.finding, request.ranks, request.now)
        return judge(request.finding, suspects, [(rank, family(rank.pid, found)) for rank in silent], accelerated)

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
                    self._say({"event": "problem", "what": f"evidence: no report: {error}"})
                return None

        return write


def _python(pid: int) -> bool:
    """By its program's name: embedded ones come later."""
    try:
        return "python" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
