"""What only the records contain: the last incident, the end, and the restarts."""

import os
from collections.abc import Iterable
from typing import Any, Final

from ftrun.core.machine.values import Finding
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes, hang_rules
from ftrun.core.text import recurrences
from ftrun.records.files import record_files, state
from ftrun.records.files.record_files import Record

INCIDENT_EVENTS: Final = ("hang", "fault", "exited", "escalated", "stopping", "spawned")
BY_TERMINAL: Final = (1, 2, 3)  # Ctrl-C and the like, which reach the command without ftrun
SEVERITIES: Final = ("user", "minor", "minor+user", "major", "critical")
_PHASES: Final = {
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


class Incident(NamedTuple):
    """`cause`: hang, fault or failure, or loss of a member; `why`: a sentence; `report`: the path of its report, if
    there is one; `again`: that it is not the first one of its kind at its place, as `third hang at train.py:68, step
    101`.  `member`, `node`: where it was, if on another member of the group."""

    time: str
    attempt: int
    cause: str
    why: str
    report: str | None = None
    again: str = ""
    member: int | None = None
    node: str = ""

    @property
    def title(self) -> str:
        """`hang in attempt 3, third hang at train.py:68, step 101`."""
        when = f"in attempt {self.attempt}" if self.attempt else "before this start"
        return f"{self.cause} {when}" + (f", {self.again}" if self.again else "")


def last(recent: list[Record], event: str) -> Record:
    """The newest record of this name; empty if there is none."""
    return next((record for record in reversed(recent) if record["event"] == event), {})


def ended(recent: list[Record]) -> Record | None:
    """The record `ended`, unless another ftrun has started after it."""
    found = next((record for record in reversed(recent) if record["event"] in ("ended", "started")), None)
    return found if found is not None and found["event"] == "ended" else None


def phase(recent: list[Record]) -> str:
    """The phase that the newest records imply."""
    return next((phase for record in reversed(recent) if (phase := _PHASES.get(record["event"]))), "launching")


def reason(recent: list[Record]) -> str:
    """The reason of the last start among these records; empty if there is none."""
    found = next((record for record in reversed(recent) if record["event"] in ("started", "restart")), {})
    return state.string(found.get("reason")) or ""


REASONS: Final = {  # why an attempt was stopped or started
    "hang": "a hang",
    "fault": "a device fault",
    "failure": "a failure",
    "manual": "an operator command",
    "peer": "another member stopped",
    "returned": "a device that is used again",
}


def is_cause(order: Record) -> bool:
    """Whether this is an order that says why all members are stopped, or start again: the cause may become known only
    with the start."""
    return order["event"] == "group" and order.get("what") in ("stop", "run") and order.get("cause") is not None


def elsewhere(order: Record) -> str:
    """What such an order says: `a failure on node-b`."""
    cause, node = state.string(order.get("cause")) or "", state.string(order.get("node"))
    if cause == "peer":
        return "the loss of a member"
    what = REASONS.get(cause)
    return "" if what is None else f"{what} on {node or 'another member'}"


def origin(recent: list[Record]) -> str:
    """What `elsewhere` says about the attempt that was started last, if it was started because of another member."""
    own = [n for n, record in enumerate(recent) if record["event"] in ("started", "restart")]
    if not own or recent[own[-1]].get("reason") != "peer":
        return ""
    before = recent[own[-2] if len(own) > 1 else 0 : own[-1]]
    orders = [one for one in before if is_cause(one)]
    return elsewhere(orders[-1]) if orders else ""


def restarts(recent: list[Record]) -> dict[str, int]:
    """The number of restarts among these records, by reason."""
    found: dict[str, int] = {}
    for record in recent:
        if record["event"] == "restart":
            reason = str(record.get("reason"))
            found[reason] = found.get(reason, 0) + 1
    return found


def last_incident(run_dir: str, recent: list[Record], further: bool) -> Incident | None:
    """The last incident; `further`: search also records of long ago, as there was an earlier attempt."""
    found = _incident(reversed(recent))
    if found is None and further:
        found = _incident(record_files.search_back(f"{run_dir}/events.jsonl", INCIDENT_EVENTS))
    if found is None:
        return None
    cause = {"exited": "failure", "escalated": str(found.get("cause"))}.get(found["event"]) or str(found["event"])
    number = state.integer(found.get("attempt")) or 0
    report = f"{run_dir}/reports/attempt-{number}/report.md"
    known = report if os.path.exists(report) else None
    own = (one for one in reversed(recent) if one["event"] == "hang" and one.get("attempt") == number)
    ended = next(own, found) if found["event"] == "escalated" and cause == "hang" else found
    return Incident(str(found.get("time") or ""), number, cause, why(found), known, recurrence(recent, ended))


def recurrence(recent: list[Record], found: Record) -> str:
    """`third hang at train.py:68, step 101`, where earlier ones of the same cause were at the same place in the code;
    empty where this is the first."""
    where = place(found)
    same = [one for one in recent if one["event"] == found["event"] and place(one) == where]
    return recurred(next((n for n, one in enumerate(same, 1) if one.get("mono") == found.get("mono")), 1), found)


def recurred(number: int, found: Record) -> str:
    """The sentence of `recurrence` about the hang or failure that is the `number`th one at its place."""
    what = "hang" if found["event"] == "hang" else "failure"
    return recurrences.sentence(number, what, place(found), state.integer(found.get("step")))


def place(found: Record) -> str:
    """Where in the code the program hung or failed, as `train.py:68`; empty where that is unknown."""
    if found["event"] not in ("hang", "exited"):
        return ""
    return recurrences.place(str(found.get("why") or ""))


def _incident(newest_first: Iterable[Record]) -> Record | None:
    """The last incident in these records.  A requested stop is no incident, but what led to it is."""
    failed: Record | None = None
    for record in newest_first:
        event = record["event"]
        if event == "stopping":
            failed = None
        elif failed is not None:
            if event == "spawned":
                break
        elif is_failure(record):
            failed = record
        elif event in ("hang", "escalated") or is_serious(record):
            return record
    return failed


def is_failure(record: Record) -> bool:
    """Whether the command ended badly by itself: not by Ctrl-C and the like."""
    if record["event"] != "exited":
        return False
    return bool(record.get("code") or record.get("signal", BY_TERMINAL[0]) not in BY_TERMINAL)


def is_serious(record: Record) -> bool:
    """Whether this is a device fault that is an incident: not one that is only recorded."""
    serious = record["event"] == "fault" and record.get("severity") in SEVERITIES
    return serious and record.get("preexisting") is not True


def why(found: Record) -> str:
    """What happened, as a sentence."""
    if found["event"] == "hang":
        return _hang(found)
    if found["event"] == "fault":
        return f"device {found.get('device')} reported {found.get('code')}: {found.get('why') or found.get('severity')}"
    ending = f"signal {found['signal']}" if found.get("signal") else f"exit code {found.get('code')}"
    return str(found.get("why") or f"the command ended with {ending}")


def _hang(found: Record) -> str:
    known: dict[str, Any] = {name: found[name] for name in Finding._fields if name in found}
    try:
        sentence, mechanism = hang_rules.sentence(Finding(**known)), found.get("mechanism")
        if mechanism:
            is_said = str(mechanism).removeprefix("deadlock: ") in sentence
            return sentence if is_said else f"{sentence}; {mechanism}"
        return sentence + (f", at {found['why']}" if found.get("why") else "")
    except (TypeError, ValueError, KeyError, OverflowError):
        return "a hang"


OF_A_GROUP: Final = ("group", "lost", "hang", "fault", "escalated")
CAUSES: Final = ("hang", "fault", "failure", "peer")


def incident_elsewhere(run_dir: str, own: int) -> Incident | None:
    """The last incident of the job, if its group has found that it began on another member than this member, whose
    number is `own`.  The loss of this member is known to its new ftrun from the others (`attempt` 0: before its first
    one)."""
    newest_first = iter(record_files.search_back(f"{run_dir}/events.jsonl", OF_A_GROUP))
    found = _newest_incident(newest_first, own)
    if found is None:
        return None
    found = _begun(found, newest_first, own)
    cause = str(found.get("cause") or found.get("verdict") or "loss").replace("peer", "loss")
    attempt, member = (state.integer(found.get(name)) for name in ("attempt", "member"))
    time, why, node = (state.string(found.get(name)) or "" for name in ("time", "why", "node"))
    why, again = recurrences.parted(why)
    return Incident(time, attempt or 0, cause, why, again=again, member=member, node=node)


def _begun(found: Record, older: Iterable[Record], own: int) -> Record:
    """The incident with the time and the attempt of the first record about it, which is no start of all members."""
    began = found
    for record in older:
        if record["event"] == "group" and record.get("what") == "run":
            break
        if record["event"] in ("group", "lost") and record.get("member") == found.get("member"):
            began = record
    unknown = began is found and found.get("what") == "run" and found.get("member") == own
    return found | {"time": began.get("time"), "attempt": 0 if unknown else began.get("attempt")}


def _newest_incident(newest_first: Iterable[Record], own: int) -> Record | None:
    """The record of an incident on another member, if none on this one is newer.  The failure here that it has led to
    is a consequence."""
    for record in newest_first:
        event, member = record["event"], state.integer(record.get("member"))
        if event == "lost":
            return record
        if event != "group" and (event != "fault" or is_serious(record)):
            return None
        ends_badly = bool(record.get("exit_code")) and record.get("verdict") != exit_codes.STOPPED
        if event == "group" and member is not None and (record.get("cause") in CAUSES or ends_badly):
            return record if member != own or record.get("cause") == "peer" else None
    return None
