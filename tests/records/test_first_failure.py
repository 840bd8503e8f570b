"""On any member the last incident of the job is shown, on the member where it began."""

import json
from pathlib import Path

import pytest

from ftrun.records import group
from ftrun.records.group import GroupNow
from ftrun.records.recent_events import incident_elsewhere
from ftrun.records.snapshot import Incident, Snapshot
from ftrun.records.summary import lines

STOP = {"event": "group", "what": "stop", "why": "member 2 (c): rank 5 stopped", "node": "c", "member": 2, "attempt": 1}
HANG = STOP | {"cause": "hang", "rank": 5, "time": "2026-01-02T03:04:05.000Z"}
CRASH = {"event": "exited", "code": 1, "why": "ConnectionResetError", "attempt": 1}
INCIDENT = Incident("2026-01-02T03:04:05.000Z", 1, "hang", "member 2 (c): rank 5 stopped", member=2, node="c")


def seen(folder: Path, *records: dict[str, object], own: int = 1) -> Incident | None:
    lines = [json.dumps({"schema": 1, "time": "t", "mono": 1.0, "attempt": 1} | one) for one in records]
    (folder / "events.jsonl").write_text("\n".join([*lines, ""]))
    return incident_elsewhere(str(folder), own)


def test_the_incident_of_another_member(tmp_path: Path) -> None:
    assert seen(tmp_path, CRASH, STOP, HANG, {"event": "restart", "reason": "peer"}) == INCIDENT
    assert seen(tmp_path, {"event": "hang", "rule": "step"}, STOP, HANG, own=2) is None
    assert seen(tmp_path, HANG, {"event": "hang", "rule": "step", "attempt": 2}) is None, "a newer one, here"
    assert seen(tmp_path, STOP) is None, "it is open which failure came first"
    assert seen(tmp_path, HANG | {"cause": "manual"}) is None


def test_a_loss_and_an_end(tmp_path: Path) -> None:
    lost = seen(tmp_path, {"event": "lost", "member": 0, "why": "no reply from rank 0"})
    assert lost is not None
    assert (lost.cause, lost.member) == ("loss", 0)
    gone = seen(tmp_path, HANG | {"cause": "peer", "why": "member 2 (c) is lost: it has died"})
    assert gone is not None
    assert (gone.cause, gone.node) == ("loss", "c")
    end = STOP | {"what": "end", "verdict": "hang-limit", "exit_code": 195}
    assert getattr(seen(tmp_path, end), "cause", "") == "hang-limit"
    assert seen(tmp_path, end | {"verdict": "stopped", "exit_code": 143}) is None


@pytest.mark.parametrize(
    ("own", "shown"),
    [
        (None, INCIDENT),
        (Incident("", 1, "failure", "ConnectionResetError"), INCIDENT),
        (Incident("", 2, "failure", "ValueError"), Incident("", 2, "failure", "ValueError")),
    ],
)
def test_it_takes_the_place_of_what_it_has_led_to(own: Incident | None, shown: Incident) -> None:
    run = Snapshot("/run", True, "running", 2, "peer", trouble=own)
    found = group.marked(run, GroupNow(3, 1, 2, "run", "", (), (), {}, 1.0, lease=660.0, cause=INCIDENT))
    assert found.trouble == shown
    if shown == INCIDENT:
        text = "\n".join(lines(found))
        assert "hang in attempt 1: member 2 (c): rank 5" in " ".join(text.split())
        assert "on member 2 (c); `ftctl report` fetches it" in text
