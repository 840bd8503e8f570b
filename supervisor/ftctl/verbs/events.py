"""`ftctl events`."""

import json
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

import click

from ftctl.common import AS_JSON, RUN_DIR, show
from ftrun.config.parsers import duration, near
from ftrun.config.whole_number import WholeNumber
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import sentences
from ftrun.records.files import liveness, record_files, rundir, state
from ftrun.records.files.record_files import Record

ENDS: Final = {"ended": True, "started": False}  # whether the run has ended after this record


class Filter(NamedTuple):
    """`events`: names, empty: all.  `since`: the earliest time.  `attempt`: only of this attempt."""

    events: Collection[str] = ()
    since: datetime | None = None
    attempt: int | None = None

    @property
    def marks(self) -> list[bytes]:
        """What the lines of these records have, one or another; and of those that tell whether the run has ended."""
        return [f'"{event}"'.encode() for event in (*self.events, *ENDS)] if self.events else []

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


EVENTS: Final = (  # a test compares them with the page of the records
    *("started", "spawned", "rank_exited", "link_fault", "link_recovered", "rank_leftovers", "rank_killed"),
    *("rank_spawned", "recovering", "recovered", "unexpected", "first_beat", "progress", "learned"),
    *("look", "suspect", "cleared", "hang", "fault", "healing", "removed"),
    *("platform", "regaining", "returned", "stopping", "exited", "killed", "restart"),
    *("escalated", "paused", "resumed", "frozen", "standby", "order", "group"),
    *("lost", "waiting", "problem", "stalled", "straggler", "listening", "ended"),
)
PAUSE: Final = 0.2  # s between two reads of a growing file
ALL: Final = Filter()


def _names(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name for text in given for name in text.split(",") if name)
    for name in names:
        if name not in EVENTS:
            raise click.BadParameter(f"no record is named {name!r}{near(name, EVENTS)}")
    return names


def _since(ctx: click.Context, param: click.Parameter, given: str | None) -> datetime | None:
    try:
        return None if given is None else moment(given, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(help="Print the records, oldest first.  With -f until the run has ended or ftrun is gone.")
@RUN_DIR
@AS_JSON
@click.option("-n", "--last", type=WholeNumber(0), metavar="N", help="Only the last N, and those that follow.")
@click.option("--event", "names", multiple=True, metavar="NAME", callback=_names, help="Only these.  Repeatable; a,b.")
@click.option(
    "--since", metavar="WHEN", callback=_since, help="Only since this time, as 2026-11-23T03:00 (UTC), or 10m ago."
)
@click.option("--attempt", type=WholeNumber(1), metavar="N", help="Only those of this attempt.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new records.")
def command(
    run_dir: str | None,
    as_json: bool,
    last: int | None,
    names: tuple[str, ...],
    since: datetime | None,
    attempt: int | None,
    follow: bool,
) -> None:
    shown = json.dumps if as_json else text
    stream = RecordStream(rundir.find(run_dir), Filter(names, since, attempt))
    show(map(shown, stream.more() if last is None else stream.newest(last)))
    try:
        for record in stream.follow() if follow else ():
            show([shown(record)])
    except KeyboardInterrupt:
        pass  # the usual way to end -f


class RecordStream:
    """The records of this run dir, also while they are written.  NoRunDir if there are none.

    A line that is torn, too long or no record is skipped; an incomplete one at the end is read once it is complete.
    """

    def __init__(self, run_dir: str, wanted: Filter = ALL) -> None:
        rundir.check(run_dir)
        self._run_dir, self._file = run_dir, record_files.GrowingFile(f"{run_dir}/events.jsonl")
        self._ended, self._wanted = False, wanted

    def newest(self, count: int) -> Iterator[Record]:
        """The last `count` records; `more` continues after them."""
        self._file.seek_end()
        marks = self._wanted.marks or [b""]
        lines = record_files.backwards(self._file.path, self._file.at, marks, end=self._file.at)
        chosen = (line for line in lines if any(mark in line for mark in marks))
        found = (one for line in chosen if (one := record_files.record(line)) is not None and self._wanted.wants(one))
        return map(self._noted, list(islice(found, count))[::-1])

    def more(self) -> Iterator[Record]:
        """The records that were added since the last call, oldest first."""
        try:
            for found in filter(record_files.is_record, self._file.parsed(self._wanted.marks)):
                self._noted(found)
                if self._wanted.wants(found):
                    yield found
        except OSError as error:
            raise rundir.NoRunDir(f"{self._file.path}: {error.strerror}") from None

    def follow(self) -> Iterator[Record]:
        """New records as they come, until the run has ended or ftrun is gone."""
        alive = True
        while alive and not self._ended:
            alive = liveness.is_running(self._run_dir, state.load(self._run_dir).rest.run)
            yield from self.more()
            if alive and not self._ended:
                time.sleep(PAUSE)

    def _noted(self, record: Record) -> Record:
        self._ended = ENDS.get(record["event"], self._ended)
        return record


def text(record: Record) -> str:
    event = f"{record.get('time')} {str(record.get('attempt')).rjust(3)} {record['event'].ljust(10)}"
    return sentences.printable(sentences.record(event, record_files.own_fields(record)))
