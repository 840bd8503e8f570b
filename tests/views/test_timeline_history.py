"""What became of a run, from its records: attempts, samples, and where the time went."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.accounting.totals import Account
from ftrun.views import history, html
from ftrun.views.attempts import SAMPLES_MOST
from ftrun.views.history import History, Known, fold, read
from ftrun.views.rundir import NoRunDir
from ftrun.views.timeline import draw, verdict
from support.made_run import MadeRun
from support.runs import Runs
from support.runs import runs as runs
from support.scripted import BEGAN, Script, long_run

NOW = BEGAN + 1e6


def told(script: Script, now: float = NOW) -> History:
    return fold("/run", script.records, script.steps, now)


def stretches(found: History) -> list[tuple[float, float, str]]:
    return [(round(s.since - BEGAN, 3), round(s.until - BEGAN, 3), s.why) for s in found.lost]


def test_a_run_that_just_runs_loses_only_its_startup() -> None:
    found = told(Script().starts(startup=2).after(98).ends())
    assert stretches(found) == [(0, 2, "startup")]
    assert found.wall == pytest.approx(100)
    assert found.goodput == pytest.approx(0.98)
    assert (found.verdict, found.exit_code, found.open, found.attempts[0].kept) == ("succeeded", 0, False, True)


def test_a_hang_costs_its_silence_and_what_was_not_saved() -> None:
    script = Script().starts(startup=2).after(20).saves(20).after(5).hangs(25, age=10, evidence=1)
    found = told(script.starts("hang", startup=3, step=20).after(10).ends())
    assert stretches(found) == [
        (0, 2, "startup"),
        (22, 27, "redone"),
        (27, 38, "hang"),
        (38, 39, "stopping"),
        (39, 42, "startup"),
    ]
    first, second = found.attempts
    assert (first.cause, first.again, first.kept, first.last_step) == ("hang", True, False, 25)
    assert (second.reason, second.kept, second.first_step) == ("hang", True, 20)
    assert first.why == "rank 3 at step 25, at x.py:1 f"
    assert [(mark.kind, mark.at - BEGAN) for mark in found.marks] == [("suspect", 37.0), ("hang", 38.0)]


def test_without_checkpoints_what_the_next_one_does_again_is_lost() -> None:
    """Steps 0 to 40 in 40 s; the next one begins at step 30, which had been reached after 30 s."""
    script = Script().starts(startup=0)
    for step in range(0, 41, 8):
        script.stepped(step, step).after(8)
    script.at -= 8
    found = told(script.hangs(40).starts("hang", startup=0, step=30).stepped(30, 30).after(5).stepped(35, 35).ends())
    assert (30, 40, "redone") in stretches(found)


def test_where_nothing_is_reported_all_work_of_a_failed_attempt_is_lost() -> None:
    script = Script().starts(step=None).after(50).says("exited", code=1).says("stopping", by="SIGTERM")
    found = told(script.after(4).starts("failure", step=None).after(10).ends())
    assert stretches(found) == [(0, 50, "redone"), (50, 54, "waiting")]
    assert found.attempts[0].why == "the command exited with 1"


def test_healing_and_waiting_for_the_platform() -> None:
    script = Script().starts(startup=1).after(9).saves(9)
    script.says("fault", device="GPU-1", code="Xid94", severity="major").says("stopping", by="SIGKILL")
    script.after(2).says("healing", device="GPU-1", code="Xid94", severity="major")
    script.after(30).says("healing", why="the platform says no")
    found = told(script.after(7).starts("fault", startup=1, step=9).ends())
    assert stretches(found)[1:4] == [(10, 12, "stopping"), (12, 42, "healing"), (42, 49, "waiting")]


def test_a_warning_of_a_device_ends_nothing() -> None:
    script = Script().starts().says("fault", device="GPU-1", code="Xid63", severity="warning").after(8).ends()
    found = told(script)
    assert found.attempts[0].cause is None
    assert [mark.kind for mark in found.marks] == ["fault"]


def test_a_pause_is_lost_for_as_long_as_nothing_moved_in_it() -> None:
    script = Script().starts(startup=1).after(4).says("paused").after(20).says("resumed", stood=15.0)
    script.after(5).says("paused").after(10).says("resumed", stood=None).says("paused").after(10).ends()
    assert stretches(told(script)) == [(0, 1, "startup"), (10, 25, "paused")]


def test_where_it_stood_in_a_pause_nothing_else_counts() -> None:
    script = Script().starts(startup=1).after(4).saves(4).after(1).says("paused").after(9).says("resumed", stood=9.0)
    found = told(script.after(5).hangs(9, age=10).starts("hang", startup=0, step=4).ends())
    redone = [(5, 6, "redone"), (6, 15, "paused"), (15, 20, "redone")]
    assert stretches(found) == [(0, 1, "startup"), *redone, (20, 31, "hang"), (31, 32, "stopping")]


def test_time_to_stop_that_was_asked_for_from_outside_is_work() -> None:
    script = Script().starts(startup=1).after(9).says("stopping", by="outside", signal=15).after(20)
    script.says("exited", code=3, signal=None).after(2).ends("stopped", 143)
    found = told(script)
    assert stretches(found) == [(0, 1, "startup"), (30, 32, "stopping")]
    assert [mark.kind for mark in found.marks] == ["stop"]
    assert found.attempts[0].cause == "stop"


@pytest.mark.parametrize(("step", "redone"), [(29, []), (9, [(9, 29, "redone")])])
def test_whether_a_run_that_was_stopped_had_saved_its_work_shows_at_the_next(step: int, redone: list[Any]) -> None:
    script = Script().starts(startup=0).stepped(0, 0).after(29).stepped(29, 29).says("exited", signal=15)
    assert stretches(told(script.ends("stopped", 143))) == []
    assert stretches(told(script.starts(startup=0, step=step).after(5).ends())) == redone


def test_one_that_gives_up_has_lost_what_came_after_the_checkpoint() -> None:
    script = Script().starts(startup=1).after(9).saves(9).after(6).hangs(15)
    found = told(script.says("escalated", cause="hang", verdict="hang-limit", exit_code=195).ends("hang-limit", 195))
    assert (10, 16, "redone") in stretches(found)
    assert (found.verdict, found.exit_code) == ("hang-limit", 195)


def test_one_under_way_goes_on_until_now() -> None:
    found = told(Script().starts(startup=1).after(9), now=BEGAN + 60)
    assert found.open
    assert found.wall == pytest.approx(60)
    assert found.attempts[0].under_way
    assert stretches(found) == [(0, 1, "startup")]


def cut_off() -> Script:
    """Killed, after its last record."""
    script = Script().starts(startup=1).after(9).saves(9)
    return script.after(20).stepped(29, 30)


@pytest.mark.parametrize(("seen", "until"), [(None, 30), (1032.0, 32), (9e9, 30), (1e-3, 30)])
def test_one_that_was_killed_ends_at_the_last_sign_of_life(seen: float | None, until: float) -> None:
    script = cut_off()
    found = fold("/run", script.records, script.steps, NOW, Known(lives=False, attempt=1, seen=seen))
    (life,) = found.attempts
    assert (found.open, life.under_way, life.cut_off, found.verdict) == (False, False, True, None)
    assert found.wall == pytest.approx(until)
    assert life.until - BEGAN == pytest.approx(until)
    assert stretches(found) == [(0, 1, "startup")], "what of its work is kept shows when another one follows"
    assert verdict(found) == "It ended without a verdict."
    assert "<td>cut off</td>" in html.render(found)


def test_one_that_was_killed_worked_until_its_last_sample_also_when_another_follows() -> None:
    first = cut_off()
    second = Script(boot=1100, began=BEGAN + 100)
    second.attempt = 1
    second.starts("failure", step=9).after(8).ends()
    found = fold("/run", first.records + second.records, first.steps, NOW)
    assert [(a - BEGAN, b - BEGAN) for a, b in found.runs] == [(0, 30), (100, 110)]
    assert found.attempts[0].last_step == 30


def test_whether_it_lives_is_looked_at(tmp_path: Path) -> None:
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
        assert found.spanned == pytest.approx(55, abs=0.1)
    finally:
        made.close()


@pytest.mark.parametrize(("attempt", "step", "last"), [(1, 12, 12), (1, 9, 10), (2, 12, 10), (1, None, 10)])
def test_the_last_step_comes_after_the_last_sample(attempt: int, step: int | None, last: int) -> None:
    script = Script().starts(startup=1).after(9).stepped(10, 10).after(0.9).says("exited", code=0).ends()
    found = fold("/run", script.records, script.steps, NOW, Known(attempt=attempt, step=step))
    assert found.attempts[0].last_step == last
    assert found.samples[-1].at - BEGAN == pytest.approx(10.9 if last == 12 else 10)


def test_the_next_boot_has_another_clock() -> None:
    """Its monotonic clock begins anew: the wall clock tells what came after what."""
    first = Script(boot=50_000).starts(startup=1).after(9).saves(9).after(1).ends("stopped", 143)
    second = Script(boot=20, began=BEGAN + 3600)
    second.attempt = 1
    second.starts("failure", startup=1, step=9).after(9).stepped(12, 12).after(1).ends()
    found = fold("/run", first.records + second.records, first.steps + second.steps, NOW)
    assert [(a - BEGAN, b - BEGAN) for a, b in found.runs] == [(0, 11), (3600, 3611)]
    assert found.wall == pytest.approx(22)
    assert found.samples[-1].at == pytest.approx(BEGAN + 3610)
    assert found.attempts[1].reason == "started"


def test_a_wall_clock_that_is_set_back_turns_nothing_round() -> None:
    first = Script().starts(startup=1).after(9).ends()
    second = Script(boot=2000, began=BEGAN - 500).starts(startup=1).after(9).ends()
    (_, ended), (begun, over) = fold("/run", first.records + second.records, [], NOW).runs
    assert begun >= ended
    assert over - begun == pytest.approx(10)
    stepping = Script().starts(startup=1).after(9)
    stepping.began -= 3600
    found = told(stepping.after(5).ends())
    assert found.wall == pytest.approx(15)


def test_an_ftrun_that_was_killed_is_over_when_the_next_one_starts() -> None:
    first = Script().starts(startup=1).after(30).saves(30).after(4).says("learned")
    second = Script(boot=1100, began=BEGAN + 100)
    second.attempt = 1
    found = fold("/run", first.records + second.starts("failure", step=30).after(8).ends().records, [], NOW)
    assert [(a - BEGAN, b - BEGAN) for a, b in found.runs] == [(0, 35), (100, 110)]
    assert (31, 35, "redone") in stretches(found)


def test_lines_that_are_torn_or_foreign_are_passed_over(tmp_path: Path) -> None:
    good = Script().starts(startup=1).after(9).saves(9).after(1).ends()
    lines = [json.dumps(record) for record in good.records]
    bad: list[Any] = [
        *('{"schema": 1, "ti', "null", "[1]", "\x00" * 99, "[" * 5000, '{"event": 3, "mono": 1}', "x" * (2 << 20)),
        *(
            '{"event": "hang", "mono": 1e999}',
            '{"event": "__init__", "mono": 1006}',
            '{"event": "close", "mono": 1006}',
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


def test_without_records_there_is_no_run_dir(tmp_path: Path) -> None:
    with pytest.raises(NoRunDir):
        read(str(tmp_path))
    (tmp_path / "events.jsonl").touch()
    assert read(str(tmp_path)).runs == ()


def test_ten_megabytes_are_thinned_out(tmp_path: Path) -> None:
    script = Script().starts()
    for step in range(65_000):
        script.after(1).saves(step)
        script.steps.append({"mono": script.boot + script.at, "attempt": 1, "low": step, "high": step, "ranks": 1})
    run_dir = script.ends().written(tmp_path / "run")
    assert (tmp_path / "run" / "events.jsonl").stat().st_size > 10_000_000
    found = read(run_dir)
    assert 0.5 * SAMPLES_MOST < len(found.samples) <= SAMPLES_MOST
    assert len(found.checkpoints) <= history.CHECKPOINTS_MOST
    assert found.saved == 65_000
    assert any(getattr(shape, "text", "") == "checkpoint (65000)" for shape in draw(found).shapes)
    assert found.checkpoints[-1].step == 64_999


def test_of_more_than_can_be_read_the_last_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "RECORDS_MOST", 20_000)
    run_dir = long_run(100, 1e5).written(tmp_path / "run")
    found = read(run_dir)
    assert found.verdict == "succeeded"
    assert "only the last" in found.problems[0]


@pytest.mark.parametrize("seed", range(40))
def test_no_instant_is_lost_twice(seed: int) -> None:
    """Whatever the records say, in whatever order."""
    chance, script = random.Random(seed), Script()
    acts = [
        lambda: script.starts(
            chance.choice(("hang", "failure", "fault", "manual", "first")), step=chance.choice((None, 3))
        ),
        lambda: script.hangs(chance.choice((None, 5)), age=chance.uniform(0, 900)),
        lambda: script.saves(chance.randrange(99)),
        lambda: script.stepped(3, chance.randrange(99)),
        lambda: script.says("exited", code=chance.choice((0, 1))),
        lambda: script.says("stopping", by=chance.choice(("outside", "SIGTERM"))),
        lambda: script.says("healing", device=chance.choice(("GPU-1", None))),
        lambda: script.says("fault", severity=chance.choice(("major", "warning"))),
        lambda: script.says(chance.choice(("paused", "cleared", "killed", "first_beat", "escalated"))),
        lambda: script.says("resumed", stood=chance.choice((None, 0.0, 25.0, 1e6))),
        lambda: script.ends(chance.choice(("succeeded", "hang-limit", "stopped")), chance.choice((0, 195))),
    ]
    for _ in range(60):
        script.after(chance.choice((0, 0.1, 30)))
        chance.choice(acts)()
    found = told(script)
    for one, following in pairwise(found.lost):
        assert one.since < one.until <= following.since + 1e-6
    assert sum(found.totals.values()) <= found.wall + 1e-3
    for stretch in found.lost:
        assert any(since - 1e-6 <= stretch.since and stretch.until <= until + 1e-6 for since, until in found.runs)
    assert all(one.at <= following.at for one, following in pairwise(found.samples))


def test_it_agrees_with_the_account_of_a_real_run(runs: Runs) -> None:
    """A hang, then a second one, then success: what is drawn is what was lost, but for what only ftrun can know."""
    hang = ["fthang", "sleep", "--steps", "30", "--step-time", "50ms", "--after", "12", "--times", "2"]
    house = Path(__file__).resolve().parents[2] / "bin"
    run = runs.run("--hang-timeout", "1s", "--grace", "1s", str(house / hang[0]), *hang[1:])
    found, account = read(str(run.run_dir)), run.state["account"]
    assert run.wait() == 0
    assert found.spanned == pytest.approx(account["wall"], abs=0.2)
    for why, seconds in account["lost"].items():
        assert found.drawn.get(why, 0.0) == pytest.approx(seconds, abs=0.3), why
    assert [life.cause for life in found.attempts] == ["hang", "hang", None]
