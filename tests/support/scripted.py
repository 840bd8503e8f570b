"""The records of invented runs."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ftrun.records.files.steps import sample
from ftrun.records.past.attempts import AttemptHistory
from ftrun.records.past.history import History, KnownState, summed_up

Record = dict[str, Any]
BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


class Script:
    """`at`: seconds since the begin; `boot`: the CLOCK_MONOTONIC time of the begin."""

    def __init__(self, boot: float = 1000.0, began: float = BEGAN) -> None:
        self.boot, self.began = boot, began
        self.at, self.attempt = 0.0, 0
        self.records: list[Record] = []
        self.steps: list[Record] = []

    def after(self, seconds: float) -> Script:
        self.at += seconds
        return self

    def record(self, event: str, **fields: Any) -> Script:
        stamp = datetime.fromtimestamp(self.began + self.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        head = {"schema": 1, "time": stamp, "mono": self.boot + self.at, "event": event, "attempt": self.attempt}
        self.records.append(head | fields)
        return self

    def starts(self, reason: str = "first", startup: float = 2.0, step: int | None = 0, **fields: Any) -> Script:
        """A start or restart, and `startup` later the first heartbeat."""
        self.attempt += 1
        again = reason != "first" and self.records and self.records[-1]["event"] != "ended"
        event = "restart" if again else "started"
        self.record(event, reason=reason, start_cnt=self.attempt, **({"command": ["train"]} | fields)).record("spawned")
        return self if step is None else self.after(startup).record("first_beat", rank=0, step=step)

    def stepped(self, low: int, high: int) -> Script:
        self.steps.append({"mono": self.boot + self.at, "attempt": self.attempt, "low": low, "high": high, "ranks": 2})
        return self

    def saves(self, step: int) -> Script:
        return self.record("progress", by="checkpoint", step=step, checkpoint=f"/c/{step}")

    def hangs(self, step: int | None, age: float = 10.0, evidence: float = 1.0) -> Script:
        """Silent for `age` and while evidence is taken; the verdict; one second to end the tree."""
        finding = {"rule": "step", "rank": 3, "limit": age, "step": step, "section": None, "pid": 7}
        self.after(age).record("suspect", age=age, **finding)
        self.after(evidence).record("hang", age=age + evidence, why="x.py:1 f", **finding)
        return self.record("stopping", by="SIGTERM", grace=10.0).after(1).record("exited", signal=15)

    def ends(self, verdict: str = "succeeded", code: int = 0) -> Script:
        return self.record("ended", verdict=verdict, exit_code=code, why="because")

    def written(self, folder: Path) -> str:
        folder.mkdir(exist_ok=True)
        for name, lines in (("events", self.records), ("steps", self.steps)):
            if lines:
                (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(folder)


def long_run(starts: int, lasting: float, seed: int = 1) -> Script:
    """With hangs, failures, device faults, and some 8,000 samples."""
    chance, script, step, kept, reason = random.Random(seed), Script(), 0, 0, "first"
    for number in range(starts):
        script.starts(reason, chance.uniform(20, 90), kept)
        step = kept
        samples = max(1, 8000 // starts)
        pace = chance.uniform(0.5, 1.5) * lasting / starts / samples
        for count in range(samples):
            step += 7
            script.after(pace).stepped(max(kept, step - 3), step)
            if count % 40 == 39:
                script.saves(step)
                kept = step
        if number == starts - 1:
            break
        reason = chance.choice(("hang", "failure", "fault"))
        if reason == "hang":
            script.hangs(step, 600, 8)
        elif reason == "failure":
            script.record("exited", code=1, why="CUDA error: an illegal memory access").record("stopping", by="SIGTERM")
            script.after(chance.uniform(1, 60))
        else:
            script.record("fault", device="GPU-1", code="Xid94", severity="major").record("stopping", by="SIGKILL")
            script.after(3).record("healing", device="GPU-1", code="Xid94", severity="major").after(300)
    return script.ends()


def fold(
    run_dir: str,
    records: list[dict[str, Any]],
    steps: list[dict[str, Any]],
    now: float,
    known: KnownState = KnownState(),  # noqa: B008 - a value
) -> History:
    """The history of these lines, without a file."""
    stepped = [one for line in steps if (one := sample(line)) is not None]
    seen = {} if known.seen is None else {known.attempt: known.seen}
    found = AttemptHistory({one.attempt: one.at for one in stepped}, seen)
    for record in records:
        found.add(record)
    return summed_up(run_dir, found, stepped, now, known)
