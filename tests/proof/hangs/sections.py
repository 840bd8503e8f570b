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
    MONITORED,
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
Cells = tuple[str, ...]
PAGE, HEALTHY = "hang-matrix", "20-healthy"
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
    MONITORED: "The program is one process in a script of bash, beside a loop that runs `ps` once a second.",
}
# What a report says that differs from run to run.
CHANGING = (
    (re.compile(r"\b(process|pid|thread|rank \d+ \(pid) \d{2,}"), r"\1 N"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"/tmp/[^\s:,]*/"), "…/"),
)


def publish(runs: Sequence[Run]) -> list[Path]:
    """A table, or a row of one, of which nothing was measured stays as it is published."""
    hangs = [run for run in runs if run["what"] == "hang" and not run["wrong"].startswith(UNBEGUN)]
    healthy = [run for run in runs if run["what"] == "healthy" and not run["wrong"].startswith(UNENDED)]
    measured = {run["shape"] for run in hangs}
    made = [_hangs(number, shape, hangs) for number, shape in enumerate(SHAPES) if shape in measured]
    made += [_healthy(healthy)] if healthy else []
    return [save(PAGE, one) for one in made]


def _hangs(number: int, shape: str, runs: Sequence[Run]) -> Measured:
    own, name = [run for run in runs if run["shape"] == shape], f"1{number}-hangs"
    rows: dict[str, Cells] = {}
    for kind in HANGS:
        if of_kind := [run for run in own if run["kind"] == kind]:
            cells = [_cell([run for run in of_kind if run["moment"] == moment]) for moment in MOMENTS]
            rows[f"`{kind}`"] = (f"`{kind}`", *cells, _says(of_kind))
    found = [run for run in own if run["after"] is not None]
    late = [run for run in found if run["after"] > SOON]
    again = sum(not run["wrong"] for run in found)
    after = (
        f"In {len(own)} runs, {len(found)} hangs were found, {len(found) - len(late)} of them within {SOON:g} s. "
        f"{again} of these {len(found)} jobs were restarted once and then finished their training. {_load(own)}"
    )
    head = ("kind", *MOMENTS, "what the verdict says; if there was none, why the wait is open")
    whole, kept = _with_published(name, rows, [f"`{kind}`" for kind in HANGS])
    return Measured(name, f"Hangs: {shape}", COMMAND, (INTRODUCTION[shape],), head, whole, (after, *kept))


def _load(runs: Sequence[Run]) -> str:
    loads = sorted(run["load"] for run in runs)
    return f"The load of the machine was {loads[len(loads) // 2]:g} in the median and {loads[-1]:g} at most."


def _with_published(name: str, rows: dict[str, Cells], order: Sequence[str]) -> tuple[tuple[Cells, ...], list[str]]:
    """These rows and those that are published and have no new one, in that order; and a sentence if there are such."""
    path = RESULTS / PAGE / f"{name}.json"
    earlier: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}
    kept = {row[0]: tuple(row) for row in earlier["rows"] if row[0] in order and row[0] not in rows}
    found = rows | kept
    why = f"{len(kept)} rows were not measured in these runs: they are as published on {earlier.get('day')}, or before."
    return tuple(found[row] for row in order if row in found), [why] if kept else []


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


def _healthy(runs: Sequence[Run]) -> Measured:
    rows: dict[str, Cells] = {}
    for name in ROWS:
        if own := [run for run in runs if run["row"] == name]:
            wrong, suspected = sum(bool(run["wrong"]) for run in own), sum(len(run["suspected"]) for run in own)
            why = "<br>".join(dict.fromkeys(_reasons(own)))[:300]
            rows[name] = (name, str(len(own)), str(wrong), str(suspected) if suspected else "", why)
    seen = {moment: sum(run["moment"] == moment for run in runs) for moment in HEALTHY_MOMENTS}
    least, total, wrong = min(run["waited"] for run in runs), len(runs), sum(bool(run["wrong"]) for run in runs)
    before = (
        f"Each job stands still for at least {least:g} s and then trains on. A run is wrong if ftrun reports a "
        "hang, restarts the job, or ends with another exit code than 0. The job stands still after 120 steps, "
        f"which show what pauses are usual, in {seen['learned']} of these runs; before the first step in "
        f"{seen['before']}; after five steps in {seen['early']}; and in {seen['silent']} it never gives a heartbeat. A "
        "suspicion that evidence clears does no harm.",
    )
    after = f"In {total:,} runs, {wrong} healthy jobs were taken for a hang. {_load(runs)}"
    head = ("the job", "runs", "wrong", "suspicions, all cleared", "why they were cleared")
    whole, kept = _with_published(HEALTHY, rows, list(ROWS))
    return Measured(HEALTHY, "Healthy jobs that stand still", COMMAND, before, head, whole, (after, *kept))


def _reasons(runs: Sequence[Run]) -> list[str]:
    return [_unchanging(re.sub(r"\d+(\.\d+)?", "N", why)) for run in runs for why in run["cleared"]]
