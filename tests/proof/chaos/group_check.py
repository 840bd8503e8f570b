"""What must hold after a job of a group: `check(outcome)` gives what does not, a sentence each."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from ftrun.core.rules.exit_codes import INTERNAL
from proof.chaos.companions import SHORT_INPUT
from proof.chaos.group_plan import (
    ALL_SUSPENDED,
    BLOCKED,
    DISKS,
    FOLDER,
    FOR_EVER,
    NETWORK,
    NEW_PROCESS,
    OTHER_POD,
    PLATFORM,
    REPLACED,
    RESET_FILE,
    SUSPENDED,
    SUSPENSIONS,
    TORN,
    GroupJob,
    GroupOutcome,
    GroupRun,
)
from proof.chaos.plan import Record
from proof.chaos.rank_numbers import final_values
from proof.chaos.replay import replay

# What no rank has to notice.
HARMLESS = (
    *("helper killed", "helper stopped", "standby killed", "/dev/shm full", "driver blocked"),
    *(*DISKS, *FOLDER, TORN, OTHER_POD, ALL_SUSPENDED),
)
DEVICES = ("device fault", "device asks for a reset", "driver blocked", *PLATFORM)
OWN = re.compile(r"/supervisor/ftrun/(?!workload/ranks)")  # a file of ftrun in a traceback
LADDER = ("retry", "rank", "tree")
SHORT = 10.0  # s; --peer-timeout is 15 s
LONG = 5.0  # s that a member may have been silent when it is lost for a while
MOMENT = 0.05  # s
SILENCE = re.compile(r"no message arrived from it for ([\d.]+)s")
STOPPED = "stopped"
RESUMED = 8.0  # s that the ranks of a holder run on that is resumed after the end of its lease
ENOUGH = 1.5  # s that a fault stays in reset.json, which is read twice a second
SOON = 60.0  # s until all members know of a stop and have ended, on a crowded machine
Place = tuple[int, int, int]  # number of the group's life, epoch, round
LOST, ISOLATING = 195, (196, 197)


def check(outcome: GroupOutcome) -> list[str]:
    if late := [f"{run.member}-{run.container}" for run in outcome.runs if run.code is None]:
        return [f"it did not end in time: {', '.join(late)}"]
    found = [*_values(outcome), *_one_at_a_time(outcome), *_never_two_epochs(outcome)]
    found += [*_processes(outcome), *_checkpoints(outcome)]
    for run in outcome.runs:
        who, broken = f"ftrun {run.member}-{run.container}", _is_spoiled(outcome, run)
        always = (*_end(run, broken), *_order(run), *_requests(outcome, run), *_patience(outcome, run))
        found += [f"{who}: {wrong}" for wrong in always]
        found += [
            f"{who} against the core: {wrong}" for wrong in replay(run.decisions, run.records, run.killed, broken)
        ]
        if broken:
            found += [f"{who}: {wrong}" for wrong in _lost_records(run)]
        else:
            alone = (*_rungs(outcome, run), *_records_first(outcome, run), *_broken_state_dir(outcome, run))
            found += [f"{who}: {wrong}" for wrong in alone]
    found += [*_codes(outcome), *_stops(outcome), *_noticed(outcome), *_replaced_for_platform(outcome)]
    return [*found, *(f"left behind: {one}" for one in outcome.left)]


def _is_spoiled(outcome: GroupOutcome, run: GroupRun) -> bool:
    """Whether records of this ftrun may be missing, since its run dir could not be written.  A state dir, or a folder
    of reports, that cannot be written loses none."""
    where = run.member, run.container, "run"
    disks = [one for one in outcome.struck if one["kind"] in DISKS]
    return any((one["member"], one["container"], one["what"]) == where and one["mono"] <= run.over for one in disks)


def _is_harmless(outcome: GroupOutcome, one: Record) -> bool:
    """Whether no rank has to notice it: also a suspension of one ftrun alone with its ranks, and a silence of the
    ftruns themselves that is shorter than permitted, but not what happens to the lease of a shared folder that fails
    while the holder cannot know that all witnesses are there: their messengers are new, or were suspended.  Nor the
    loss of a coordinator that has told the others to start, but not yet the ftrun beside it."""
    short = one["kind"] == BLOCKED and one["lasting"] < SHORT
    unsure = _kinds(outcome) & {ALL_SUSPENDED, "helper killed", "helper stopped"} and _kinds(outcome) & {*FOLDER}
    alone = one["kind"] == SUSPENDED and not outcome.job.is_group
    if (one["kind"], one.get("what"), one.get("member")) == ("helper killed", "messenger", 0):
        beside = (r for run in outcome.runs if run.member == 0 for r in run.records if r["event"] == "started")
        return bool(min((r["mono"] for r in beside), default=math.inf) < one["mono"])
    return (one["kind"] in HARMLESS and not (unsure and one["kind"] in FOLDER)) or short or alone


def _kinds(outcome: GroupOutcome, member: int | None = None) -> set[str]:
    return {one["kind"] for one in outcome.struck if member in (None, one.get("member"))}


# --- the training -----------------------------------------------------------------------------------------------------


def _values(outcome: GroupOutcome) -> Iterator[str]:
    """The values of an uninterrupted run, in each step and at the end, whatever the number of ranks was."""
    base = outcome.job.base
    for one in outcome.steps:
        right = final_values(base.ranks, one["step"], base.same)[one["rank"]]
        if one["value"] != right:
            yield f"rank {one['rank']} had {one['value']} after step {one['step']} of {_when(one)}, not {right}"
            return
    expected = final_values(base.ranks, base.steps, base.same)
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
    begins = _lives(outcome)
    return lambda one: (sum(began <= one["mono"] for began in begins), one["epoch"], one["round"])


def _lives(outcome: GroupOutcome) -> list[float]:
    """When the first ftrun of the group has begun, and each that began when none was left."""
    begins, alive = list[float](), 0.0
    for run in sorted(outcome.runs, key=lambda run: run.began):
        if run.began > alive:
            begins.append(run.began)
        alive = max(alive, _ended(outcome, run))
    return begins


def _ended(outcome: GroupOutcome, run: GroupRun) -> float:
    kills = [
        one["mono"]
        for one in outcome.struck
        if (one["kind"], one.get("member")) == ("ftrun killed", run.member)
        and one.get("container", run.container) == run.container
    ]
    after = [at for at in kills if at >= run.began] if run.killed else []
    return float(min(after, default=run.records[-1]["mono"] if run.records else run.began))


def _one_at_a_time(outcome: GroupOutcome) -> Iterator[str]:
    """No step is done after a step of a later round or epoch, anywhere in the group; but a rank that was suspended in
    one may finish that once it is resumed."""
    last, place, finished = (0, 0, 0), _places(outcome), set[tuple[str, int]]()
    for one in sorted(outcome.steps, key=lambda one: one["mono"]):
        this = place(one)
        if this < last:
            who = one["node"], one["pid"]
            if who in finished or not _was_suspended(outcome, one):
                after = f"epoch {last[1]}, round {last[2]}"
                yield f"rank {one['rank']} of {who[0]} did step {one['step']} of {_when(one)} after a step of {after}"
            finished.add(who)
        last = max(this, last)


def _was_suspended(outcome: GroupOutcome, step: Record) -> bool:
    """Whether the container of a rank has just been resumed."""
    return any(
        until < step["mono"] < until + RESUMED + outcome.late
        for run in outcome.runs
        for _, until in _suspensions(outcome, run)
        if f"member-{run.member}-{run.container}" == step["node"]
    )


def _suspensions(outcome: GroupOutcome, run: GroupRun) -> Iterator[tuple[float, float]]:
    for one in outcome.struck:
        mine = one["kind"] == ALL_SUSPENDED or (one.get("member"), one.get("container")) == (run.member, run.container)
        if one["kind"] in SUSPENSIONS and mine and one["lasting"] >= LONG:
            yield one["mono"], one["mono"] + one["lasting"]


class Work(NamedTuple):
    """The ranks of one epoch in one container, from the record of their start to that of their end, or to the time when
    they were suspended, if they ended at once when that was over."""

    who: str
    life: int
    epoch: int
    since: float
    until: float


def _never_two_epochs(outcome: GroupOutcome) -> Iterator[str]:
    """No epoch begins anywhere while ranks of an earlier one exist, by the records."""
    begins, works = _lives(outcome), list[Work]()
    for run in outcome.runs:
        if _is_spoiled(outcome, run):
            continue
        ordered, epoch, since = 0, 0, None
        for record in (*run.records, {"event": "exited", "mono": _ended(outcome, run)}):
            if (record["event"], record.get("what")) == ("group", "run"):
                ordered = record["epoch"]
            elif record["event"] == "spawned":
                epoch, since = ordered, record["mono"]
            elif record["event"] == "exited" and since is not None:
                life = sum(began <= since for began in begins)
                until = _until(outcome, run, since, record["mono"])
                works.append(Work(f"{run.member}-{run.container}", life, epoch, since, until))
                since = None
    for one, other in combinations(sorted(works, key=lambda work: work[1:3]), 2):
        if one.life == other.life and one.epoch < other.epoch and other.since < one.until - MOMENT:
            yield (
                f"epoch {other.epoch} began in {other.who} at {other.since}, "
                f"that of {one.epoch} ended in {one.who} at {one.until}"
            )


def _until(outcome: GroupOutcome, run: GroupRun, since: float, end: float) -> float:
    """When ranks that were suspended could do nothing any more (ADR 45): who is resumed stops them within seconds."""
    for suspended, resumed in _suspensions(outcome, run):
        if since < suspended < end < resumed + RESUMED + outcome.late:
            return suspended
    return end


def _processes(outcome: GroupOutcome) -> Iterator[str]:
    """Within an epoch, who is not on record as replaced has kept its process."""
    who: dict[Place, dict[int, tuple[str, int]]] = {}
    until: dict[Place, float] = {}
    if any(_is_spoiled(outcome, run) for run in outcome.runs):
        return
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
        every = range(base.ranks)
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


def _end(run: GroupRun, spoiled: bool) -> Iterator[str]:
    """One end, with its code, unless it was killed."""
    if any(record.get("code") == SHORT_INPUT for record in run.records):
        yield "a rank has not found its input whole"
    if OWN.search(run.stderr) or any("traceback" in record for record in run.records):
        yield "ftrun itself failed"
    if run.killed:
        return
    ended = [record for record in run.records if record["event"] == "ended"]
    if len(ended) != 1 - (spoiled and not ended) or any(one["exit_code"] != run.code for one in ended):
        yield f"it ended with {run.code}, the records say {[one.get('exit_code') for one in ended]}"
    if run.verdict is None or run.verdict["exit_code"] != run.code:
        yield f"it ended with {run.code}, the termination message says {run.verdict}"


def _order(run: GroupRun) -> Iterator[str]:
    for one, other in pairwise(run.records):
        if other["mono"] < one["mono"]:
            yield f"{other['event']} at {other['mono']} comes after {one['event']} at {one['mono']}"


def _rungs(outcome: GroupOutcome, run: GroupRun) -> Iterator[str]:
    """What recovered is permitted, comes from the finest rung down, and follows a fault."""
    struck = [one for one in outcome.struck if not _is_harmless(outcome, one)]
    records = run.records
    if any(run.member == other.member and other.began < run.began for other in outcome.runs):
        # It joins a round that the other members have on record as begun.
        own = next((at for at, one in enumerate(records) if one["event"] == "recovering"), len(records))
        records = tuple(one for at, one in enumerate(records) if at > own or one["event"] != "recovered")
    others = [r for other in outcome.runs if other.member != run.member for r in other.records]
    yield from _ladder(outcome.job, records, frozenset(r["round"] for r in others if r["event"] == "recovered"))
    first = min((one["mono"] for one in struck), default=float("inf"))
    for record in records:
        if record["event"] in ("recovering", "hang", "restart") and record["mono"] < first:
            yield f"{record['event']} ({record.get('why')}), and nothing had been done to it"


def _ladder(job: GroupJob, records: Sequence[Record], elsewhere: frozenset[int]) -> Iterator[str]:
    """From the finest rung down, only those that are permitted, and a success is of the rung that was begun last.
    `elsewhere`: the rounds that other members have proved; a fault of one of these begins anew from the finest."""
    permitted = dict(job.base.options)["recover"].split(",")
    under_way: Record | None = None
    proved = 1  # the round that was proved last
    for record in records:
        match record["event"]:
            case "started" | "restart":
                under_way, proved = None, 1
            case "recovering":
                before = "retry" if under_way is None else under_way["rung"]
                # What the members of a group decide together may come after what one of them has found for this round.
                overtaken = (
                    job.is_group and under_way is not None and under_way["round"] in (record["round"], *elsewhere)
                )
                if LADDER.index(record["rung"]) < LADDER.index(before) and not overtaken:
                    yield f"rung {record['rung']} follows {before}"
                if record["rung"] not in (*permitted, "tree"):
                    yield f"rung {record['rung']} is not permitted"
                if record["round"] <= proved or (record["rung"] == "rank") != bool(record["ranks"]):
                    yield f"round {record['round']} of rung {record['rung']} for {record['ranks']} after round {proved}"
                under_way = record
            case "recovered":
                expected = None if under_way is None else tuple(under_way[name] for name in ("rung", "round", "ranks"))
                if expected != tuple(record[name] for name in ("rung", "round", "ranks")):
                    yield f"it recovered by {record['rung']} for {record['ranks']}, begun was {expected}"
                under_way, proved = None, record["round"]


def _lost_records(run: GroupRun) -> Iterator[str]:
    """ftrun says that its records are incomplete."""
    incomplete = any(replay(run.decisions, run.records, run.killed))
    if incomplete and not run.killed and "cannot be written" not in run.stderr:
        yield "records are missing, and it does not say so"


def _patience(outcome: GroupOutcome, run: GroupRun) -> Iterator[str]:
    """No member is lost by a silence that is shorter than --peer-timeout."""
    limit = float(dict(outcome.job.base.options).get("peer-timeout", "60s").removesuffix("s"))
    for record in run.records:
        silence = SILENCE.search(str(record.get("why"))) if record["event"] == "group" else None
        if silence is not None and float(silence[1]) < limit:
            yield f"a member was lost after {silence[1]} s without a message, of {limit:.0f} s"
            return


def _broken_state_dir(outcome: GroupOutcome, run: GroupRun) -> Iterator[str]:
    """A state dir that can be written no more is a problem on record, once there was something to write."""
    if run.killed or _kinds(outcome, run.member) & {"helper killed", "helper stopped", "container stopped"}:
        return
    for one in outcome.struck:
        for_ever = one["kind"] in DISKS and one["what"] == "state" and one["lasting"] == FOR_EVER
        if not for_ever or (one["member"], one["container"]) != (run.member, run.container):
            continue
        ends = any(r["event"] == "exited" and r["mono"] > one["mono"] for r in run.records)
        known = any(r["event"] == "problem" and "cannot be written" in r["what"] for r in run.records)
        if run.began < one["mono"] and ends and not known:
            yield f"{one['kind']} of the state dir is not on record"


def _records_first(outcome: GroupOutcome, run: GroupRun) -> Iterator[str]:
    """No rank works in an epoch or a round before its start is on record here."""
    node, until = f"member-{run.member}-{run.container}", _ended(outcome, run)
    orders: dict[int, float] = {}  # when each was first on record; a messenger that is new repeats it
    for r in run.records:
        if (r["event"], r.get("what")) == ("group", "run"):
            orders.setdefault(r["epoch"], r["mono"])
    rounds = [(r["round"], r["mono"]) for r in run.records if r["event"] == "recovering"]
    for one in outcome.rounds:
        if one["node"] != node or not run.began <= one["mono"] <= until:
            continue
        if outcome.job.is_group and not orders.get(one["epoch"], float("inf")) <= one["mono"]:
            yield f"rank {one['rank']} began {_when(one)} before the order to start was on record"
        # Who comes new joins a round that the others have on record as begun.
        same = [o for o in outcome.rounds if (o["node"], o["epoch"]) == (node, one["epoch"])]
        joined = min(o["round"] for o in same if o["mono"] >= run.began)
        written = any(number == one["round"] and at <= one["mono"] for number, at in rounds)
        if one["round"] > max(1, joined) and not written:
            yield f"rank {one['rank']} began {_when(one)} before that was on record"


def _requests(outcome: GroupOutcome, run: GroupRun) -> Iterator[str]:
    """ftctl never hangs, and what it calls done is on record."""
    spoiled = _is_spoiled(outcome, run)
    for one in outcome.struck:
        if one["kind"] != "operator request" or one["member"] != run.member or "answer" not in one:
            continue
        if not run.began <= one["mono"] <= _ended(outcome, run):
            continue
        if one["answer"] not in (0, 1):
            yield f"ftctl {one['what']} ended with {one['answer']}"
        orders = [r for r in run.records if r["event"] == "order" and r["mono"] >= one["mono"] - MOMENT]
        if one["answer"] == 0 and not spoiled and not any(r["what"] == one["what"] and r["ok"] for r in orders):
            yield f"ftctl {one['what']} reported success, which is not on record"


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
        own = _kinds(outcome, run.member) & {"termination signal", "ftrun killed", *DEVICES, *NETWORK}
        # Without member 0 nobody knows of the others; and a signal that stops it has it leave first.
        own |= {one["kind"] for one in outcome.struck if one.get("member") == 0 and _takes_away(one)}
        if run.code != 0 and beside and not own and not (run.code == 143 and _is_spare(run)):
            yield f"member {run.member} ended with {run.code}, the members {beside} with 0"


def _takes_away(one: Record) -> bool:
    """Whether the member that was struck left, or could not be reached and did not notice that itself."""
    return one["kind"] in {*NETWORK, "termination signal"} or (one["kind"] in SUSPENSIONS and one["lasting"] >= LONG)


def _is_spare(run: GroupRun) -> bool:
    """Whether the last order to start that it has seen gave a place to others only; a stop ends a spare alone."""
    orders = [r for r in run.records if (r["event"], r.get("what")) == ("group", "run")]
    return bool(orders) and run.member not in orders[-1].get("members", [run.member])


def _explained(outcome: GroupOutcome, run: GroupRun) -> bool:
    kinds, base = _kinds(outcome), outcome.job.base
    if run.code == INTERNAL.code or not run.records:
        return run.code == INTERNAL.code and "/dev/shm full" in kinds
    if "termination signal" in kinds:
        return True
    if run.code in (143, 137) and any(one.get("what") == "stop" for one in outcome.struck):
        return True
    silent = any(one["kind"] in (*NETWORK, *SUSPENSIONS) and one["lasting"] >= LONG for one in outcome.struck)
    silent = silent or REPLACED in kinds
    if run.code == LOST and ("ftrun killed" in kinds or silent):
        return True
    # The verdict about one member is that of all if they cannot go on without it.
    if run.code in ISOLATING or (run.code == LOST and kinds & set(DEVICES)):
        return bool(kinds & set(DEVICES))
    hurt = [one for one in outcome.struck if not _is_harmless(outcome, one)]
    return bool(hurt) and ("failure" not in dict(base.options)["restart-on"] or len(hurt) > base.max_restarts)


def _stops(outcome: GroupOutcome) -> Iterator[str]:
    """A stop of one member that has a place in the epoch ends all: no epoch begins afterwards."""
    for run in outcome.runs:
        stop = next((r["mono"] for r in run.records if r["event"] == "order" and r["what"] == "stop" and r["ok"]), None)
        if stop is not None and any(r["event"] == "spawned" and r["mono"] > stop for r in run.records):
            yield f"member {run.member} was stopped, and has started its ranks again"
    if _kinds(outcome) & {"ftrun killed", "container stopped", "helper stopped", *NETWORK}:
        return
    for run in outcome.runs:
        ended = [r for r in run.records if r["event"] == "ended" and r["verdict"] == STOPPED]
        asked = [r for r in run.records if r["event"] == "order" and r["what"] == "stop" and r["ok"]]
        worked = any(one["node"] == f"member-{run.member}-{run.container}" for one in outcome.rounds)
        if not ended or not asked or not worked:
            continue
        late = [one for one in outcome.rounds if one["mono"] > ended[0]["mono"] and one["round"] == 1]
        for one in late[:1]:
            yield f"member {run.member} was stopped, and rank {one['rank']} began {_when(one)} afterwards"
        for other in outcome.last:
            beside = not other.killed and other.began < asked[0]["mono"] and other.records
            if beside and other.records[-1]["mono"] > ended[0]["mono"] + SOON:
                yield f"member {run.member} was stopped, and member {other.member} went on"


def _noticed(outcome: GroupOutcome) -> Iterator[str]:
    """What the platform reports of a rank at work for long enough is on record in its container, unless the helper that
    reads it was struck."""
    for one in outcome.struck:
        if one["kind"] not in PLATFORM or one["lasting"] < ENOUGH:
            continue
        until = one["mono"] + one["lasting"]
        others = [o for o in outcome.struck if o is not one and o.get("member") is not None]
        if any(o["kind"] in RESET_FILE and abs(o["mono"] - one["mono"]) < one["lasting"] for o in others):
            continue  # one file shows one fault
        if _kinds(outcome, one["member"]) & {"helper killed", "helper stopped", "container stopped", "/dev/shm full"}:
            continue
        for run in outcome.runs:
            if (run.member, run.container) != (one["member"], one["container"]) or _is_spoiled(outcome, run):
                continue
            if run.killed or not run.began < one["mono"] or _ended(outcome, run) < until:
                continue
            known = [r for r in run.records if r["event"] in ("fault", "healing") and r.get("device") is not None]
            if not any(one["mono"] <= r["mono"] < until + LONG and "reports rank" in r["why"] for r in known):
                yield f"{one['kind']} at {one['mono']} is not on record"


def _replaced_for_platform(outcome: GroupOutcome) -> Iterator[str]:
    """A process for which the platform has asked for a new one begins no other round once that is on record.  One that
    was still about to begin its first round does that by itself, also while it is being killed.  One that had just
    replaced another and waited for its first round stays: the platform may have meant the one before.  Where a device
    was removed, the platform's number may be that of a rank that is not there."""
    for one in outcome.struck:
        if one["kind"] != NEW_PROCESS:
            continue
        node, until = f"member-{one['member']}-{one['container']}", one["mono"] + one["lasting"] + LONG
        place = one["member"], one["container"]
        records = [r for run in outcome.runs if (run.member, run.container) == place for r in run.records]
        known = [r["mono"] for r in records if r.get("retry") == "process" and one["mono"] <= r["mono"] < until]
        if not known or any(r["event"] == "removed" and r["mono"] < min(known) for r in records):
            continue
        ends = [r["mono"] for r in records if r["event"] == "rank_exited" and r["local_rank"] == one["rank"]]
        end = min((at for at in ends if min(known) <= at < min(known) + LONG), default=0.0)
        own = [o for o in outcome.rounds if (o["node"], o["pid"]) == (node, one["pid"])]
        spawned = [r["mono"] for r in records if r["event"] == "rank_spawned" and r["pid"] == one["pid"]]
        if own and any(at < min(known) < own[0]["mono"] for at in spawned):
            continue
        for number, begun in enumerate(own):
            if begun["mono"] > min(known) and (number > 0 or begun["mono"] > end):
                yield f"rank {begun['rank']} began {_when(begun)} in the process that the platform wants replaced"
                break
