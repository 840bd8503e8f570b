"""A light look at a job that stands still: is it known to stand still for ever?

A look ends as soon as it is plain that something may still end the wait.  The stacks of Python are read only if all
else says that nothing may.  Nothing is stopped, unless a thread computes of which all else says so: whether it repeats
the same states can be seen only while it stops for moments (recurrence.py).
"""

import os
import time
from collections.abc import Callable
from typing import Final

from ftrun.core.machine.values import Rule
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import sentences
from ftrun.helpers.evidence import libraries, loops, processes, proof, stacks, threads, waits
from ftrun.helpers.evidence.mappings import Mappings
from ftrun.helpers.evidence.other_members import OtherMembers
from ftrun.helpers.evidence.proof import Facts, Proof
from ftrun.helpers.evidence.recurrence import Comparison
from ftrun.helpers.evidence.world import World
from ftrun.messages.evidence import Look, Looked, Request

STILL: Final = 10.0  # s for which a rank must not have moved
STACKS: Final = 5.0  # s for reading all stacks
SCREENED: Final = 0.2  # s for which a thread must not have slept, to be one that computes
SPIED: Final = 64  # processes whose stacks are read
_PLAIN: Final = ("sleep", "device", "other", "restart")  # calls that no proof can close in a rank's main thread


def look(request: Look, pause: Callable[[float], None] = time.sleep) -> Looked:
    """The answer.  Takes `between` s and the time for two observations, or less if the wait is open; where only other
    members of the group may end it, a few seconds more; and `compare` s if a thread computes."""
    others = OtherMembers(request.group) if request.group is not None else None
    looking = _Looking(request, pause)
    found, again = looking.prove(), False
    if others is not None:
        found, again = others.ask(found, facts(request), pause)
    cost = round(cpu() - looking.comparing, 3)
    rule: Rule = "loop" if found.loops else "deadlock"
    seen = found.open_reason, found.mechanism, found.fingerprint, found.rank, found.pid
    answer = Looked(*seen, cost, rule, again, looking.compared, place=looking.place)
    if found.open_reason is None or looking.confined is None:
        return answer
    what, rank, pid, fingerprint = looking.confined
    return answer._replace(confined=what, rank=rank, pid=pid, fingerprint=fingerprint)


def cpu() -> float:
    """The CPU seconds of this process and its children."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def facts(request: Look | Request) -> Facts:
    """The ranks that are still to be waited for, and those of them that do not move."""
    ranks = [rank for rank in request.ranks if rank.pid and rank.present]
    still = [r for r in ranks if r.moved_at is None or request.now - r.moved_at >= STILL]
    still.sort(key=lambda rank: rank.moved_at or 0.0)
    devices = all(device.answers and device.util == 0 for device in request.devices) and bool(request.devices)
    stepped = frozenset(rank.pid for rank in ranks if rank.step is not None)
    numbers = {rank.pid: rank.rank for rank in ranks}
    ended = frozenset(rank.rank for rank in request.ranks if rank.done and not rank.present)
    return Facts(request.root, numbers, tuple(rank.pid for rank in still), devices, stepped, ended)


class Confined(NamedTuple):
    """A thread that computes, which nothing can influence.  `what`: a sentence; `rank`, `pid`: of its process;
    `fingerprint`: the same for as long as it reads and writes nothing."""

    what: str
    rank: int | None
    pid: int
    fingerprint: str


class _Looking:
    """`compared`: seconds for which states were compared; `comparing`: the CPU seconds of that; `place`: where the
    first of these threads computes; `confined`: it, if nothing else may end its computation."""

    def __init__(self, request: Look, pause: Callable[[float], None]) -> None:
        self._request, self._pause, self._in_group = request, pause, request.group is not None
        self.compared = self.comparing = 0.0
        self.place = ""
        self.confined: Confined | None = None

    def prove(self) -> Proof:
        request, job, in_group = self._request, facts(self._request), self._in_group
        if job.ranks and not job.still:
            return Proof("no rank stands still")
        if (plain := self._plainly_open(job)) is not None:
            return Proof(plain, plain)
        excluded = self._excluded()
        started = time.monotonic()
        before = waits.empty(frozenset())
        waits.observe_job(before, processes.members(request.root, excluded))
        computing = dict.fromkeys(loops.computing(before), "") if request.compare else {}
        first = proof.prove(before, before, {}, job, True, in_group, computing)
        if first.open_reason is not None and not first.in_group:
            return first
        waits.observe_outside(before, excluded, in_group)
        spied = list(dict.fromkeys(wait.pid for wait in first.waits))[:SPIED]
        found = stacks.collect(stacks.program(), spied, STACKS).found
        code = libraries.of(before, found)
        first = proof.prove(before, before, found, job, False, in_group, computing, code)
        if first.open_reason is not None and not first.in_group:
            return first
        if needed := [(wait.pid, wait.tid) for wait in first.waits if (wait.pid, wait.tid) in computing]:
            results = self._compare(needed)
            self.place = loops.place(found.get(needed[0][0]), needed[0][1])
            computing = {node: result.reason or "" for node, result in results.items()}
            first = proof.prove(before, before, found, job, False, in_group, computing, code)
            if first.open_reason is not None and not first.in_group:
                if not all(result.confined for result in results.values()):
                    return first
                # Whether it would be an endless loop if its states did recur.
                supposed = dict.fromkeys(results, "")
                if proof.prove(before, before, found, job, False, in_group, supposed, code).open_reason is None:
                    after = self._observe_again(started)
                    end = proof.prove(before, after, found, job, False, in_group, supposed, code)
                    self.confined = _confined(end, needed[0]) if end.open_reason is None else None
                return first
        after = self._observe_again(started)
        return proof.prove(before, after, found, job, False, in_group, computing, code)

    def _excluded(self) -> frozenset[int]:
        request = self._request
        ranks = {rank.pid for rank in request.ranks}
        return processes.with_newly_started(request.excluded, request.root, ranks)

    def _observe_again(self, started: float) -> World:
        request = self._request
        self._pause(max(0.0, started + request.between - time.monotonic()))
        after, excluded = waits.empty(frozenset()), self._excluded()
        waits.observe(after, processes.members(request.root, excluded), excluded, self._in_group)
        return after

    def _compare(self, threads: list[loops.Node]) -> dict[loops.Node, Comparison]:
        used = cpu()
        results = loops.compare(threads, self._request.compare)
        self.comparing = cpu() - used
        self.compared = sum(result.seconds for result in results.values())
        return results

    def _plainly_open(self, job: Facts) -> str | None:
        """Why no rank that stands still can be proved to do so for ever, from its main thread alone."""
        reasons = []
        for pid in job.still:
            thread = threads.thread(pid, pid, Mappings())
            if thread.is_stopped or (thread.call is not None and thread.call.kind not in _PLAIN):
                return None
            if thread.call is None and self._request.compare and loops.is_busy(pid, pid, SCREENED):
                return None
            doing = f"waits in {thread.call.name}" if thread.call else "is running"
            reasons.append(f"{sentences.rank(job.ranks[pid])} {doing}")
        return reasons[0] if reasons else None


def _confined(found: Proof, node: loops.Node) -> Confined | None:
    """`found`: the proof that it never ends, if its states recurred."""
    wait = next((wait for wait in found.waits if (wait.pid, wait.tid) == node), None)
    if wait is None or wait.pid != found.pid:
        return None
    at = f" at {wait.place}" if wait.place else ""
    what = f"{wait.who} computes{at}, which nothing can influence"
    return Confined(what, found.rank, wait.pid, f"{node} {loops.read_and_written(*node)}")
