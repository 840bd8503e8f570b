"""`state.json`: the ledger, the current state of the job (`now`), and what pid1/state_file.py adds."""

import json
from typing import Any, Final

from ftrun.core.accounting.totals import TRACE, Account, LostTime, Trace
from ftrun.core.machine.states import Finish, Job, KeepRunning, Restart, Stopping, Suspect
from ftrun.core.machine.values import Attempt, Ledger, LookState
from ftrun.core.ranks.table import Rounds
from ftrun.messages.codec import Codec, Malformed, parse_json

SCHEMA: Final = 1
STEPS: Final = 1 << 63  # one more than the largest step, and the largest count


def dump_state(ledger: Ledger, extra: dict[str, object]) -> bytes:
    state = {"schema": SCHEMA, **_CODEC.plain(ledger), **extra}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in state.items())  # for human readers
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def load_state(content: bytes) -> tuple[Ledger, dict[str, Any]]:
    """The ledger and the other fields; Malformed if any part of the ledger is not as ftrun writes it."""
    found = parse_json(content)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise Malformed("not a state of this version")
    ledger = {name: found.pop(name) for name in Ledger._fields if name in found}
    return _CODEC.value(Ledger, ledger), found


def dump_job(job: Job) -> dict[str, Any]:
    """The JSON representation of `now`.  Times are CLOCK_MONOTONIC seconds.  The ranks are in the beat folder."""
    phase = job.phase
    attempt: Attempt | None = getattr(phase, "attempt", None)
    return {
        "phase": type(phase).__name__.lower(),
        "stage": phase.stage if isinstance(phase, Stopping) else None,
        "deadline": phase.deadline,
        "want": _want(job.want),
        "held": job.held,
        "paused": job.paused and {"since": job.paused.since, "until": job.paused.until, "by": job.paused.by},
        "finding": phase.finding._asdict() if isinstance(phase, Suspect) else None,
        "group": None if job.order is None else {"what": job.order.what, "why": job.order.why},
        "attempt": None if attempt is None else _attempt(attempt),
    }


def _want(want: KeepRunning | Restart | Finish) -> dict[str, Any]:
    if isinstance(want, Restart):
        return {"want": "again", "reason": want.reason, "consecutive": want.consecutive}
    if isinstance(want, Finish):
        return {"want": "finish", "code": want.code, "verdict": want.verdict, "why": want.message}
    return {"want": "keep"}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    """The facts that the beat folder does not have."""
    return {
        "number": attempt.number,
        "pid": attempt.pid,
        "spawned_at": attempt.spawned_at,
        "moved": attempt.moved,
        "stopped_at": attempt.stopped_at,
        "aways": attempt.aways,
        "first_beat": attempt.first_beat,
        "idle_since": attempt.idle.idle_since,
        "idle_raised": attempt.idle.raised,
        "active_at": attempt.idle.active_at,
        "accelerator": attempt.idle.accelerator,
        "processes": [tuple(one)[:-1] for one in attempt.processes],
        "exceptions": [one.exception for one in attempt.processes],
        "wait": attempt.look.wait,
        "stalled": attempt.stalled,
        "spin": _spin(attempt.look),
        "rounds": _rounds(attempt.rounds) if attempt.rounds.is_open else None,
    }


def _spin(look: LookState) -> tuple[object, ...] | None:
    """The rank that looks have found to compute, with nothing to be seen outside."""
    if look.still is None or look.spin is None:
        return None
    return look.spin.rank, look.still.since, look.spin.since, look.spin.why, look.spin.on_device


def _rounds(rounds: Rounds) -> dict[str, Any]:
    """The round at work, or (`stage` settling or meeting) the one that has ended, and the ranks that are waited for."""
    late = [member.rank for member in rounds.members if member.state in ("leaving", "ending", "starting")]
    return {
        "number": rounds.number,
        "stage": rounds.stage,
        "rung": rounds.rung,
        "replacing": [member.rank for member in rounds.members if member.local_rank in rounds.replacing],
        "awaited": late if rounds.is_under_way else [],
        "why": rounds.why,
        "since": rounds.since,
        "began": rounds.began,
    }


# --- what a part of the file has to be --------------------------------------------------------------------------------


def _account(found: object) -> Account:
    account = _CODEC.value(Account, found)
    if account.into not in ("", *LostTime._fields):
        raise Malformed(f"`into`: {account.into!r} is not a reason")
    return account


def _trace(found: object) -> Trace:
    if not isinstance(found, list) or not all(isinstance(point, list) and len(point) == 2 for point in found):
        raise Malformed("not a trace")
    trace = tuple((_amount(worked), _count(step)) for worked, step in found)
    steps = [step for _, step in trace]
    if len(trace) > TRACE or steps != sorted(set(steps)):
        raise Malformed("not a trace")
    return trace


def _count(found: object) -> int:
    if type(found) is not int or not 0 <= found < STEPS:
        raise Malformed("not a count")
    return found


def _amount(found: object) -> float:
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= 1e12:
        raise Malformed("not a number of seconds")
    return float(found)


_CODEC: Final = Codec(checks={int: _count, float: _amount, Trace: _trace, Account: _account}, complete=True)
