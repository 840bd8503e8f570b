"""Files of records, read from the end and while they are written: by `ftctl events`, and by the page with positions."""

import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftctl.page import feed
from ftctl.page.feed import Follower, Records, StreamPosition
from ftctl.verbs import events
from ftctl.verbs.events import RecordStream
from ftrun.records.files import record_files
from support.made_run import MadeRun


def line(number: int, event: str = "problem", size: int = 0) -> bytes:
    return json.dumps({"event": event, "number": number, "what": "x" * size}).encode() + b"\n"


def numbers(records: Iterable[record_files.Record]) -> list[object]:
    return [record["number"] for record in records]


def held(records: Records) -> list[object]:
    return numbers(json.loads(one.text) for one in records.held)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@given(
    st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=40),
    st.booleans(),
    st.integers(1, 200),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 64),
)
def test_lines_from_the_end_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    torn: bool,
    limit: int,
    longest: int,
    block: int,
    first: int,
) -> None:
    path = tmp_path_factory.mktemp("tail") / "file"
    content = b"".join(one + b"\n" for one in lines) + (b"torn" if torn else b"")
    path.write_bytes(content)
    start = max(0, len(content) - limit)
    expected = content[start:].split(b"\n")[:-1][1 if start else 0 :]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record_files, "LINE", longest)
        patched.setattr(record_files, "BLOCK", block)
        patched.setattr(record_files, "FIRST_READ", min(first, block))
        found = record_files.last_lines(str(path), limit)
        forward = list(record_files.GrowingFile(str(path), start).lines())
    short = [one for one in expected if len(one) < longest]
    assert [one for one in found if len(one) < longest] == short, "without lines that are too long"
    assert [one for one in forward if len(one) < longest] == short


TORN = st.sampled_from(
    [b'{"a": [', b"]}", b"{}], [{}", b'{"a": "', b'"}', b'{"a": 1},{"b": 2}', b"{}", b"[]", b"", b"\xff", b"0"]
)


@given(st.lists(TORN | st.integers(0, 9).map(lambda n: line(n).rstrip()), max_size=12))
def test_lines_that_are_parsed_at_once_are_parsed_as_each_by_itself(lines: list[bytes]) -> None:
    each = [found for one in lines if (found := record_files.parsed(one)) is not None]
    assert list(record_files.all_parsed(lines)) == each


def test_search_back_finds_records_of_long_ago(path: Path) -> None:
    path.write_bytes(line(1, "hang") + line(2) * 200_000 + line(3, "hang") + line(4) * 10 + b'{"event": "hang", "nu')
    assert numbers(record_files.search_back(str(path), ("hang",))) == [3, 1]


EVENTS = st.sampled_from(["progress", "progress", "hang", "spawned"])


@given(st.lists(st.lists(st.tuples(EVENTS, st.integers(0, 60)), max_size=8), max_size=6), st.integers(200, 400))
def test_a_search_in_a_growing_file_finds_what_the_first_one_would_find(
    tmp_path_factory: pytest.TempPathFactory, added: list[list[tuple[str, int]]], block: int
) -> None:
    path, written = tmp_path_factory.mktemp("grows") / "events.jsonl", 0
    wanted: list[object] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record_files, "BLOCK", block)
        patched.setattr(record_files, "FIRST_READ", 100)
        for lines in added:
            with path.open("ab") as file:
                for event, size in lines:
                    file.write(line(written, event, size))
                    wanted += [written] if event == "hang" else []
                    written += 1
            assert numbers(record_files.search_back(str(path), ("hang",))) == wanted[::-1]


def test_a_search_does_not_read_again_what_had_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(line(1, "hang") + line(2) * 200_000)
    read, pread = 0, os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        nonlocal read
        read += size
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", counted)
    for _ in range(5):
        assert numbers(record_files.search_back(str(path), ("hang",))) == [1]
        with path.open("ab") as file:
            file.write(line(3) * 10)
    assert read < 1.5 * path.stat().st_size
    path.write_bytes(line(4, "hang"))
    assert numbers(record_files.search_back(str(path), ("hang",))) == [4], "another file of that name"


def test_last_condensed_keeps_the_newest_progress_and_checkpoint(path: Path) -> None:
    saved = b'{"event": "progress", "by": "checkpoint", "number": %d}\n'
    stepped = b'{"event": "progress", "by": "step", "number": %d}\n'
    path.write_bytes(line(0) + saved % 1 + saved % 2 + line(3) + stepped % 4 + stepped % 5)
    assert numbers(record_files.last_condensed(str(path))) == [0, 2, 3, 5]
    assert numbers(record_files.last(str(path))) == [0, 1, 2, 3, 4, 5]


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    assert record_files.last(str(tmp_path / "none")) == record_files.last(str(tmp_path)) == []
    assert list(record_files.search_back(str(tmp_path / "none"), ("hang",))) == []


# --- the records of a run, while they are written ---------------------------------------------------------------------


@pytest.fixture
def run(run: MadeRun) -> MadeRun:
    run.record("started", number=1)
    run.record("spawned", number=2)
    run.write()
    return run


def append(run: MadeRun, content: bytes) -> None:
    with (run.folder / "events.jsonl").open("ab") as file:
        file.write(content)


def test_a_torn_line_is_read_when_it_is_complete(run: MadeRun) -> None:
    records = RecordStream(str(run.folder))
    append(run, line(3)[:10])
    assert numbers(records.more()) == [1, 2]
    append(run, line(3)[10:] + line(4))
    assert numbers(records.more()) == [3, 4]


@pytest.mark.parametrize(("count", "expected"), [(0, []), (1, [2]), (9, [1, 2])])
def test_the_newest_records_are_followed_by_the_next(run: MadeRun, count: int, expected: list[int]) -> None:
    append(run, b"not ours\n" + line(3)[:10])
    records = RecordStream(str(run.folder))
    assert numbers(records.newest(count)) == expected
    append(run, line(3)[10:] + line(4))
    assert numbers(records.more()) == [3, 4]


def test_lines_that_are_too_long_are_skipped(run: MadeRun) -> None:
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
        """During the pause it writes once more, and is gone."""
        append(run, line(3))
        run.gone()
        run.write_state({**run.rest, "run": run.run, "now": run.status | {"attempt": run.attempt}})

    monkeypatch.setattr(time, "sleep", die)
    assert numbers(RecordStream(str(run.folder)).follow()) == [1, 2, 3]


def test_a_truncated_file_is_followed_on(run: MadeRun) -> None:
    records = RecordStream(str(run.folder))
    assert numbers(records.more()) == [1, 2]
    os.truncate(run.folder / "events.jsonl", 0)
    assert numbers(records.more()) == []
    append(run, line(5))
    assert numbers(records.more()) == [5]


def test_the_newest_of_ten_megabytes_are_read_at_once(path: Path) -> None:
    path.write_bytes(line(1, size=1000) * 10_000)
    before = bytes_read()
    assert numbers(RecordStream(str(path.parent)).newest(3)) == [1, 1, 1]
    assert bytes_read() - before < 2 << 20


def bytes_read() -> int:
    """By this process, since it began (`rchar` of proc_pid_io(5))."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Those that the reader of the records has parsed."""
    parsed: list[bytes] = []
    parse = record_files._json

    def noted(content: bytes) -> object:
        parsed.append(content)
        return parse(content)

    monkeypatch.setattr(record_files, "_json", noted)
    return parsed


def test_many_records_are_parsed_at_once(run: MadeRun, texts: list[bytes]) -> None:
    """Which takes half of the processor time that it takes to parse each by itself."""
    for number in range(30_000):
        run.record("progress", by="step", step=number, checkpoint=None)
    run.write()
    assert len(list(RecordStream(str(run.folder)).more())) >= 30_000
    assert 1 <= len(texts) < 100


@pytest.mark.parametrize("last", [False, True])
def test_records_that_are_not_asked_for_are_not_parsed(run: MadeRun, last: bool, texts: list[bytes]) -> None:
    append(run, line(3) * 10 + line(4, "hang") + line(5) * 10)
    records = RecordStream(str(run.folder), events.Filter(["hang"]))
    assert numbers(records.newest(9) if last else records.more()) == [4]
    assert b"hang" in b"".join(texts)
    assert b"problem" not in b"".join(texts)


# --- the follower of the page -----------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.integers(0, 400), max_size=12))
def test_each_record_is_passed_on_once_however_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    content = b"".join(map(line, range(8)))
    path = tmp_path_factory.mktemp("follow") / "events.jsonl"
    follower, position = Follower(), None
    found: list[str] = []
    for end in [*sorted(cuts), len(content)]:
        path.write_bytes(content[:end])
        restart, records = follower.read(str(path)).after(position)
        found = [one.text for one in records] if restart else [*found, *(one.text for one in records)]
        position = records[-1].position if records else position
    assert numbers(map(json.loads, found)) == list(range(8))


def test_a_position_is_valid_in_another_server(path: Path) -> None:
    path.write_bytes(b"".join(map(line, range(3))))
    position = Follower().read(str(path)).held[1].position
    with path.open("ab") as stream:
        stream.write(line(3))
    restart, records = Follower().read(str(path)).after(StreamPosition.of(str(position)))
    assert not restart
    assert held(Records(held=records)) == [2, 3]


def test_a_replaced_or_truncated_file_is_read_from_the_start(path: Path) -> None:
    path.write_bytes(line(1) + line(2))
    follower = Follower()
    position = follower.read(str(path)).at
    path.write_bytes(line(7) + line(8) + line(9))
    restart, records = follower.read(str(path)).after(position)
    assert restart
    assert held(Records(held=records)) == [7, 8, 9]
    path.write_bytes(line(7))
    assert held(follower.read(str(path))) == [7]


def test_the_last_records_are_held_and_a_client_that_is_behind_starts_again(path: Path) -> None:
    path.write_bytes(line(0))
    follower = Follower()
    behind = follower.read(str(path)).at
    path.write_bytes(b"".join(map(line, range(2 * feed.HELD))))
    records = follower.read(str(path))
    assert held(records) == list(range(feed.HELD, 2 * feed.HELD))
    assert records.after(behind) == (True, records.held)
    assert records.after(records.held[-2].position) == (False, records.held[-1:])


def test_a_large_file_is_read_from_near_its_end(path: Path) -> None:
    path.write_bytes(b"".join(line(number, size=4000) for number in range(200)))
    found = held(Follower().read(str(path)))
    assert found[-1] == 199
    assert 0 < len(found) <= feed.BACK // 4000


def test_long_records_are_cut_and_other_lines_skipped(path: Path) -> None:
    long = b'{"event": "' + b"x" * (3 * record_files.LINE) + b'"}\n'
    path.write_bytes(line(1))
    follower = Follower()
    follower.read(str(path))
    with path.open("ab") as stream:
        stream.write(b"garbage\n[1]\n\0\n" + long + line(2, size=2 * feed.LONGEST) + line(3))
    for _ in range(5):
        records = follower.read(str(path))
    first, cut, last = map(json.loads, (one.text for one in records.held))
    assert (first["number"], last["number"]) == (1, 3)
    assert cut["event"] == "problem"
    assert "bytes" in cut["cut"]
    assert len(json.dumps(cut)) < 200


@given(st.text("09aF-x٣ \0", max_size=40))
def test_any_id_of_a_client_is_a_position_or_none(text: str) -> None:
    position = StreamPosition.of(text)
    assert position is None or StreamPosition.of(str(position)) == position
    assert Records().after(position)[1] == ()
