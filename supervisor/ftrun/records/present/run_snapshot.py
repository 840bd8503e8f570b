"""The present state of a run, from the files of its run dir alone.  ftrun may be running or gone, and a file may be
torn or missing.
"""

import time
from itertools import repeat
from typing import Any

from ftrun.core.accounting.totals import figures
from ftrun.core.machine.values import CAUSES, TOUCH, Attempt, Ledger, Rank
from ftrun.core.ranks.rounds import ELSEWHERE
from ftrun.core.rules.liveness import time_awake
from ftrun.core.text import durations, heartbeats, sentences, states
from ftrun.core.text.sentences import several
from ftrun.host import procfs, work_dir
from ftrun.messages import records
from ftrun.messages.codec import TOLERANT, Malformed
from ftrun.messages.probe import Devices
from ftrun.messages.run_state import AttemptStatus, JobStatus, RoundStatus, RunFacts, RunState
from ftrun.records.files import beatfile, liveness, recent_events, record_files, rundir, state, steps
from ftrun.records.files.beatfile import BeatFileContent
from ftrun.records.files.record_files import Record
from ftrun.records.present import live_verdict, own_ranks
from ftrun.records.present.live_verdict import LiveVerdict
from ftrun.records.present.next_action import next_action
from ftrun.records.present.snapshot import DeviceNow, RankNow, Snapshot, StalledRank

RECORD_DELAY = 2.0  # s; what ftrun has seen is on disk by then


def read_snapshot(run_dir: str, now: float | None = None) -> Snapshot:
    """The present state of the run.  `now`: CLOCK_MONOTONIC.  NoRunDir is the only error.  It takes a few milliseconds,
    and the reads are bounded."""
    rundir.check(run_dir)
    now = time.monotonic() if now is None else now
    recent, found = record_files.last_condensed(f"{run_dir}/events.jsonl"), state.load(run_dir)
    problems = [] if found.problem is None else [found.problem]
    ledger, run, status = found.ledger or Ledger(), found.rest.run, found.rest.now
    began, ended = recent_events.last(recent, "started"), recent_events.ended(recent)
    if status.phase == "pending" and not found.rest.ended:
        ended = None  # of an earlier ftrun: the present one has no record before its first start
    alive = ended is None and liveness.is_running(run_dir, run)
    phase = (status.phase or recent_events.phase(recent)).replace("pending", "waiting")
    newest: Record = recent[-1] if recent else {}
    clock = now
    if not alive or not liveness.same_boot(run):  # that clock is not ours: show it as of its last record
        now = max(state.number(newest.get("mono")) or 0.0, ledger.account.at or 0.0) or now
    if not alive:
        phase = "cut off" if ended is None else "done"
    elif phase == "waiting" and status.spare:
        phase = "spare"
    elif phase == "stopping" and status.stage == "verdict" and status.want.code == 0:
        phase = "finished"
    checkpoints = (one for one in reversed(recent) if one["event"] == "progress" and one.get("by") == "checkpoint")
    saved = state.string(next(checkpoints, {}).get("time"))
    shown = Snapshot(
        run_dir=run_dir,
        alive=alive,
        phase=phase,
        attempt=ledger.start_cnt or state.integer(newest.get("attempt")) or 0,
        reason=recent_events.reason(recent) if found.ledger is None else ledger.reason,
        origin=recent_events.origin(recent),
        command=run.command or state.strings(began.get("command")) or (),
        version=run.version or state.string(began.get("version")) or "",
        pid=found.rest.pid,
        node=run.node,
        part=run.part or state.string(began.get("phase")) or "",
        schedule_cnt=None if found.ledger is None else ledger.schedule_cnt,
        began=run.began or state.string(began.get("time")),
        restarts=recent_events.restarts(recent),
        step=ledger.last_step,
        best_step=ledger.best_step,
        checkpoint=ledger.last_checkpoint,
        checkpoint_step=ledger.best_checkpoint,
        checkpoint_time=saved,
        checkpoint_age=_age(saved),
        devices=_devices(run_dir, clock if liveness.same_boot(run) else now),
        trouble=recent_events.last_incident(run_dir, recent, found.ledger is None or ledger.start_cnt > 1),
    )
    if alive and status.since is not None:
        shown = shown._replace(since=max(0.0, now - status.since))
    if found.ledger is not None:
        done = {rung: number for rung, number in (("retry", ledger.retried), ("rank", ledger.replaced)) if number}
        shown = shown._replace(recovered=done)
        shown = _budgets(_accounted(shown, ledger, run, now), ledger, run)
    if ended is not None:
        verdict, why = (state.string(ended.get(name)) for name in ("verdict", "why"))
        shown = shown._replace(verdict=verdict, exit_code=state.integer(ended.get("exit_code")), why=why)
    if not alive:
        shown = shown._replace(ended=state.string((newest if ended is None else ended).get("time")))
    if status.attempt is not None:
        shown = _attempt(shown, now, clock, found.rest, status.attempt, problems)
    else:
        at, what = next_action(status, phase, None, (), now)
        shown = shown._replace(deadline=at, next=what, **_paused(status, now))
    if alive:
        shown = shown._replace(group=_group(status, ledger), next_start=found.rest.next_start)
        shown = shown._replace(stopped=liveness.stopped(run) if shown.suspended is None else None)
    return shown._replace(problems=tuple(problems), full_disk=work_dir.is_full(run_dir))


def _rounds(found: RoundStatus | None, now: float) -> dict[str, Any]:
    """The round of ranks that can recover, and what is going on between two rounds."""
    if found is None:
        return {}
    number, replaced = found.number, ", ".join(map(sentences.rank, found.replacing))
    if found.stage == "working":
        return {"round": number}
    what = f"replacing {replaced}" if replaced else "all ranks retry the step"
    awaited = ", ".join(map(sentences.rank, found.awaited))
    last = f"waiting for {awaited}" if awaited else f"round {number} has begun, and not every rank has moved in it"
    if found.stage == "settling":
        what, last = "a collective failed", "the death of a rank may be the reason"
    if found.lacks_culprit:
        left = durations.seconds(max(0.0, found.since + ELSEWHERE - now))
        what, last = "a hang was found", f"another member may show which rank causes it, else all restart in {left}"
    since = f"for {durations.seconds(max(0.0, now - found.since))}"
    return {"round": number, "recovery": f"{what} {since}: {found.why}; {last}"}


def _attempt(
    shown: Snapshot, now: float, clock: float, found: RunState, seen: AttemptStatus, problems: list[str]
) -> Snapshot:
    """The snapshot with the present attempt: its ranks and its timeouts.  For an ftrun that is gone `now` is its
    end."""
    run, status, spawned_at, beats = found.run, found.now, seen.spawned_at, BeatFileContent()
    if shown.phase != "done" and liveness.same_boot(run):
        # Else each process is checked: it may have been ended just after its last heartbeat.
        here, fresh = liveness.is_local(run) or not shown.alive, beatfile.FRESH if shown.phase in states.LIVE else 0.0
        beats = beatfile.read(str(found.beat_dir), clock, spawned_at, here, fresh)
        problems += [beats.problem] if beats.problem and shown.alive else []
        if not shown.alive:
            beats = BeatFileContent(_until(beats.ranks, now, problems))
    attempt, samples = live_verdict.attempt(seen, beats.ranks), steps.samples(shown.run_dir, shown.attempt)
    attempt = attempt._replace(frameworks=beats.frameworks)
    stops = [] if attempt.stopped_at is None else [attempt.stopped_at]
    stops += [] if status.paused is None else [status.paused.since]
    verdict = None if run.limits is None else LiveVerdict(attempt, run.limits, min([now, *stops]))
    live = verdict if shown.phase in states.LIVE else None
    limits = live_verdict.limits(verdict, run.sources) if verdict is not None else ()
    firsts = repeat(None) if live is None else live.first_of_each()
    ranks = tuple(
        live_verdict.rank_now(rank, first, now, steps.rank_pace(rank, samples))
        for rank, first in zip(beats.ranks, firsts, strict=False)
    )
    ranks = own_ranks.with_processes(ranks, attempt.processes, max(0.0, now - spawned_at))
    ranks = own_ranks.with_devices(ranks, shown.devices)
    if shown.alive:
        measured = steps.measured_paces(shown.run_dir, shown.attempt, clock) if liveness.same_boot(run) else {}
        ranks = own_ranks.with_paces(ranks, measured)
        if not stops:  # a rank that a debugger holds is no straggler
            ranks = own_ranks.with_stragglers(ranks)
    stall = _stall(attempt, now) if live is not None else None
    ranks = own_ranks.with_stall(ranks, stall)
    stepping = [rank for rank in ranks if rank.step is not None and rank.state not in own_ranks.ENDED]
    problems += [seen.look_failed] if seen.look_failed and live is not None else []
    at, what = next_action(status, shown.phase, live, limits, now)
    return shown._replace(
        up=max(0.0, now - spawned_at) if shown.phase != "done" else None,
        first_beat=attempt.first_beat,
        suspended=None if attempt.stopped_at is None or live is None else max(0.0, now - attempt.stopped_at),
        **_rounds(seen.rounds, now),
        step=shown.step if attempt.step is None else attempt.step,
        step_time=steps.pace(beats.ranks, samples),
        checkpoint_time=shown.checkpoint_time if beats.saved_at is None else _wall(clock - beats.saved_at),
        checkpoint_age=shown.checkpoint_age if beats.saved_at is None else max(0.0, clock - beats.saved_at),
        ranks=ranks,
        slowest=min(stepping, key=lambda rank: rank.step or 0, default=None),
        stalest=min((r for r in ranks if r.age is not None), key=_left, default=None),
        limits=limits,
        deadline=at,
        next=what,
        stalled=stall,
        wait=seen.wait or None,
        heartbeats=heartbeats.seen_in(attempt, live.limits) if live is not None else None,
        **_paused(status, now),
    )


def _until(ranks: tuple[Rank, ...], end: float, problems: list[str]) -> tuple[Rank, ...]:
    """The ranks at the end of an ftrun that is gone; none if they ran on after it, as their state then is unknown."""
    left = sum(rank.present and not rank.done and rank.rank != TOUCH for rank in ranks)
    if left:
        problems.append(
            f"{several(left, 'rank')} still run{'s' * (left == 1)}, unsupervised; the rest is as of the end of ftrun"
        )
    newest = max((at for rank in ranks for at in (rank.alive_at, rank.moved_at) if at is not None), default=end)
    return ranks if newest <= end + RECORD_DELAY else ()


def _left(rank: RankNow) -> tuple[bool, float]:
    return rank.limit is None, (rank.limit or 0.0) - (rank.age or 0.0)


def _stall(attempt: Attempt, now: float) -> StalledRank | None:
    """The stall that was recorded, as long as that rank has not moved."""
    found = attempt.stalled
    if found is None or found.rank is None:
        return None
    rank = next((rank for rank in attempt.ranks if rank.rank == found.rank), None)
    if rank is not None and (rank.moved_at or 0.0) > found.since:
        return None
    return StalledRank(
        found.rank, time_awake(found.since, now, attempt.aways) - (rank.credit if rank is not None else 0.0)
    )


def _paused(status: JobStatus, now: float) -> dict[str, Any]:
    paused = status.paused
    if paused is None:
        return {}
    resumes = None if paused.until is None else max(0.0, paused.until - now)
    by = paused.by or "another member"
    return {"paused": max(0.0, now - paused.since), "resumes": resumes, "paused_by": by}


def _group(status: JobStatus, ledger: Ledger) -> str | None:
    order = status.group
    if order is None:
        return None
    why = f": {order.why}" if order.why and order.what != "run" else ""
    return f"epoch {ledger.epoch}, {states.group(order.what)}{why}"


def _accounted(shown: Snapshot, ledger: Ledger, run: RunFacts, now: float) -> Snapshot:
    found = figures(ledger.account, now if shown.alive and liveness.same_boot(run) else None)
    lost = {why: seconds for why, seconds in found.lost.items() if seconds}
    return shown._replace(wall=found.wall, lost=lost, goodput=found.goodput, restarts=found.restarts)


def _budgets(shown: Snapshot, ledger: Ledger, run: RunFacts) -> Snapshot:
    """The snapshot with the restart budgets; without them after the end, since a new run would begin with full
    budgets."""
    if shown.phase == "done":
        return shown
    counts: dict[str, int] = {cause: ledger.count(cause) for cause in CAUSES}
    if run.restart_on is None:
        return shown._replace(counts=counts)
    most = run.max_restarts
    left = {cause: None if most is None else max(0, most - count) for cause, count in counts.items()}
    return shown._replace(counts=counts, left=left | {cause: 0 for cause in counts if cause not in run.restart_on})


def _wall(ago: float) -> str:
    """The time so many seconds ago, in the form of the records."""
    nanoseconds = time.time_ns() - int(max(0.0, ago) * 1e9)
    return records.timestamp(nanoseconds, time.gmtime(nanoseconds // 1_000_000_000))


def _age(moment: str | None) -> float | None:
    """The age of a time by the wall clock, which counts on when ftrun is gone, and outlives a boot."""
    at = records.seconds(moment)
    return None if at is None else max(0.0, time.time() - at)


def _devices(run_dir: str, now: float) -> tuple[DeviceNow, ...]:
    try:
        found = TOLERANT.load(Devices, procfs.read(f"{run_dir}/devices.json", state.LIMIT) or b"")
    except Malformed:
        return ()
    age = max(0.0, now - found.mono)
    return tuple(
        DeviceNow(d.id, d.name, d.util, d.memory_used, d.memory_total, d.power, age, d.index, d.health, d.recovery)
        for d in found.devices
    )
