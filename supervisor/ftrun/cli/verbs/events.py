"""`ftctl events`."""

import json
from collections.abc import Iterable, Iterator

import click

from ftrun.cli import printing
from ftrun.cli.common import AS_JSON, RUN_DIR
from ftrun.core.text import sentences
from ftrun.views import rundir
from ftrun.views.record_stream import RecordStream
from ftrun.views.record_tail import Record

_SHOWN = ("schema", "time", "mono", "event", "attempt")


@click.command(help="Print the records, oldest first.  With -f until the run has ended or ftrun is gone.")
@RUN_DIR
@AS_JSON
@click.option("-n", "last", type=click.IntRange(min=0), metavar="N", help="Only the last N, and those that follow.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new records.")
def command(run_dir: str | None, as_json: bool, last: int | None, follow: bool) -> None:
    shown = _json if as_json else _text
    stream = RecordStream(rundir.find(run_dir))
    ended = False
    before: Iterable[Record] = stream.more() if last is None else stream.newest(last)

    def so_far() -> Iterator[str]:
        nonlocal ended
        for record in before:
            ended = {"ended": True, "started": False}.get(record["event"], ended)
            yield shown(record)

    printing.show(so_far())
    try:
        for record in stream.follow() if follow and not ended else ():
            printing.show([shown(record)])
    except KeyboardInterrupt:
        pass  # the usual way to end -f


def _json(record: Record) -> str:
    return json.dumps(record)


def _text(record: Record) -> str:
    fields = ((name, value) for name, value in record.items() if name not in _SHOWN)
    text = sentences.record(f"{record['event']:<10}", fields)
    return sentences.printable(f"{record.get('time')} {record.get('attempt')!s:>3} {text}")
