"""What the page is told beyond the snapshot."""

import json
from pathlib import Path

from ftrun.views import steps
from ftrun.views.page import payload
from ftrun.views.snapshot import RankNow
from support.pages import empty, snapshot


def test_paces_are_those_of_this_attempt(tmp_path: Path) -> None:
    run_dir = empty(tmp_path / "run")
    seen = [(1, 0.0, 5), (2, 10.0, 3), (2, 11.0, 5), (2, 12.0, 5), (2, 14.0, 6), (2, 14.0, 7)]
    lines = [json.dumps({"mono": mono, "attempt": attempt, "low": 0, "high": high}) for attempt, mono, high in seen]
    (run_dir / "steps.jsonl").write_text("\n".join([*lines, "torn"]))
    assert steps.paces(str(run_dir), 2) == [(11.0, 0.5), (14.0, 2.0)]
    assert steps.paces(str(run_dir), 3) == []


def test_ranks_come_in_the_order_of_concern(tmp_path: Path) -> None:
    ranks = (
        RankNow(0, 1, "done"),
        RankNow(1, 1, "moving", age=3.0, limit=30.0),
        RankNow(2, 1, "section", age=90.0, limit=600.0),
        RankNow(3, 1, "moving"),
        RankNow(4, 1, "gone"),
        RankNow(5, 1, "moving", age=29.0, limit=30.0),
    )
    found = payload.payload(snapshot(tmp_path, ranks=ranks), [])
    assert [rank["rank"] for rank in found["ranks"]] == [5, 2, 1, 4, 3, 0]
    assert found["states"] == {"done": 1, "moving": 3, "section": 1, "gone": 1}
    assert payload.brief(found)["ranks"] == found["ranks"]
