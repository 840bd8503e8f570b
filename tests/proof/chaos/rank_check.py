"""What must hold after a job of ranks: `check(outcome)` gives what does not, a sentence each."""

import re
from collections.abc import Iterator
from itertools import pairwise

from proof.chaos.rank_numbers import final_values
from proof.chaos.rank_plan import SHM_FULL, RankOutcome, Record

OWN = re.compile(r"/supervisor/ftrun/(?!workload/ranks)")  # a file of ftrun in a traceback
STARTS = ("started", "restart")
LADDER = ("retry", "rank", "tree")
HARMLESS = ("helper killed", "standby killed", SHM_FULL)


def check(outcome: RankOutcome) -> list[str]:
    if outcome.code is None:
        return ["it did not end in time"]
    found = [*_weights(outcome), *_rounds(outcome), *_processes(outcome)]
    found += [*_end(outcome), *_rungs(outcome), *_unexplained(outcome)]
    return found + [f"left behind: {one}" for one in outcome.left]


def failing(outcome: RankOutcome) -> list[Record]:
    """The faults that concern the ranks."""
    return [one for one in outcome.struck if one["kind"] not in HARMLESS]


def _end(outcome: RankOutcome) -> Iterator[str]:
    """One end, with its code, and a budget that explains it."""
    ended = [record for record in outcome.records if record["event"] == "ended"]
    if len(ended) != 1 or ended[0]["exit_code"] != outcome.code:
        yield f"it ended with {outcome.code}, the records say {[one.get('exit_code') for one in ended]}"
    if outcome.verdict is None or outcome.verdict["exit_code"] != outcome.code:
        yield f"it ended with {outcome.code}, the termination message says {outcome.verdict}"
    if OWN.search(outcome.stderr) or any("traceback" in record for record in outcome.records):
        yield "ftrun itself failed"
    options, faults = dict(outcome.job.options), len(failing(outcome))
    if outcome.code and "failure" in options["restart-on"] and faults <= outcome.job.max_restarts:
        yield f"it ended with {outcome.code}, although {faults} faults do not use up {options['max-restarts']} restarts"
    if outcome.code and not faults:
        yield f"it ended with {outcome.code}, and nothing had been done to it"


def _weights(outcome: RankOutcome) -> Iterator[str]:
    """The values of an uninterrupted run, in each step and at the end."""
    job = outcome.job
    expected = final_values(job.ranks, job.steps, job.same)
    if outcome.code == 0 and list(outcome.final) != expected:
        yield f"the values are {outcome.final}, expected were {expected}"
    for one in outcome.steps:
        right = final_values(job.ranks, one["step"], job.same)[one["rank"]]
        if one["value"] != right:
            yield f"rank {one['rank']} had {one['value']} after step {one['step']} of round {one['round']}, not {right}"
            return


def _attempt(outcome: RankOutcome, at: float) -> int:
    """The attempt under way at this time.  A standby may be at work before the record `spawned` is written."""
    return sum(record["event"] in STARTS and record["mono"] <= at for record in outcome.records)


def _rounds(outcome: RankOutcome) -> Iterator[str]:
    """No step of a round is done after a step of a later one."""
    last = (0, 0)
    for one in sorted(outcome.steps, key=lambda one: one["mono"]):
        this = _attempt(outcome, one["mono"]), one["round"]
        if this < last:
            yield f"rank {one['rank']} did step {one['step']} of round {this} after a step of round {last}"
        last = max(this, last)


def _processes(outcome: RankOutcome) -> Iterator[str]:
    """Who is not on record as replaced has kept its process."""
    pids: dict[tuple[int, int], dict[int, int]] = {}
    for one in outcome.rounds:
        pids.setdefault((_attempt(outcome, one["mono"]), one["round"]), {})[one["rank"]] = one["pid"]
    written: dict[tuple[int, int], set[int]] = {}
    for record in (one for one in outcome.records if one["event"] == "recovering"):
        written.setdefault((record["attempt"], record["round"]), set()).update(record["ranks"])
    attempts = [record["attempt"] for record in outcome.records if record["event"] in STARTS]
    for (attempt, before), (same, after) in pairwise(sorted(pids)):
        if attempt != same:
            continue
        old, new = pids[attempt, before], pids[attempt, after]
        replaced = {rank for rank in old.keys() & new.keys() if old[rank] != new[rank]}
        permitted: set[int] = set()
        for number in range(before + 1, after + 1):
            permitted |= written.get((attempts[attempt - 1], number), set())
        if not replaced <= permitted:
            yield f"ranks {replaced} have new processes in round {after} of start {attempt}, on record are {permitted}"


def _rungs(outcome: RankOutcome) -> Iterator[str]:
    """From the finest rung down, only those that are permitted, and a success is of the rung that was begun last."""
    permitted = dict(outcome.job.options)["recover"].split(",")
    under_way: Record | None = None
    proved = 1  # the round that was proved last
    for record in outcome.records:
        match record["event"]:
            case "started" | "restart":
                under_way, proved = None, 1
            case "recovering":
                before = "retry" if under_way is None else under_way["rung"]
                # What the members of a group decide together may come after what one of them has found for this round.
                overtaken = outcome.job.members > 1 and under_way is not None and under_way["round"] == record["round"]
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


def _unexplained(outcome: RankOutcome) -> Iterator[str]:
    """No recovery without a fault before it."""
    first = min((one["mono"] for one in failing(outcome)), default=float("inf"))
    for record in outcome.records:
        if record["event"] in ("recovering", "hang", "restart") and record["mono"] < first:
            yield f"{record['event']} ({record.get('why')}), and nothing had been done to it"
