"""The run in the folder of `--log-dir` that a killed ftrun left, for the next one in this pod to continue.

A container may be killed and started again in the same pod.  Without the run dir of before, the starts would be counted
from 1 again, with a new budget of restarts.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.core.machine.values import Ledger
from ftrun.core.named_tuple import NamedTuple
from ftrun.host import safe_files
from ftrun.messages import state

STARTED: Final = re.compile(r"\d{8}_\d{6}_restartable", re.ASCII)
NEWEST: Final = 64  # run dirs of which the state is read
State = tuple[Ledger, Mapping[str, object]]


class RunIdentity(NamedTuple):
    """Which run an ftrun is about to continue, or to begin.  `command`: without its secrets; `job`: the platform's name
    of the training job, empty if it has none."""

    command: Sequence[str]
    node: str
    member: str
    schedule_cnt: int
    job: str


def find(folder: str, mine: RunIdentity) -> str | None:
    """The newest run in `folder` with this command, node and member, if it was cut off in this schedule."""
    try:
        names = sorted(filter(STARTED.fullmatch, os.listdir(folder)), reverse=True)
    except OSError:
        return None
    for name in names[:NEWEST]:
        found = _load(f"{folder}/{name}/state.json")
        if found is not None and _is_same_run(found, mine):
            return f"{folder}/{name}" if was_cut_off(found, mine) else None
    return None


def was_cut_off(found: State | None, mine: RunIdentity) -> bool:
    """Whether that run is `mine`, of this schedule, and has not ended.  Its ftrun may still be alive."""
    if found is None or not _is_same_run(found, mine) or found[1].get("ended") is not False:
        return False
    ledger = found[0]
    return ledger.schedule_cnt == mine.schedule_cnt and mine.job in ("", ledger.job)


def _is_same_run(found: State, mine: RunIdentity) -> bool:
    run = found[1].get("run")
    if not isinstance(run, dict) or run.get("part"):  # a phase is continued by phases.json
        return False
    return (run.get("command"), run.get("node"), run.get("member")) == ([*mine.command], mine.node, mine.member)


def _load(path: str) -> State | None:
    try:
        content = safe_files.read(path, state.LIMIT)
        return None if content is None else state.load_state(content)
    except (OSError, ValueError):  # also ForeignFile and Malformed
        return None
