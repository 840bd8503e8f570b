"""`progress` records that are read without their JSON give the same as the JSON."""

import json
from collections.abc import Iterator

import pytest

from ftctl.verbs.events import _text
from ftrun.messages import records
from ftrun.records import history, quick_progress, record_files


def line(mono: float, event: str = "progress", attempt: int = 1, **fields: object) -> bytes:
    stamp = f"2026-01-02T03:{int(mono) // 60 % 60:02d}:{mono % 60:06.3f}Z"
    return records.line(stamp, mono, event, attempt, fields.items()).rstrip(b"\n")


LINES = [
    line(100.0, "started", reason="first", start_cnt=1, command=["train"]),
    line(101.5, "first_beat", rank=0, step=0),
    line(102.25, by="step", step=0, checkpoint=None),
    line(103.125, by="checkpoint", step=5, checkpoint="/ckpt/5"),
    line(104.0, by="checkpoint", step=None, checkpoint="/ckpt/x", seen=103.987654321),
    line(105.0, by="checkpoint", step=9, checkpoint='/a b/"quoted"/\u00fc\x1b[2J'),
    line(106.0, by="save", step=12, checkpoint="/with space/12"),
    line(106.5, by="checkpoint", step=12, checkpoint=""),
    line(107.0, by="step", step=13, checkpoint=None, unknown=7),
    line(108.0, "hang", rule="step", rank=0, age=0.5, limit=0.5, step=13, why="x.py:3 f"),
    line(109.0, "restart", attempt=2, reason="hang", start_cnt=2, consecutive=1),
    line(110.0, attempt=2, by="checkpoint", step=14, checkpoint="/ckpt/14"),
    b'{"schema": 1, "event": "progress", "by": "step"',
    line(111.0, "ended", attempt=2, verdict="succeeded", exit_code=0, why="the command exited with 0"),
    line(3.0, attempt=3, by="checkpoint", step=15, checkpoint="/ckpt/15"),
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_shown_as_the_json_parser_shows_it_or_left_to_it(line: bytes) -> None:
    found = record_files.record(line)
    assert quick_progress.text(line) in (None, found and _text(found))
    assert quick_progress.json(line) in (None, found and json.dumps(found))


def test_plain_records_are_understood() -> None:
    understood = [number for number, line in enumerate(LINES) if quick_progress.text(line) is not None]
    assert understood == [2, 3, 4, 11, 14]


def test_history_is_the_same() -> None:
    def quick() -> Iterator[record_files.Record | quick_progress.Progress]:
        return history.parsed_records(LINES)

    def slow() -> Iterator[record_files.Record]:
        return (found for line in LINES if (found := record_files.parsed(line)) is not None)

    one, other = history.fold("/run", quick(), (), 2e9), history.fold("/run", slow(), (), 2e9)
    assert one == other
    assert one.saved == 4
    assert [attempt.saved is not None for attempt in one.attempts] == [True, True]
