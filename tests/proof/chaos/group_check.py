"""What must hold after a job of a group: `check(outcome)` gives what does not, a sentence each."""

from collections.abc import Callable, Iterator
from itertools import pairwise

from ftrun.core.rules.exit_codes import INTERNAL
from proof.chaos import rank_check
from proof.chaos.group_plan import GroupOutcome, GroupRun
from proof.chaos.group_replay import replay
from proof.chaos.plan import Record
from proof.chaos.rank_check import OWN
from proof.chaos.rank_numbers import final_values
from proof.chaos.rank_plan import RankOutcome

# What no rank has to notice.
HARMLESS = ("helper killed", "helper stopped", "standby killed", "/dev/shm full", "driver blocked")
DEVICES = ("device fault", "device asks for a reset", "driver blocked")
MOMENT = 0.05  # s
Place = tuple[int, int, int]  # number of the group's life, epoch, round
LOST, ISOLATING = 195, (196, 197)


def check(outcome: GroupOutcome) -> list[str]:
    if late := [f"{run.member}-{run.container}" for run in outcome.runs if run.code is None]:
        return [f"it did not end in time: {', '.join(late)}"]
    found = [*_values(outcome), *_one_at_a_time(outcome), *_processes(outcome), *_checkpoints(outcome)]
    for run in outcome.runs:
        who = f"ftrun {run.member}-{run.container}"
        found += [f"{who}: {wrong}" for wrong in (*_end(run), *_rungs(outcome, run), *_order(run))]
        found += [f"{who} against the core: {wrong}" for wrong in replay(run.decisions, run.records, run.killed)]
    return [*found, *_codes(outcome), *(f"left behind: {one}" for one in outcome.left)]


def _kinds(outcome: GroupOutcome, member: int | None = None) -> set[str]:
    return {one["kind"] for one in outcome.struck if member in (None, one.get("member"))}


# --- the training -----------------------------------------------------------------------------------------------------


def _values(outcome: GroupOutcome) -> Iterator[str]:
    """The values of an uninterrupted run, in each step and at the end, whatever the number of ranks was."""
    base, shards = outcome.job.base, outcome.job.shards
    for one in outcome.steps:
        right = final_values(shards, one["step"], base.same)[one["rank"]]
        if one["value"] != right:
            yield f"rank {one['rank']} had {one['value']} after step {one['step']} of {_when(one)}, not {right}"
            return
    expected = final_values(shards, base.steps, base.same)
    for rank, value in outcome.final.items():
        if value != expected[rank]:
            yield f"rank {rank} ended with {value}, not {expected[rank]}"
    if any(run.code == 0 for run in outcome.last):
        place = _places(outcome)
        newest = max(map(place, outcome.rounds), default=None)
        ranks = {one["rank"] for one in outcome.rounds if place(one) == newest}
        if not ranks or not ranks <= outcome.final.keys():
            yield f"it ended with 0, and of the ranks {ranks} only {set(outcome.final)} came to the end"


def _when(one: Record) -> str:
    return f"epoch {one['epoch']}, round {one['round']}"


def _places(outcome: GroupOutcome) -> Callable[[Record], Place]:
    """Where a line of the training stands in the order of epochs and rounds.  A group of which no ftrun is left has
    forgotten the number of its last epoch, and new containers begin with 1 again."""
    begins, alive = [], 0.0
    for run in sorted(outcome.runs, key=lambda run: run.began):
        if run.began > alive:
            begins.append(run.began)
        alive = max(alive, _ended(outcome, run))
    return lambda one: (sum(began <= one["mono"] for began in begins), one["epoch"], one["round"])


def _ended(outcome: GroupOutcome, run: GroupRun) -> float:
    kills = [one["mono"] for one in outcome.struck if (one["kind"], one.get("member")) == ("ftrun killed", run.member)]
    after = [at for at in kills if at >= run.began] if run.killed else []
    return float(min(after, default=run.records[-1]["mono"] if run.records else run.began))


def _one_at_a_time(outcome: GroupOutcome) -> Iterator[str]:
    """No step is done after a step of a later round or epoch, anywhere in the group."""
    last, place = (0, 0, 0), _places(outcome)
    for one in sorted(outcome.steps, key=lambda one: one["mono"]):
        this = place(one)
        if this < last:
            after = f"epoch {last[1]}, round {last[2]}"
            yield f"rank {one['rank']} of {one['node']} did step {one['step']} of {_when(one)} after a step of {after}"
        last = max(this, last)


def _processes(outcome: GroupOutcome) -> Iterator[str]:
    """Within an epoch, who is not on record as replaced has kept its process."""
    who: dict[Place, dict[int, tuple[str, int]]] = {}
    until: dict[Place, float] = {}
    place = _places(outcome)
    for one in outcome.rounds:
        this = place(one)
        who.setdefault(this, {})[one["rank"]] = one["node"], one["pid"]
        until[this] = max(one["mono"], until.get(this, 0.0))
    written = [r for run in outcome.runs for r in run.records if r["event"] == "recovering"]
    for before, after in pairwise(sorted(who)):
        if before[:2] != after[:2]:
            continue
        old, new = who[before], who[after]
        replaced = {rank for rank in old.keys() & new.keys() if old[rank] != new[rank]}
        permitted = {
            rank
            for record in written
            if before[2] < record["round"] <= after[2] and until[before] - MOMENT <= record["mono"] <= until[after]
            for rank in record["ranks"]
        }
        if not replaced <= permitted:
            where = f"round {after[2]} of epoch {after[1]}"
            yield f"ranks {replaced} have new processes in {where}, on record are {permitted}"


def _checkpoints(outcome: GroupOutcome) -> Iterator[str]:
    """Nobody begins below a recorded checkpoint.  Where each rank has its own state, one of all ranks counts.  Within
    an epoch a snapshot is preferred to a checkpoint, and may be older by the steps between two snapshots."""
    base = outcome.job.base
    recorded = [
        (record["mono"], int(str(record["checkpoint"]).rpartition("/")[2].split("-")[1]))
        for run in outcome.runs
        for record in run.records
        if record["event"] == "progress" and record.get("checkpoint")
    ]
    saved: dict[int, list[float]] = {}
    for one in outcome.steps:
        if one["step"] % base.save_every == 0:
            saved.setdefault(one["step"], []).append(one["mono"])
    if not base.same:
        every = range(outcome.job.shards)
        whole = {
            step: max(
                min((o["mono"] for o in outcome.steps if (o["rank"], o["step"]) == (rank, step)), default=float("inf"))
                for rank in every
            )
            for step in saved
        }
        recorded = [(max(at, whole.get(step, float("inf"))), step) for at, step in recorded]
    place, begun = _places(outcome), set[Place]()
    for one in sorted(outcome.rounds, key=lambda one: one["mono"]):
        behind = max((step for at, step in recorded if at < one["mono"] - MOMENT), default=0)
        if one["round"] > 1:
            behind = (behind - 1) // base.keep_every * base.keep_every
        if one["step"] < behind and place(one) not in begun:
            yield f"rank {one['rank']} began {_when(one)} at step {one['step']}, on record is checkpoint {behind}"
        begun.add(place(one))  # a rank that comes late begins where the others have begun, which was before


# --- each ftrun -------------------------------------------------------------------------------------------------------


def _end(run: GroupRun) -> Iterator[str]:
    """One end, with its code, unless it was killed."""
    if OWN.search(run.stderr) or any("traceback" in record for record in run.records):
        yield "ftrun itself failed"
    if run.killed:
        return
    ended = [record for record in run.records if record["event"] == "ended"]
    if len(ended) != 1 or ended[0]["exit_code"] != run.code:
        yield f"it ended with {run.code}, the records say {[one.get('exit_code') for one in ended]}"
    if run.verdict is None or run.verdict["exit_code"] != run.code:
        yield f"it ended with {run.code}, the termination message says {run.verdict}"


def _order(run: GroupRun) -> Iterator[str]:
    for one, other in pairwise(run.records):
        if other["mono"] < one["mono"]:
            yield f"{other['event']} at {other['mono']} comes after {one['event']} at {one['mono']}"


def _rungs(outcome: GroupOutcome, run: GroupRun) -> Iterator[str]:
    """What recovered is permitted, comes from the finest rung down, and follows a fault."""
    struck = tuple(one for one in outcome.struck if one["kind"] not in HARMLESS)
    records = run.records
    if any(run.member == other.member and other.began < run.began for other in outcome.runs):
        # It joins a round that the other members have on record as begun.
        own = next((at for at, one in enumerate(records) if one["event"] == "recovering"), len(records))
        records = tuple(one for at, one in enumerate(records) if at > own or one["event"] != "recovered")
    alone = RankOutcome(outcome.job.base, run.code, records, struck)
    yield from rank_check._rungs(alone)
    yield from rank_check._unexplained(alone)


# --- the group --------------------------------------------------------------------------------------------------------


def _codes(outcome: GroupOutcome) -> Iterator[str]:
    """Who does not end with 0 has a reason for it."""
    left = [run for run in outcome.last if not run.killed]
    for run in left:
        if run.code != 0 and not _explained(outcome, run):
            yield f"member {run.member} ended with {run.code}, which nothing explains"
    well = [run for run in left if run.code == 0]
    for run in left:
        beside = [other.member for other in well if other.began < _ended(outcome, run)]
        own = _kinds(outcome, run.member) & {"termination signal", "ftrun killed", *DEVICES}
        if run.code != 0 and beside and not own:
            yield f"member {run.member} ended with {run.code}, the members {beside} with 0"


def _explained(outcome: GroupOutcome, run: GroupRun) -> bool:
    kinds, base = _kinds(outcome), outcome.job.base
    if run.code == INTERNAL.code or not run.records:
        return run.code == INTERNAL.code and "/dev/shm full" in kinds
    if "termination signal" in kinds:
        return True
    if run.code == LOST and "ftrun killed" in kinds:
        return True
    # The verdict about one member is that of all if they cannot go on without it.
    if run.code in ISOLATING or (run.code == LOST and kinds & set(DEVICES)):
        return bool(kinds & set(DEVICES))
    hurt = [one for one in outcome.struck if one["kind"] not in HARMLESS]
    return bool(hurt) and ("failure" not in dict(base.options)["restart-on"] or len(hurt) > base.max_restarts)
