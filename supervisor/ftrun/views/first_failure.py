"""The last incident of a job, on the member where its group has found that it began: from the records of any member."""

from collections.abc import Iterable
from typing import Final

from ftrun.core.rules import exit_codes
from ftrun.core.text import recurrences
from ftrun.views import recent_events, record_files, state
from ftrun.views.record_files import Record
from ftrun.views.snapshot import Incident

EVENTS: Final = ("group", "lost", "hang", "fault", "escalated")
CAUSES: Final = ("hang", "fault", "failure", "peer")


def elsewhere(run_dir: str, own: int) -> Incident | None:
    """None if the last one was on this member, whose number is `own`, or is unknown."""
    found = _newest(record_files.search_back(f"{run_dir}/events.jsonl", EVENTS), own)
    if found is None:
        return None
    cause = str(found.get("cause") or found.get("verdict") or "loss").replace("peer", "loss")
    attempt, member = (state.integer(found.get(name)) for name in ("attempt", "member"))
    time, why, node = (state.string(found.get(name)) or "" for name in ("time", "why", "node"))
    why, again = recurrences.parted(why)
    return Incident(time, attempt or 0, cause, why, again=again, member=member, node=node)


def _newest(newest_first: Iterable[Record], own: int) -> Record | None:
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
            return record if member != own else None
    return None


def _is_bad_end(record: Record) -> bool:
    return bool(record.get("exit_code")) and record.get("verdict") != exit_codes.STOPPED
