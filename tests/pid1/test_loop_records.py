"""Which records of helpers are written."""

from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.pid1.loop import Supervisor


@pytest.mark.parametrize(("paused", "written"), [(None, ["straggler", "problem"]), ("a pause", ["problem"])])
def test_a_pause_makes_no_record_of_a_straggler(paused: str | None, written: list[str]) -> None:
    found: list[str] = []
    made = [("straggler", (("rank", 3),), "rank 3 is slow"), ("problem", (("what", "a"),), None)]
    supervisor: Any = Supervisor.__new__(Supervisor)
    supervisor._job = SimpleNamespace(paused=paused)
    supervisor._clients = SimpleNamespace(drain_records=lambda: made)
    supervisor._console = SimpleNamespace(print=lambda *text, severity: None)
    supervisor._persist = lambda event, fields: found.append(event)
    supervisor._write_records_of_helpers()
    assert found == written
