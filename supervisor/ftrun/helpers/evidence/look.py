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
from ftrun.core.text import sentences
from ftrun.helpers.evidence import loops, processes, proof, stacks, threads, waits
from ftrun.helpers.evidence.mappings import Mappings
from ftrun.helpers.evidence.other_members import OtherMembers
from ftrun.helpers.evidence.proof import Facts, Proof
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
    return Looked(*seen, cost, rule, again, looking.compared)


def cpu() -> float:
    """The CPU seconds of this process and its children."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def facts(request: Look | Request) -> Facts:
    """The ranks that are still to be waited for, and those of them that do not move."""
    ranks = [rank for rank in request.ranks if rank.pid and rank.present and not rank.done]
    still = [r for r in ranks if r.moved_at is None or request.now - r.moved_at >= STILL]
    still.sort(key=lambda rank: rank.moved_at or 0.0)
    devices = all(device.answers and device.util == 0 for device in request.devices) and bool(request.devices)
    return Facts(request.root, {rank.pid: rank.rank for rank in ranks}, tuple(rank.pid for rank in still), devices)


class _Looking:
    """`compared`: seconds for which states were compared; `comparing`: the CPU seconds of that."""

    def __init__(self, request: Look, pause: Callable[[float], None]) -> None:
        self._request, self._pause, self._in_group = request, pause, request.group is not None
        self.compared = self.comparing = 0.0

    def prove(self) -> Proof:
        request, job, in_group = self._request, facts(self._request), self._in_group
        if job.ranks and not job.still:
            return Proof("no rank stands still")
        if (plain := self._plainly_open(job)) is not None:
            return Proof(plain, plain)
        excluded = frozenset(request.excluded)
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
        first = proof.prove(before, before, found, job, False, in_group, computing)
        if first.open_reason is not None and not first.in_group:
            return first
        if needed := [(wait.pid, wait.tid) for wait in first.waits if (wait.pid, wait.tid) in computing]:
            computing = self._compare(needed)
            first = proof.prove(before, before, found, job, False, in_group, computing)
            if first.open_reason is not None and not first.in_group:
                return first
        self._pause(max(0.0, started + request.between - time.monotonic()))
        after = waits.empty(frozenset())
        waits.observe(after, processes.members(request.root, excluded), excluded, in_group)
        return proof.prove(before, after, found, job, False, in_group, computing)

    def _compare(self, threads: list[tuple[int, int]]) -> dict[tuple[int, int], str]:
        used = cpu()
        results = loops.compare(threads, self._request.compare)
        self.comparing = cpu() - used
        self.compared = sum(result.seconds for result in results.values())
        return {node: result.reason or "" for node, result in results.items()}

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
