"""A light look at a job that stands still: is it known to stand still for ever?

A look ends as soon as it is plain that something may still end the wait.  The stacks of Python are read only if all
else says that nothing may, or of a rank that computes.  Nothing is stopped.
"""

import os
import time
from collections.abc import Callable, Collection
from typing import Final

from ftrun.core.machine.values import Spin
from ftrun.core.text import sentences
from ftrun.helpers.evidence import device_waits, job_processes, nccl_ras, spinning
from ftrun.helpers.evidence.blocking_calls import Task
from ftrun.helpers.evidence.nccl_ras import NcclView
from ftrun.helpers.evidence.other_members import OtherMembers
from ftrun.helpers.evidence.spinning import Computing
from ftrun.messages.evidence import EvidenceRequest, Looked, LookRequest
from waitproof import libraries, proof, stacks, threads, waits
from waitproof.libraries import NOTHING
from waitproof.mappings import Mappings
from waitproof.proof import Facts, Proof
from waitproof.stacks import Stack

STILL: Final = 10.0  # s for which a rank must not have moved
STACKS: Final = 5.0  # s for reading all stacks
SPIED: Final = 256  # processes whose stacks are read
_PLAIN: Final = ("sleep", "device", "other", "restart")  # calls that no proof can close in a rank's main thread


def look(request: LookRequest, pause: Callable[[float], None] = time.sleep) -> Looked:
    """The answer.  Takes `between` s and the time for two observations, or less if the wait is open; where only other
    members of the group may end it, a few seconds more."""
    others = OtherMembers(request.group) if request.group is not None else None
    asked = ask_nccl(request)
    found, again = prove(request, pause), False
    if others is not None:
        found, again = others.ask(found, facts(request), pause)
    spin, mechanism = None, found.mechanism
    if found.open_reason is not None:
        asked.wait(nccl_ras.ANSWER)
        spin = unproved(request, asked.value)
        behind = nccl_ras.sentences_of(asked.value)[:1]
        mechanism = sentences.sentence(mechanism or found.open_reason, *behind) if behind else mechanism
    return Looked(
        now=time.monotonic(),
        open_reason=found.open_reason,
        mechanism=mechanism,
        fingerprint=found.fingerprint,
        rank=found.rank,
        pid=found.pid,
        cost=round(cpu(), 3),
        again=again,
        spin=spin,
    )


def cpu() -> float:
    """The CPU seconds of this process and its children."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def facts(request: LookRequest | EvidenceRequest) -> Facts:
    """The ranks that are still to be waited for, and those of them that do not move."""
    ranks = [rank for rank in request.ranks if rank.pid and rank.present]
    still = [r for r in ranks if r.moved_at is None or request.now - r.moved_at >= STILL]
    still.sort(key=lambda rank: rank.moved_at or 0.0)
    stepped = frozenset(rank.pid for rank in ranks if rank.step is not None)
    numbers = {rank.pid: rank.rank for rank in ranks}
    ended = frozenset(rank.rank for rank in request.ranks if rank.done and not rank.present)
    return Facts(request.root, numbers, tuple(rank.pid for rank in still), stepped, ended)


def prove(request: LookRequest, pause: Callable[[float], None]) -> Proof:
    """What this job waits for, and whether that can end."""
    job, in_group = facts(request), request.group is not None
    if job.ranks and not job.still:
        return Proof("no rank stands still")
    if (plain := _plainly_open(job)) is not None:
        return Proof(plain, plain)
    excluded = _excluded(request)
    started = time.monotonic()
    before = waits.empty(frozenset())
    members = job_processes.members(request.root, excluded)
    waits.observe_job(before, list(members), listed=members)
    first = proof.prove(before, before, {}, job, True, in_group)
    if first.open_reason is not None and not first.in_group:
        return first
    waits.observe_outside(before, excluded, in_group)
    found, code, until = dict[int, Stack](), NOTHING, time.monotonic() + STACKS
    asked = set[int]()
    # A stack may show that a thread waits for more processes than it seemed to; theirs are read then, too.
    while fresh := _to_spy(first, asked):
        asked |= {*fresh}
        found |= stacks.collect(stacks.program(), fresh, until - time.monotonic()).found
        code = libraries.of(before, found)
        first = proof.prove(before, before, found, job, False, in_group, code=code)
    if first.open_reason is not None and not first.in_group:
        return first
    pause(max(0.0, started + request.between - time.monotonic()))
    after, excluded = waits.empty(frozenset()), _excluded(request)
    members = job_processes.members(request.root, excluded)
    waits.observe(after, list(members), excluded, in_group, before, members)
    return proof.prove(before, after, found, job, False, in_group, code=code)


def _to_spy(found: Proof, asked: Collection[int]) -> list[int]:
    """The processes whose waits were followed, and whose stacks are to be read."""
    fresh = (pid for pid in dict.fromkeys(pid for pid, _ in found.followed) if pid not in asked)
    return list(fresh)[: SPIED - len(asked)]


def ask_nccl(request: LookRequest | EvidenceRequest) -> Task[NcclView | None]:
    """What NCCL itself says about the ranks, in the background."""
    ranks = {rank.pid: rank.rank for rank in request.ranks if rank.pid and rank.present}
    return Task(lambda: nccl_ras.ask(ranks, ranks))


def unproved(request: LookRequest | EvidenceRequest, view: NcclView | None) -> Spin | None:
    """What no proof covers: all ranks wait for their devices or for each other, or those that stand still compute and
    nothing that they do can be seen outside.  `view`: what NCCL says."""
    job = facts(request)
    if device_waits.none_works(request.devices, dict(request.powers)):
        found, at = stacks.collect(stacks.program(), job.still[:SPIED], STACKS).found, time.monotonic()
        if (waiting := device_waits.wait(job, request.devices, found)) is not None:
            seen = _spin(waiting, job, at)
            why = sentences.sentence(seen.why, *nccl_ras.sentences_of(view)[:1])
            return seen._replace(why=why, launched="" if view is None else view.counts)
    busy, at = spinning.computing(job.still), time.monotonic()
    if not 0 < len(busy) <= spinning.MOST:
        return None
    found = stacks.collect(stacks.program(), busy, STACKS).found
    still_devices = bool(request.devices) and all(device.answers and device.util == 0 for device in request.devices)
    computing = spinning.spin(busy, job.ranks, found, still_devices)
    return None if computing is None else _spin(computing, job, at)


def _spin(found: Computing, job: Facts, at: float) -> Spin:
    rank = job.ranks.get(found.pid)
    return Spin(at, found.why, found.fingerprint, rank, found.pid, found.others, found.on_device)


def _excluded(request: LookRequest) -> frozenset[int]:
    return job_processes.with_newly_started(request.excluded, request.root, {rank.pid for rank in request.ranks})


def _plainly_open(job: Facts) -> str | None:
    """Why no rank that stands still can be proved to do so for ever, from its main thread alone."""
    reasons = []
    for pid in job.still:
        thread = threads.thread(pid, pid, Mappings())
        if thread.is_stopped or (thread.call is not None and thread.call.kind not in _PLAIN):
            return None
        doing = f"waits in {thread.call.name}" if thread.call else "computes"
        reasons.append(f"{sentences.rank(job.ranks[pid])} {doing}")
    return reasons[0] if reasons else None
