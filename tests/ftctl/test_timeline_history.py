"""The history of a run, from its records: attempts, samples, and where lost time is drawn."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ftctl.timeline import html
from ftctl.timeline.timeline import draw, verdict
from ftrun.core.accounting.totals import Account
from ftrun.records.files.rundir import NoRunDir
from ftrun.records.past import history
from ftrun.records.past.attempts import SAMPLES_MOST
from ftrun.records.past.history import History, KnownState, read
from support.made_run import MadeRun
from support.scripted import BEGAN, Script, fold, long_run

NOW = BEGAN + 1e6


def history_of(script: Script, now: float = NOW) -> History:
    return fold("/run", script.records, script.steps, now)


def lost(found: History) -> list[tuple[float, float, str]]:
    return [(round(s.since - BEGAN, 3), round(s.until - BEGAN, 3), s.why) for s in found.lost]


def restarted_further_back() -> Script:
    """Steps 0 to 40 in 40 s without checkpoints; the next attempt begins at step 30, first reached after 30 s."""
    script = Script().starts(startup=0)
    for step in range(0, 41, 8):
        script.stepped(step, step).after(8)
    script.at -= 8
    return script.hangs(40).starts("hang", startup=0, step=30).stepped(30, 30).after(5).stepped(35, 35).ends()


LOST = {
    "success": (Script().starts(startup=2).after(98).ends(), [(0, 2, "startup")]),
    "hang": (
        Script().starts(startup=2).after(20).saves(20).after(5).hangs(25).starts("hang", startup=3, step=20).ends(),
        [(0, 2, "startup"), (22, 27, "redone"), (27, 38, "hang"), (38, 39, "stopping"), (39, 42, "startup")],
    ),
    "restart further back": (
        restarted_further_back(),
        [(30, 40, "redone"), (40, 51, "hang"), (51, 52, "stopping")],
    ),
    "failure without any report": (
        Script().starts(step=None).after(50).record("exited", code=1).record("stopping", by="SIGTERM").after(4)
        .starts("failure", step=None).after(10).ends(),
        [(0, 50, "startup"), (50, 54, "waiting")],
    ),
    "waiting of a group": (
        Script().record("group", what="run", epoch=1).starts(startup=0).after(10).saves(10)
        .record("group", what="stop", epoch=1, cause="failure", node="b").record("stopping", by="SIGTERM").after(2)
        .record("exited", signal=15).after(30).record("group", what="run", epoch=2)
        .starts("peer", startup=0, step=10).after(5).ends(),
        [(10, 12, "stopping"), (12, 42, "waiting")],
    ),
    "healing, then waiting for the platform": (
        Script().starts(startup=1).after(9).saves(9).record("fault", device="GPU-1", code="Xid94", severity="major")
        .record("stopping", by="SIGKILL").after(2).record("healing", device="GPU-1", code="Xid94", severity="major")
        .after(30).record("healing", why="not permitted").after(7).starts("fault", startup=0, step=9).ends(),
        [(0, 1, "startup"), (10, 12, "stopping"), (12, 42, "healing"), (42, 49, "waiting")],
    ),
    "ranks that recover from a hang, then by a retry": (
        Script().starts(startup=2).after(18)
        .record("suspect", rule="step", rank=1, age=9.0, limit=9.0, step=20).after(1)
        .record("hang", rule="step", rank=1, age=10.0, limit=9.0, step=20).record("recovering", rung="rank", round=2)
        .after(4).record("recovered", rung="rank", round=2, ranks=[1], step=20, seconds=3.0).after(10)
        .record("fault", device="npu0", code="80E01801", severity="minor", retry="memory")
        .record("recovering", rung="retry", round=3).after(2)
        .record("recovered", rung="retry", round=3, ranks=[], step=30, seconds=1.5).after(5).ends(),
        [(0, 2, "startup"), (11, 21, "hang"), (22, 25, "recovery"), (35.5, 37, "recovery")],
    ),
    "only the part of a pause without movement": (
        Script().starts(startup=1).after(4).record("paused").after(20).record("resumed", stood=15.0).after(5)
        .record("paused").after(10).record("resumed", stood=None).record("paused").after(10).ends(),
        [(0, 1, "startup"), (10, 25, "paused")],
    ),
    "a suspension, and one in a pause": (
        Script().starts(startup=1).after(30).record("frozen", seconds=20.0).after(5).record("paused").after(20)
        .record("frozen", seconds=12.0).record("resumed", stood=15.0).after(5).ends(),
        [(0, 1, "startup"), (11, 31, "paused"), (41, 56, "paused")],
    ),
    "a pause in other lost time": (
        Script().starts(startup=1).after(4).saves(4).after(1).record("paused").after(9).record("resumed", stood=9.0)
        .after(5).hangs(9).starts("hang", startup=0, step=4).ends(),
        [(0, 1, "startup"), (5, 6, "redone"), (6, 15, "paused"), (15, 20, "redone"), (20, 31, "hang"),
         (31, 32, "stopping")],
    ),
    "a stop from outside, during which the command works": (
        Script().starts(startup=1).after(9).record("stopping", by="outside", signal=15).after(20)
        .record("exited", code=3, signal=None).after(2).ends("stopped", 143),
        [(0, 1, "startup"), (30, 32, "stopping")],
    ),
    "giving up": (
        Script().starts(startup=1).after(9).saves(9).after(6).hangs(15).ends("hang-limit", 195),
        [(0, 1, "startup"), (10, 16, "discarded"), (16, 27, "hang"), (27, 28, "stopping")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("script", "intervals"), LOST.values(), ids=LOST)
def test_lost_time_is_placed(script: Script, intervals: list[tuple[float, float, str]]) -> None:
    assert lost(history_of(script)) == intervals


def test_attempts_have_their_causes_steps_and_marks() -> None:
    found = history_of(LOST["hang"][0])
    first, second = found.attempts
    assert (first.cause, first.again, first.kept, first.last_step) == ("hang", True, False, 25)
    assert (second.reason, second.kept, second.first_step) == ("hang", True, 20)
    assert first.why == "rank 3 at step 25, at x.py:1 f"
    assert [(mark.kind, mark.at - BEGAN) for mark in found.marks] == [("suspect", 37.0), ("hang", 38.0)]
    assert history_of(LOST["failure without any report"][0]).attempts[0].why == "the command exited with 1"
    stopped = history_of(LOST["a stop from outside, during which the command works"][0])
    assert ([mark.kind for mark in stopped.marks], stopped.attempts[0].cause) == (["stop"], "stop")


@pytest.mark.parametrize(("step", "redone"), [(29, []), (9, [(9, 29, "redone")])])
def test_the_work_of_a_stopped_run_is_decided_by_the_next_start(step: int, redone: list[Any]) -> None:
    script = Script().starts(startup=0).stepped(0, 0).after(29).stepped(29, 29).record("exited", signal=15)
    assert lost(history_of(script.ends("stopped", 143))) == []
    assert lost(history_of(script.starts(startup=0, step=step).after(5).ends())) == redone


def test_a_running_attempt_lasts_until_now() -> None:
    found = history_of(Script().starts(startup=1).after(9), now=BEGAN + 60)
    assert found.wall == pytest.approx(60)
    assert (found.open, found.attempts[0].under_way) == (True, True)
    assert lost(found) == [(0, 1, "startup")]


def cut_off() -> Script:
    """ftrun was killed after the last record."""
    return Script().starts(startup=1).after(9).saves(9).after(20).stepped(29, 30)


@pytest.mark.parametrize(("seen", "until"), [(None, 30), (1032.0, 32), (9e9, 30), (1e-3, 30)])
def test_a_killed_ftrun_ends_when_it_was_last_seen(seen: float | None, until: float) -> None:
    script = cut_off()
    found = fold("/run", script.records, script.steps, NOW, KnownState(alive=False, attempt=1, seen=seen))
    (attempt,) = found.attempts
    assert (found.open, attempt.under_way, attempt.cut_off, found.verdict) == (False, False, True, None)
    assert found.wall == attempt.until - BEGAN == pytest.approx(until)
    assert lost(found) == [(0, 1, "startup")], "how much of its work is kept is not known yet"
    assert verdict(found) == "It ended without a verdict."
    assert "<td>cut off</td>" in html.render(found)


def test_a_killed_ftrun_that_another_one_follows_worked_until_its_last_sample() -> None:
    first, second = cut_off(), Script(boot=1100, began=BEGAN + 100)
    second.attempt = 1
    second.starts("failure", step=9).after(8).ends()
    found = fold("/run", first.records + second.records, first.steps, NOW)
    assert [(a - BEGAN, b - BEGAN) for a, b in found.runs] == [(0, 30), (100, 110)]
    assert found.attempts[0].last_step == 30
    assert (10, 30, "redone") in lost(found)


def test_read_asks_whether_ftrun_is_running(tmp_path: Path) -> None:
    made = MadeRun(tmp_path)
    try:
        made.record("started", ago=60, reason="first")
        made.record("first_beat", ago=40, rank=0, step=1)
        made.ledger = made.ledger._replace(account=Account(at=made.now - 5), last_step=7)
        found = read(made.write())
        assert (found.open, found.attempts[0].last_step) == (True, 7)
        made.gone()
        found = read(made.write())
        assert (found.open, found.attempts[0].last_step) == (False, 7)
        assert found.drawn_wall == pytest.approx(55, abs=0.1)
    finally:
        made.close()


def test_the_clock_of_the_next_boot_is_mapped_to_the_wall_clock() -> None:
    first = Script(boot=50_000).starts(startup=1).after(9).saves(9).after(1).ends("stopped", 143)
    second = Script(boot=20, began=BEGAN + 3600)
    second.attempt = 1
    second.starts("failure", startup=1, step=9).after(9).stepped(12, 12).after(1).ends()
    found = fold("/run", first.records + second.records, first.steps + second.steps, NOW)
    assert [(a - BEGAN, b - BEGAN) for a, b in found.runs] == [(0, 11), (3600, 3611)]
    assert found.samples[-1].at == pytest.approx(BEGAN + 3610)
    assert found.attempts[1].reason == "started"


def test_a_wall_clock_that_is_set_back_changes_no_order() -> None:
    first = Script().starts(startup=1).after(9).ends()
    second = Script(boot=2000, began=BEGAN - 500).starts(startup=1).after(9).ends()
    (_, ended), (begun, over) = fold("/run", first.records + second.records, [], NOW).runs
    assert begun >= ended
    assert over - begun == pytest.approx(10)
    stepping = Script().starts(startup=1).after(9)
    stepping.began -= 3600
    assert history_of(stepping.after(5).ends()).wall == pytest.approx(15)


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    good = Script().starts(startup=1).after(9).saves(9).after(1).ends()
    lines = [json.dumps(record) for record in good.records]
    bad: list[Any] = [
        *('{"schema": 1, "ti', "null", "[1]", "\x00" * 99, "[" * 5000, '{"event": 3, "mono": 1}', "x" * (2 << 20)),
        *(
            '{"event": "hang", "mono": 1e999}',
            '{"event": "__init__", "mono": 1006}',
            '{"event": "finish", "mono": 1006}',
        ),
        '{"event": "progress", "by": "checkpoint", "mono": 1005, "step": "9"}',
        '{"event": "hang", "mono": 1006, "age": "x", "rank": [], "step": {}, "why": 7, "attempt": "a"}',
        '{"event": "restart", "mono": 9e14}',
    ]
    (tmp_path / "events.jsonl").write_bytes(
        "\n".join([*bad, *lines[:3], *bad, *lines[3:], *bad, lines[0][:40]]).encode()
    )
    (tmp_path / "steps.jsonl").write_text(
        '{"mono": "1", "attempt": 1}\n{"mono": 1004, "attempt": 1, "low": 3, "high": 4}\n{'
    )
    found = read(str(tmp_path), NOW)
    assert found.verdict == "succeeded"
    assert found.wall == pytest.approx(11)
    assert (3, 4) in [(s.low, s.high) for s in found.samples]
    (tmp_path / "steps.jsonl").unlink()
    (tmp_path / "steps.jsonl").symlink_to("steps.jsonl")  # unreadable for root, too
    found = read(str(tmp_path), NOW)
    assert (found.verdict, found.problems) == (
        "succeeded",
        (f"the steps cannot be read: {tmp_path}/steps.jsonl: Too many levels of symbolic links",),
    )


def test_without_records_there_is_no_run_dir(tmp_path: Path) -> None:
    with pytest.raises(NoRunDir):
        read(str(tmp_path))
    (tmp_path / "events.jsonl").touch()
    assert read(str(tmp_path)).runs == ()


def test_many_samples_and_checkpoints_are_thinned_out(tmp_path: Path) -> None:
    script = Script().starts()
    for step in range(12_000):
        script.after(1).saves(step)
        script.steps.append({"mono": script.boot + script.at, "attempt": 1, "low": step, "high": step, "ranks": 1})
    found = read(script.ends().written(tmp_path / "run"))
    assert 0.5 * SAMPLES_MOST < len(found.samples) <= SAMPLES_MOST
    assert len(found.checkpoints) <= history.CHECKPOINTS_MOST
    assert found.saved == 12_000
    assert any(getattr(shape, "text", "") == "checkpoint (12000)" for shape in draw(found).shapes)
    assert found.checkpoints[-1].step == 11_999


def test_of_too_many_records_the_last_are_shown(tmp_path: Path) -> None:
    found = history.read(long_run(100, 1e5).written(tmp_path / "run"), most=20_000)
    assert found.verdict == "succeeded"
    assert "only the last" in found.problems[0]
    assert any("only the last 0 MiB of its records" in getattr(shape, "text", "") for shape in draw(found).shapes)


@pytest.mark.parametrize("seed", range(20))
def test_no_time_is_lost_twice_whatever_the_records(seed: int) -> None:
    chance, script = random.Random(seed), Script()
    acts = [
        lambda: script.starts(
            chance.choice(("hang", "failure", "fault", "manual", "first")), step=chance.choice((None, 3))
        ),
        lambda: script.hangs(chance.choice((None, 5)), age=chance.uniform(0, 900)),
        lambda: script.saves(chance.randrange(99)),
        lambda: script.stepped(3, chance.randrange(99)),
        lambda: script.record("exited", code=chance.choice((0, 1))),
        lambda: script.record("stopping", by=chance.choice(("outside", "SIGTERM"))),
        lambda: script.record("healing", device=chance.choice(("GPU-1", None))),
        lambda: script.record("fault", severity=chance.choice(("major", "warning"))),
        lambda: script.record(chance.choice(("paused", "cleared", "killed", "first_beat", "escalated"))),
        lambda: script.record("resumed", stood=chance.choice((None, 0.0, 25.0, 1e6))),
        lambda: script.ends(chance.choice(("succeeded", "hang-limit", "stopped")), chance.choice((0, 195))),
    ]
    for _ in range(60):
        script.after(chance.choice((0, 0.1, 30)))
        chance.choice(acts)()
    found = history_of(script)
    for one, following in pairwise(found.lost):
        assert one.since < one.until <= following.since + 1e-6
    assert sum(found.totals.values()) <= found.wall + 1e-3
    for interval in found.lost:
        assert any(since - 1e-6 <= interval.since and interval.until <= until + 1e-6 for since, until in found.runs)
    assert all(one.at <= following.at for one, following in pairwise(found.samples))
