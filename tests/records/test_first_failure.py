"""On any member the last incident of the job is shown, on the member where it began."""

import json
import time
from pathlib import Path

import pytest

from ftrun.host import procfs
from ftrun.messages.group_view import FILE, GroupView, MemberRow, dump
from ftrun.records.files.recent_events import Incident, incident_elsewhere
from ftrun.records.present import group
from ftrun.records.present.advice import what_to_do
from ftrun.records.present.group import GroupNow
from ftrun.records.present.snapshot import Snapshot
from ftrun.records.present.summary import lines

STOP = {"event": "group", "what": "stop", "why": "member 2 (c): rank 5 stopped", "node": "c", "member": 2, "attempt": 1}
STOP |= {"time": "2026-01-02T03:04:05.000Z"}
HANG = STOP | {"cause": "hang", "rank": 5}
RUN = HANG | {"what": "run", "time": "later", "attempt": 2}
CRASH = {"event": "exited", "code": 1, "why": "ConnectionResetError", "attempt": 1}
LIVE = Snapshot("/run", True, "running", 2, "first")
INCIDENT = Incident("2026-01-02T03:04:05.000Z", 1, "hang", "member 2 (c): rank 5 stopped", member=2, node="c")


def seen(folder: Path, *records: dict[str, object], own: int = 1) -> Incident | None:
    lines = [json.dumps({"schema": 1, "time": "t", "mono": 1.0, "attempt": 1} | one) for one in records]
    (folder / "events.jsonl").write_text("\n".join([*lines, ""]))
    return incident_elsewhere(str(folder), own)


def test_the_incident_of_another_member(tmp_path: Path) -> None:
    assert seen(tmp_path, CRASH, STOP, HANG, {"event": "restart", "reason": "peer"}) == INCIDENT
    assert seen(tmp_path, {"event": "hang", "rule": "step"}, STOP, HANG, own=2) is None
    assert seen(tmp_path, HANG, {"event": "hang", "rule": "step", "attempt": 2}) is None, "a newer one, here"
    again = seen(tmp_path, HANG | {"why": f"{STOP['why']}; third hang at train.py:68"})
    assert again == INCIDENT._replace(again="third hang at train.py:68")
    assert seen(tmp_path, STOP) is None, "it is open which failure came first"
    assert seen(tmp_path, HANG | {"cause": "manual"}) is None


def test_an_incident_has_the_time_at_which_it_began(tmp_path: Path) -> None:
    assert seen(tmp_path, RUN | {"time": "before"}, STOP, HANG, RUN) == INCIDENT
    lost = {"event": "lost", "member": 2, "node": "c", "why": "it has died", "time": "then"}
    found = seen(tmp_path, lost, STOP, RUN | {"cause": "peer"})
    assert found is not None
    assert (found.cause, found.time) == ("loss", "then")


def test_a_new_container_of_a_lost_member_knows_of_the_loss(tmp_path: Path) -> None:
    back = RUN | {"cause": "peer", "why": "member 2 (c) was lost, and has come back", "attempt": 1}
    found = seen(tmp_path, {"event": "group", "what": "wait", "epoch": 0}, back, own=2)
    assert found is not None
    assert (found.title, found.why) == ("loss before this start", back["why"])
    assert what_to_do(LIVE._replace(trouble=found)) == "nothing now, the group was started again"


def test_without_member_0_no_line_says_that_all_is_well(tmp_path: Path) -> None:
    rows = tuple(MemberRow(rank, "abc"[rank], "running", "", 1, 0.0) for rank in range(3))
    view = GroupNow(3, 1, 2, "run", "", (), rows, {0: 90.0, 1: 0.0, 2: 91.0}, 90.0, silence=60.0, lease=660.0)
    found = group.marked(LIVE._replace(next="The command works.", group="epoch 2, running"), view)
    text = " ".join(" ".join(lines(found)).split())
    assert [group.state(view, row) for row in rows] == ["no contact", "running", "unknown"], "only rank 0 is silent"
    assert found.job is not None
    assert "member 0 (a) is missing" in found.job.text
    assert "do see to its host and the network" in text
    assert "next The command keeps running; the job ends with 195 in 9m 30s unless member 0 (a) is back." in text
    assert "group epoch 2, running, when rank 0 was last heard of" in text
    found = group.marked(LIVE._replace(next="The command works."), view._replace(holder=2, takeover=30.0))
    assert (found.next or "").endswith("another member takes the place of member 2 (c) in 30s, unless it is back.")


def test_a_view_that_a_full_disk_has_kept_from_being_written_accuses_nobody(tmp_path: Path) -> None:
    old = time.monotonic() - 900
    rows = tuple(MemberRow(rank, "ab"[rank], "running", "", 1, old) for rank in (0, 1))
    view = GroupView(1, 2, 1, old, 2, "run", rows=rows, boot=procfs.boot_id(), contact=old, silence=60.0, lease=660.0)
    (tmp_path / FILE).write_bytes(dump(view))
    shown = LIVE._replace(run_dir=str(tmp_path))
    jobs = [group.marked(one, group.read(one)).job for one in (shown, shown._replace(full_disk=True))]
    assert jobs[0] is not None
    assert jobs[1] is None


def test_after_the_end_of_a_member_its_view_of_the_group_does_not_go_on(tmp_path: Path) -> None:
    old = time.monotonic() - 900
    rows = MemberRow(0, "a", "running", "", 1, old - 1.0, beat=2.0), MemberRow(1, "b", "running", "", 1, old)
    why = "rank 1 has failed"
    view = GroupView(1, 2, 1, old, 2, "stop", why, (0, 1), rows, procfs.boot_id(), contact=old, silence=60.0)
    (tmp_path / FILE).write_bytes(dump(view))
    found = group.read(LIVE._replace(run_dir=str(tmp_path), alive=False, phase="done", exit_code=137))
    assert found is not None
    assert group.headline(found) == "group of 2, epoch 2, as member 1, which has ended, saw it last"
    assert [group.state(found, row) for row in found.rows] == ["running", "done"]
    assert " 3s ago" in "".join(line for line, _ in group.table(found))
    assert not list(group.details(found))


def test_a_limit_that_was_reached_without_a_hang_blames_no_hang(tmp_path: Path) -> None:
    end = STOP | {"what": "end", "cause": "peer", "verdict": "hang-limit", "exit_code": 195, "why": "it has left"}
    ended = LIVE._replace(alive=False, phase="done", exit_code=195, verdict="hang-limit", trouble=seen(tmp_path, end))
    text = " ".join(" ".join(lines(ended)).split())
    assert "do look after member 2 (c), and start the job again" in text
    assert "should reschedule the job: a member of its group was missing" in text
    assert "loss in attempt 1" in text


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
