"""Which records a reader asked for.  Pure."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from ftrun.config.parsers import duration
from ftrun.core.named_tuple import NamedTuple
from ftrun.records.record_files import Record


class Filter(NamedTuple):
    """`events`: names, empty: all.  `since`: the earliest time.  `attempt`: only of this attempt."""

    events: Collection[str] = ()
    since: datetime | None = None
    attempt: int | None = None

    def wants(self, record: Record) -> bool:
        """A record without a readable time is left out where a time was asked for."""
        if self.events and record.get("event") not in self.events:
            return False
        if self.attempt is not None and record.get("attempt") != self.attempt:
            return False
        return self.since is None or ((at := _time(record.get("time"))) is not None and at >= self.since)


def moment(text: str, now: datetime) -> datetime:
    """`10m` (ago), or a time in ISO-8601, which is UTC unless it says otherwise.  ValueError for anything else."""
    try:
        return now - timedelta(seconds=duration(text))
    except (ValueError, OverflowError):
        found = _time(text)
    if found is None:
        raise ValueError(f"{text!r} is neither a duration such as 10m nor a time such as 2026-11-23T03:00")
    return found


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
