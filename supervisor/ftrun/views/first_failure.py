"""The last incident of a job, on the member where its group has found that it began: from the records of any member."""

from collections.abc import Iterator
from typing import Final

from ftrun.core.rules import exit_codes
from ftrun.core.text import recurrences
from ftrun.views import recent_events, record_files, state
from ftrun.views.record_files import Record
from ftrun.views.snapshot import Incident

EVENTS: Final = ("group", "lost", "hang", "fault", "escalated")
CAUSES: Final = ("hang", "fault", "failure", "peer")


def elsewhere(run_dir: str, own: int) -> Incident | None:
    """None if the last one was on this member, whose number is `own`, or is unknown.  The loss of this member is known
    to its new ftrun from the others (`attempt` 0: before its first one)."""
    newest_first = iter(record_files.search_back(f"{run_dir}/events.jsonl", EVENTS))
    found = _newest(newest_first, own)
    if found is None:
        return None
    found = _begun(found, newest_first, own)
    cause = str(found.get("cause") or found.get("verdict") or "loss").replace("peer", "loss")
    attempt, member = (state.integer(found.get(name)) for name in ("attempt", "member"))
    time, why, node = (state.string(found.get(name)) or "" for name in ("time", "why", "node"))
    why, again = recurrences.parted(why)
    return Incident(time, attempt or 0, cause, why, again=again, member=member, node=node)


def _begun(found: Record, older: Iterator[Record], own: int) -> Record:
    """With the time and the attempt of the first record about the same incident, which is no start of all members."""
    began = found
    for record in older:
        if record["event"] == "group" and record.get("what") == "run":
            break
        if record["event"] in ("group", "lost") and record.get("member") == found.get("member"):
            began = record
    unknown = began is found and found.get("what") == "run" and found.get("member") == own
    return found | {"time": began.get("time"), "attempt": 0 if unknown else began.get("attempt")}


def _newest(newest_first: Iterator[Record], own: int) -> Record | None:
    """The record of an incident on another member, if none on this one is newer.  The failure here that it has led to
    is a consequence."""
    for record in newest_first:
        event, member = record["event"], state.integer(record.get("member"))
        if event == "lost":
            return record
        if event != "group":
            if event != "fault" or record.get("severity") in recent_events.SEVERITIES:
                return None
        elif member is not None and (record.get("cause") in CAUSES or _is_bad_end(record)):
            return record if member != own or record.get("cause") == "peer" else None
    return None


def _is_bad_end(record: Record) -> bool:
    return bool(record.get("exit_code")) and record.get("verdict") != exit_codes.STOPPED
