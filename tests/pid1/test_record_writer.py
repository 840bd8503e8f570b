"""Which records of helpers are written."""

from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.pid1.record_writer import RecordWriter


@pytest.mark.parametrize(("paused", "written"), [(None, ["straggler", "problem"]), ("a pause", ["problem"])])
def test_a_pause_makes_no_record_of_a_straggler(paused: str | None, written: list[str]) -> None:
    found: list[str] = []
    made = [("straggler", (("rank", 3),), "rank 3 is slow"), ("problem", (("what", "a"),), None)]
    writer: Any = RecordWriter.__new__(RecordWriter)
    writer._job = lambda: SimpleNamespace(paused=paused)
    writer._clients = SimpleNamespace(drain_records=lambda: made)
    writer._setup = SimpleNamespace(console=SimpleNamespace(print=lambda *text, severity: None))
    writer.persist = lambda event, fields, durable: found.append(event)
    writer.write_those_of_helpers()
    assert found == written
