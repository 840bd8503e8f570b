"""Reading a run dir, of a running ftrun or of one that is gone.  Bytes may be torn, missing or not ours."""

import json
import os
from collections.abc import Iterator
from typing import Any

LINE_LIMIT = 1 << 20


class NoRunDir(Exception):
    """One line: why there is nothing to read."""


def find(given: str | None) -> str:
    """The run dir to read: as given, else `FTRUN_RUN_DIR`, else the only one of this user under the temp folder."""
    path = given or os.environ.get("FTRUN_RUN_DIR")
    if path:
        if not os.path.isfile(f"{path}/events.jsonl"):
            raise NoRunDir(f"{path}: no run dir (there is no events.jsonl in it)")
        return path
    folder, mine = os.environ.get("TMPDIR") or "/tmp", f"ftrun-{os.getuid()}-"
    names = [n for n in os.listdir(folder) if n.startswith(mine) and os.path.isfile(f"{folder}/{n}/events.jsonl")]
    if len(names) != 1:
        found = f"{len(names)} run dirs of yours" if names else "no run dir of yours"
        raise NoRunDir(f"{found} in {folder}; name one with --run-dir")
    return f"{folder}/{names[0]}"


def events(path: str) -> Iterator[dict[str, Any]]:
    """The records, oldest first; a line that is torn or no record is passed over."""
    try:
        with open(f"{path}/events.jsonl", "rb") as stream:
            while line := stream.readline(LINE_LIMIT):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and isinstance(record.get("event"), str):
                    yield record
    except OSError as error:
        raise NoRunDir(f"{path}: {error.strerror}") from None


def status(path: str) -> dict[str, Any]:
    """What the records say of the run: how it stands, which attempt, how far, how often it was restarted and why."""
    found: dict[str, Any] = {"run_dir": path, "phase": "unknown", "attempt": 0, "restarts": {}, "verdict": None}
    phases = {
        "started": "launching",
        "spawned": "starting",
        "first_beat": "running",
        "suspect": "suspect",
        "cleared": "running",
        "stopping": "stopping",
        "healing": "healing",
        "restart": "launching",
        "ended": "done",
    }
    for record in events(path):
        event = record["event"]
        found["phase"] = phases.get(event, found["phase"])
        found["attempt"] = record.get("attempt", found["attempt"])
        found["since"] = record.get("time")
        if event == "started":
            found.update(command=record.get("command"), verdict=None, exit_code=None)
        elif event == "progress":
            found.update(step=record.get("step"), checkpoint=record.get("checkpoint"))
        elif event == "restart":
            reason = record.get("reason")
            found["restarts"][reason] = found["restarts"].get(reason, 0) + 1
            found["in_a_row"] = record.get("consecutive")
        elif event == "hang":
            found["last_hang"] = {k: record.get(k) for k in ("time", "rule", "rank", "step", "age", "limit", "section")}
        elif event == "ended":
            found.update(verdict=record.get("verdict"), exit_code=record.get("exit_code"), why=record.get("why"))
    return found
