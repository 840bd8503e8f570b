"""Reading records from the end, and while they are written."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.views import record_tail
from ftrun.views.record_stream import RecordStream
from support.made_run import MadeRun


def line(number: int, event: str = "problem", size: int = 0) -> bytes:
    return json.dumps({"event": event, "number": number, "what": "x" * size}).encode() + b"\n"


def numbers(records: Iterator[record_tail.Record] | list[record_tail.Record]) -> list[object]:
    return [record["number"] for record in records]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@given(
    st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=40),
    st.booleans(),
    st.integers(1, 200),
    st.integers(1, 64),
)
def test_lines_from_the_end_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], torn: bool, limit: int, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("tail") / "file"
    content = b"".join(one + b"\n" for one in lines) + (b"torn" if torn else b"")
    path.write_bytes(content)
    start = max(0, len(content) - limit)
    wanted = content[start:].split(b"\n")[:-1][1 if start else 0 :]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record_tail, "LINE", chunk)
        found = record_tail.lines(str(path), limit)
    whole = [one for one in wanted if len(one) < chunk]
    assert [one for one in found if len(one) < chunk] == whole, "but for lines that are too long"


def test_the_newest_come_first_however_far_back(path: Path) -> None:
    path.write_bytes(line(1, "hang") + line(2) * 200_000 + line(3, "hang") + line(4) * 10 + b'{"event": "hang", "nu')
    assert numbers(record_tail.search_back(str(path), ("hang",))) == [3, 1]


def test_of_progress_the_newest_is_enough(path: Path) -> None:
    saved = b'{"event": "progress", "by": "checkpoint", "number": %d}\n'
    stepped = b'{"event": "progress", "by": "step", "number": %d}\n'
    path.write_bytes(line(0) + saved % 1 + saved % 2 + line(3) + stepped % 4 + stepped % 5)
    assert numbers(record_tail.last_condensed(str(path))) == [0, 2, 3, 5]
    assert numbers(record_tail.last(str(path))) == [0, 1, 2, 3, 4, 5]


def test_nothing_to_read_is_nothing(tmp_path: Path) -> None:
    assert record_tail.last(str(tmp_path / "none")) == []
    assert record_tail.last(str(tmp_path)) == []
    assert list(record_tail.search_back(str(tmp_path / "none"), ("hang",))) == []


# --- a file that grows ------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Iterator[MadeRun]:
    made = MadeRun(tmp_path / "run")
    made.record("started", number=1)
    made.record("spawned", number=2)
    made.write()
    yield made
    made.close()


def append(run: MadeRun, content: bytes) -> None:
    with (run.folder / "events.jsonl").open("ab") as file:
        file.write(content)


def test_what_is_torn_is_waited_for(run: MadeRun) -> None:
    records = RecordStream(str(run.folder))
    append(run, line(3)[:10])
    assert numbers(records.more()) == [1, 2]
    append(run, line(3)[10:] + line(4))
    assert numbers(records.more()) == [3, 4]


@pytest.mark.parametrize(("count", "wanted"), [(0, []), (1, [2]), (2, [1, 2]), (9, [1, 2])])
def test_the_last_ones_and_then_the_next(run: MadeRun, count: int, wanted: list[int]) -> None:
    append(run, b"not ours\n" + line(3)[:10])
    records = RecordStream(str(run.folder))
    assert numbers(records.newest(count)) == wanted
    append(run, line(3)[10:] + line(4))
    assert numbers(records.more()) == [3, 4]


def test_endless_lines_are_passed_over(run: MadeRun) -> None:
    append(run, b"x" * (3 << 20) + b"\n" + line(3) + b"[" * (3 << 20))
    records = RecordStream(str(run.folder))
    assert numbers(records.more()) == [1, 2, 3]
    append(run, b"\n" + line(4))
    assert numbers(records.more()) == [4]


def test_following_ends_with_the_run(run: MadeRun) -> None:
    records = RecordStream(str(run.folder)).follow()
    assert numbers([next(records), next(records)]) == [1, 2]
    writer = threading.Thread(target=append, args=(run, line(3, "ended") + line(4)))
    writer.start()
    assert numbers(records) == [3, 4]
    writer.join()


def test_following_ends_when_ftrun_is_gone(run: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(seconds: float) -> None:
        """In the pause: it writes once more, and is gone."""
        append(run, line(3))
        run.gone()
        run.write_state({**run.rest, "run": run.run, "now": run.standing | {"attempt": run.attempt}})

    monkeypatch.setattr(time, "sleep", die)
    assert numbers(RecordStream(str(run.folder)).follow()) == [1, 2, 3]


def test_a_file_that_was_cut_off_is_followed_on(run: MadeRun) -> None:
    records = RecordStream(str(run.folder))
    list(records.more())
    os.truncate(run.folder / "events.jsonl", 0)
    assert numbers(records.more()) == []
    append(run, line(5))
    assert numbers(records.more()) == [5]


def test_ten_megabytes_are_read_from_the_end_at_once(path: Path) -> None:
    path.write_bytes(line(1, size=1000) * 10_000)
    began = time.process_time()
    found = RecordStream(str(path.parent)).newest(3)
    assert numbers(found) == [1, 1, 1]
    assert time.process_time() - began < 0.5
