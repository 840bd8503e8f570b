"""The tables of docs/measured/hang-matrix, from the runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proof.hangs.hanging import (
    BESIDE,
    BESIDE_ALL,
    HANGS,
    MOMENTS,
    ONLY,
    RANKS,
    SHAPES,
    SINGLE,
    SOON,
    STARTED,
    UNBEGUN,
    WORKER,
)
from proof.hangs.healthy import ROWS
from proof.hangs.meeting import UNENDED
from proof.hangs.rows import MOMENTS as HEALTHY_MOMENTS
from support.measured import RESULTS, Measured, save

Run = dict[str, Any]
PAGE, HEALTHY = "hang-matrix", "20-healthy"
MARK = " °"  # of a cell that an earlier run has measured
COMMAND = "bin/prove hangs --publish"
INTRODUCTION = {
    SINGLE: "The program is one process; `collective` and `mismatch` bring a second rank, `dataloader` a worker.",
    BESIDE: "The program has two healthy DataLoader workers, which wait for the main process.",
    WORKER: "The hang happens in one of two DataLoader workers, and the main process waits for its batch.",
    RANKS: "`torchrun` has started two ranks, which average their gradients (gloo). The hang happens in rank 1, and "
    "rank 0 waits for it in a collective.",
    STARTED: "The same two ranks, started by `ftrun --nproc-per-node 2`.",
    BESIDE_ALL: "The program is one process beside what most jobs have: native threads with timers, in a library that "
    "is mapped as `libcuda.so.1`; the server of prometheus_client; a thread of a package `wandb`; a SIGTERM handler.",
}
# What a report says that differs from run to run.
CHANGING = (
    (re.compile(r"\b(process|pid|thread|rank \d+ \(pid) \d{2,}"), r"\1 N"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"/tmp/[^\s:,]*/"), "…/"),
)
LEAST = re.compile(r"stands still for at least ([\d.]+) s")
MOMENT_COUNTS = re.compile(
    r"30 s, in (?P<learned>\d+) runs; before the first step in (?P<before>\d+); after five steps in (?P<early>\d+); "
    r"and in (?P<silent>\d+) "
)


def publish(runs: Sequence[Run], add: bool = False) -> list[Path]:
    """A table of which nothing was measured stays as it is; so does a cell, with a mark.  `add`: healthy runs are
    counted beside those that are published, which are not among `runs`."""
    hangs = [run for run in runs if run["what"] == "hang" and not run["wrong"].startswith(UNBEGUN)]
    healthy = [run for run in runs if run["what"] == "healthy" and not run["wrong"].startswith(UNENDED)]
    measured = {run["shape"] for run in hangs}
    made = [_hangs(number, shape, hangs) for number, shape in enumerate(SHAPES) if shape in measured]
    made += [_healthy(healthy, _published(HEALTHY) if add else {})] if healthy else []
    return [save(PAGE, one) for one in made]


def _hangs(number: int, shape: str, runs: Sequence[Run]) -> Measured:
    own = [run for run in runs if run["shape"] == shape]
    rows, name, kept = [], f"1{number}-hangs", 0
    earlier = _published(name)
    before: dict[str, Sequence[str]] = {row[0]: row[1:] for row in earlier.get("rows", ())}
    for kind in HANGS:
        if shape in ONLY.get(kind, SHAPES):
            of_kind = [run for run in own if run["kind"] == kind]
            cells = [_cell([run for run in of_kind if run["moment"] == moment]) for moment in MOMENTS]
            old = before.get(f"`{kind}`", ("",) * (len(MOMENTS) + 1))
            for place, cell in enumerate(cells):
                if not cell and old[place] and "within 0 s" not in old[place]:  # that one had not begun
                    cells[place], kept = old[place].removesuffix(MARK) + MARK, kept + 1
            rows.append((f"`{kind}`", *cells, _says(of_kind) or old[-1]))
    found = [run for run in own if run["after"] is not None]
    late = [run for run in found if run["after"] > SOON]
    again = sum(not run["wrong"] for run in found)
    after = [
        f"In {len(own)} runs, {len(found)} hangs were found, {len(found) - len(late)} of them within {SOON:g} s. "
        f"{again} of these {len(found)} jobs were restarted once and then finished their training."
    ]
    if loads := sorted(run["load"] for run in own):
        after[0] += (
            f" The load of the machine was {loads[len(loads) // 2]:g} in the median and {loads[-1]:g} at most, on two "
            "cores: it delays looks and stacks."
        )
    if kept:
        when = f"{earlier['day']}, commit {earlier['commit']}"
        after.append(
            f"A cell with {MARK.strip()} was not measured in these runs: it is as published on {when}, or before."
        )
    head = ("kind", *MOMENTS, "what the verdict says; if there was none, why the wait is open")
    return Measured(name, f"Hangs: {shape}", COMMAND, (INTRODUCTION[shape],), head, tuple(rows), tuple(after))


def _published(name: str) -> dict[str, Any]:
    """That table as it is now, empty if there is none."""
    path = RESULTS / PAGE / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _cell(runs: Sequence[Run]) -> str:
    """The rule and the longest time; how many were not found, and for how long they were watched."""
    if not runs:
        return ""
    found, missed = [r for r in runs if r["after"] is not None], [r for r in runs if r["after"] is None]
    parts = []
    if found:
        rules = ", ".join(sorted({f"`{run['rule']}`" for run in found}))
        parts.append(f"{rules} {max(run['after'] for run in found):.0f} s")
    if missed:
        count = f"{len(missed)} of {len(runs)} " if found else ""
        parts.append(f"{count}not within {min(run['watched'] for run in missed):.0f} s")
    return "; ".join(parts)


def _says(runs: Sequence[Run]) -> str:
    found = [run["why"] for run in runs if run["after"] is not None and run["why"]]
    texts = found or [why for run in runs for why in run["open"]]
    return "<br>".join(dict.fromkeys(_unchanging(text) for text in texts))[:600]


def _unchanging(text: str) -> str:
    for pattern, instead in CHANGING:
        text = pattern.sub(instead, text)
    return text.replace("<", "\\<")


def _healthy(runs: Sequence[Run], earlier: dict[str, Any]) -> Measured:
    """`earlier`: the table to whose numbers these runs are added, or empty."""
    rows, group = [], ""
    before = {row[0]: row[1:] for row in earlier.get("rows", ()) if row[1]}
    for row in ROWS.values():
        own = [run for run in runs if run["row"] == row.name]
        *numbers, reasons = before.get(row.name, ("0", "0", "0", ""))
        counted, erred, doubted = (int(number or 0) for number in numbers)
        if not own and not counted:
            continue
        if row.group != group:
            group = row.group
            rows.append((f"**{group}**", "", "", "", ""))
        wrong = erred + sum(bool(run["wrong"]) for run in own)
        suspected = doubted + sum(len(run["suspected"]) for run in own)
        why = "<br>".join(dict.fromkeys([*filter(None, reasons.split("<br>")), *_reasons(own)]))[:300]
        rows.append((row.name, str(counted + len(own)), str(wrong), str(suspected) if suspected else "", why))
    waits = [run["waited"] for run in runs]
    found = LEAST.search("".join(earlier.get("before", ())))
    least = min([*waits, *([float(found[1])] if found else [])])
    long = f" {waits.count(max(waits))} of these runs stood still for {max(waits):g} s." if max(waits) > 600 else ""
    total, wrong = (sum(int(row[column]) for row in rows if row[1]) for column in (1, 2))
    loads = sorted(run["load"] for run in runs)
    seen = {moment: sum(run["moment"] == moment for run in runs) for moment in HEALTHY_MOMENTS}
    for moment, number in zip(HEALTHY_MOMENTS, _moments(earlier), strict=True):
        seen[moment] += number
    text = (
        f"Each job stands still for at least {least:g} s and then trains on. A run is wrong if ftrun reports a "
        "hang, restarts the job, or ends with another exit code than 0. The job stands still after 120 steps, from "
        f"which ftrun has learned its limit of 30 s, in {seen['learned']} runs; before the first step in "
        f"{seen['before']}; after five steps in {seen['early']}; and in {seen['silent']} it never gives a heartbeat. A "
        "suspicion that evidence clears does no harm.",
    )
    when = f"In {len(runs):,} of them, the others being of {earlier['day']} or before," if before else "In them,"
    after = (
        f"In {total:,} runs, {wrong} healthy jobs were taken for a hang. {when} the load of the machine was "
        f"{loads[len(loads) // 2]:g} in the median and {loads[-1]:g} at most, on two cores.{long}",
    )
    head = ("the job", "runs", "wrong", "suspicions, all cleared", "why they were cleared")
    return Measured(HEALTHY, "Healthy jobs that stand still", COMMAND, text, head, tuple(rows), after)


def _moments(table: dict[str, Any]) -> list[int]:
    """How many runs stood still at each moment, as that table says."""
    found = MOMENT_COUNTS.search(table["before"][0]) if table else None
    return [int(found[moment]) if found else 0 for moment in HEALTHY_MOMENTS]


def _reasons(runs: Sequence[Run]) -> list[str]:
    return [_unchanging(re.sub(r"\d+(\.\d+)?", "N", why)) for run in runs for why in run["cleared"]]
