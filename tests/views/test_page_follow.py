"""The records as the page follows them: none twice, none lost, whatever becomes of the file."""

import json
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ftrun.views.page import record_follower
from ftrun.views.page.record_follower import Follower, Records, StreamPosition


def line(number: int, more: str = "") -> bytes:
    return json.dumps({"event": "progress", "step": number, "more": more}).encode() + b"\n"


def steps(records: Records) -> list[int]:
    return [json.loads(one.text)["step"] for one in records.held]


@given(st.lists(st.integers(0, 400), max_size=12))
def test_however_it_is_written_each_record_comes_once(cuts: list[int]) -> None:
    content = b"".join(map(line, range(8)))
    path = f"/dev/shm/test-page-follow-{os.getpid()}"
    follower, place = Follower(), None
    found: list[str] = []
    try:
        for end in [*sorted(cuts), len(content)]:
            Path(path).write_bytes(content[:end])
            anew, records = follower.read(path).after(place)
            found = [one.text for one in records] if anew else [*found, *(one.text for one in records)]
            place = records[-1].position if records else place
    finally:
        os.unlink(path)
    assert [json.loads(text)["step"] for text in found] == list(range(8))


def test_a_place_leads_on_in_another_server(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(map(line, range(3))))
    place = Follower().read(str(path)).held[1].position
    with path.open("ab") as stream:
        stream.write(line(3))
    anew, records = Follower().read(str(path)).after(StreamPosition.of(str(place)))
    assert not anew
    assert steps(Records(held=records)) == [2, 3]


def test_another_file_in_its_place_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(1) + line(2))
    follower = Follower()
    place = follower.read(str(path)).at
    path.write_bytes(line(7) + line(8) + line(9))
    anew, records = follower.read(str(path)).after(place)
    assert anew
    assert steps(Records(held=records)) == [7, 8, 9]


def test_one_that_was_cut_off_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(1) + line(2))
    follower = Follower()
    follower.read(str(path))
    path.write_bytes(line(1))
    assert steps(follower.read(str(path))) == [1]


def test_of_many_the_last_are_held_and_who_is_behind_is_told_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(0))
    follower = Follower()
    behind = follower.read(str(path)).at
    path.write_bytes(b"".join(map(line, range(2 * record_follower.HELD))))
    records = follower.read(str(path))
    assert steps(records) == list(range(record_follower.HELD, 2 * record_follower.HELD))
    assert records.after(behind) == (True, records.held)
    assert records.after(records.held[-2].position) == (False, records.held[-1:])


def test_a_large_file_is_read_from_near_its_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line(number, "x" * 4000) for number in range(200)))
    found = steps(Follower().read(str(path)))
    assert found[-1] == 199
    assert 0 < len(found) <= record_follower.BACK // 4000


def test_what_is_too_long_or_no_record_harms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    long = b'{"event": "' + b"x" * (3 * record_follower.CHUNK) + b'"}\n'
    path.write_bytes(line(1))
    follower = Follower()
    follower.read(str(path))
    with path.open("ab") as stream:
        stream.write(b"garbage\n[1]\n\0\n" + long + line(2, "y" * 2 * record_follower.LONGEST) + line(3))
    for _ in range(5):
        records = follower.read(str(path))
    first, cut, last = map(json.loads, (one.text for one in records.held))
    assert (first["step"], last["step"]) == (1, 3)
    assert cut["event"] == "progress"
    assert "bytes" in cut["cut"]
    assert len(json.dumps(cut)) < 200


@given(st.text())
def test_no_id_of_a_client_is_taken_for_more_than_it_is(text: str) -> None:
    place = StreamPosition.of(text)
    assert place is None or StreamPosition.of(str(place)) == place
    assert Records().after(place)[1] == ()
