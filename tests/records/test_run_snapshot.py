"""The snapshot of a run, from its files alone."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ftctl.verbs.status import condition
from ftrun.core.accounting.totals import Account, LostTime, RestartCounts
from ftrun.core.text import sentences
from ftrun.messages import records
from ftrun.messages.group_view import MemberRow
from ftrun.records.files import record_files
from ftrun.records.files.rundir import NoRunDir
from ftrun.records.present import group
from ftrun.records.present.group import GroupNow, own_row
from ftrun.records.present.run_snapshot import read_snapshot
from ftrun.records.present.snapshot import Snapshot
from ftrun.records.present.summary import headline, lines
from ftrun_hooks import layout as at
from support.made_run import NS, MadeRun


@pytest.fixture
def run(run: MadeRun) -> MadeRun:
    run.record("started", ago=60, reason="first", start_cnt=1)
    run.record("spawned", ago=50, pid=1)
    run.record("first_beat", ago=40, rank=0, step=0)
    return run


def seen(run: MadeRun) -> Snapshot:
    return read_snapshot(run.write(), run.now)


def without_options(run: MadeRun, **given: Any) -> None:
    """`--hang-timeout auto`, and no other time."""
    run.limits = run.limits._replace(hang=None, start=None, section=None, auto=True)._replace(**given)


def test_a_running_run(run: MadeRun) -> None:
    run.rank(0, moved=2, step=9)
    run.rank(1, moved=30, step=8)
    run.samples([(40, 0, 0), (30, 2, 3)])
    found = seen(run)
    assert (found.alive, found.phase, found.attempt, found.reason) == (True, "running", 1, "first")
    assert (found.pid, found.command, found.version) == (os.getpid(), ("train",), "0.1.0")
    assert [rank.state for rank in found.ranks] == ["moving", "moving"]
    assert found.slowest == found.stalest == found.ranks[1]
    assert (found.ranks[1].rule, found.ranks[1].limit) == ("step", 100.0)
    assert found.ranks[1].age == pytest.approx(30, abs=0.01)
    assert found.up == pytest.approx(50, abs=0.01)
    assert found.step == 9
    assert found.step_time == pytest.approx(38 / 9, abs=0.01), "since the first sample of the last minute"
    assert found.deadline == pytest.approx(70, abs=0.01)
    assert found.next == "Rank 1 would be suspected in 70s: 30s without a step (timeout 100s, set by --hang-timeout)."
    assert found.left == {"hang": 3, "fault": 3, "failure": 0}
    assert found.problems == ()


def test_the_time_in_the_present_phase(run: MadeRun) -> None:
    run.rank(0, moved=2)
    run.status["since"] = run.now - 33
    assert seen(run).since == pytest.approx(33)
    run.gone()
    assert seen(run).since is None, "unknown after a kill"


def test_the_state_of_the_group_is_shown(run: MadeRun) -> None:
    run.rank(0, moved=2)
    run.ledger = run.ledger._replace(epoch=3)
    run.status["group"] = {"what": "run", "why": "rank 1 fell"}
    assert seen(run).group == "epoch 3, running"
    run.status |= {"phase": "pending", "attempt": None, "deadline": None}
    run.status["group"] = {"what": "stop", "why": "rank 1 (node-b) is lost"}
    found = seen(run)
    assert found.group == "epoch 3, all members stop, to start again: rank 1 (node-b) is lost"
    assert found.next == "The next start, once all members of the group are ready."


def test_a_command_that_job_control_has_stopped_is_not_healthy(run: MadeRun) -> None:
    run.rank(0, moved=45)
    run.attempt["stopped_at"] = run.now - 40
    found = seen(run)
    assert found.suspended == pytest.approx(40)
    assert headline(found).startswith("suspended by job control for 40s, attempt 1")
    assert condition(found) == 3


def test_a_done_or_gone_rank_is_neither_slowest_nor_stalest(run: MadeRun) -> None:
    run.rank(0, moved=90, FLAGS=at.DONE)
    run.rank(1, moved=90, START_TICKS=1)
    run.rank(2, moved=3)
    found = seen(run)
    assert [rank.state for rank in found.ranks] == ["done", "gone", "moving"]
    assert found.stalest == found.slowest == found.ranks[2]


def test_a_rank_that_has_not_moved_is_starting_and_an_earlier_start_says_how_long_one_takes(run: MadeRun) -> None:
    run.rank(0, moved=None, step=None)
    run.status["phase"] = "starting"
    found = seen(run)
    assert found.ranks[0].state == "starting"
    assert str(found.next).startswith("No time was given for the first heartbeat (--start-timeout)")
    run.attempt |= {"first_beat": 5.5, "moved": False}
    assert seen(run).first_beat == 5.5


@pytest.mark.parametrize("paused", [None, {"since": 0.0, "until": None, "by": "root"}])
def test_a_pause_makes_no_straggler(run: MadeRun, paused: Any) -> None:
    for rank in range(4):
        run.rank(rank, moved=60.0 if rank == 3 else 0.1, INTERVALS=50, USUAL=NS // 10, LONGEST=NS // 10)
    measured = [{"rank": rank, "pid": os.getpid(), "step_time": 0.1, "work": None} for rank in range(4)]
    (run.folder / "paces.json").write_text(json.dumps({"mono": run.now, "attempt": 1, "ranks": measured}))
    run.status["paused"] = paused
    assert [rank.rank for rank in seen(run).ranks if rank.straggler] == ([] if paused else [3])


def test_a_section_has_its_own_deadline(run: MadeRun) -> None:
    run.rank(0, moved=150, step=9)
    run.section(0, "checkpoint", began=120, timeout=600)
    found = seen(run)
    assert (found.ranks[0].state, found.ranks[0].section) == ("section", "checkpoint")
    assert found.next == "Rank 0 would be suspected in 8m: 2m in section 'checkpoint' (timeout 10m)."


def test_without_heartbeats_only_the_rules_that_apply_are_named(run: MadeRun) -> None:
    run.status["phase"] = "starting"
    found = seen(run)
    assert found.ranks == ()
    assert found.next == f"{sentences.HANGS_UNDETECTED[0].upper()}{sentences.HANGS_UNDETECTED[1:]}."
    auto = run.limits._replace(hang=None, auto=True, idle=1800.0)
    for words, limits, accelerator in (
        ("only deadlocks can be found", auto, False),
        ("only deadlocks and idleness can be found", auto, True),
        ("only deadlocks and idleness can be found", auto._replace(idle_given=True), False),
        ("only a first heartbeat that does not come can be found", auto._replace(auto=False, start=60.0), False),
        ("no hang can be found", auto._replace(auto=False), False),
    ):
        run.limits, run.attempt["accelerator"] = limits, accelerator
        assert str(seen(run).heartbeats).startswith(f"none so far: {words}; PyTorch, MindSpore")


def test_what_a_job_waits_for_is_shown(run: MadeRun) -> None:
    run.limits = run.limits._replace(hang=None, auto=True)
    run.status["phase"] = "starting"
    assert str(seen(run).next).startswith("A deadlock is found without a timeout; any other hang would not be detected")
    run.rank(0, moved=30, step=9)
    run.attempt["wait"] = "rank 0 waits for a reply from 10.0.0.7:443"
    found = seen(run)
    assert found.wait == "rank 0 waits for a reply from 10.0.0.7:443"
    assert f"wait        {found.wait}" in lines(found)
    run.status["phase"], run.limits = "running", run.limits._replace(start=None, section=None, idle=1800.0)
    assert str(seen(run).next).startswith("It would be suspected after 30m"), "and no line says that it works"


def test_between_two_rounds_the_next_one_is_announced_and_no_work(run: MadeRun) -> None:
    without_options(run)
    run.rank(0, moved=3, step=9)
    began = {"number": 1, "rung": "retry", "since": run.now - 3, "began": run.now - 30}
    run.attempt["rounds"] = began | {"stage": "meeting", "replacing": [], "awaited": [1], "why": "rank 0 asks for it"}
    run.status["deadline"] = run.now + 12
    assert seen(run).next == "The next round of the ranks, or the next level of recovery in 12s."
    run.attempt["rounds"]["stage"] = "proving"
    assert str(seen(run).next).startswith("The command works")


def test_where_looks_fail_no_line_says_that_deadlocks_are_found(run: MadeRun) -> None:
    run.limits = run.limits._replace(hang=None, auto=True, idle=1800.0)
    run.status["phase"], run.attempt["look_failed"] = "starting", "whether the job hangs is not known: no memory"
    found = seen(run)
    assert str(found.next).startswith("A hang would not be detected")
    assert str(found.heartbeats).startswith("none so far: no hang can be found")
    assert "warning     whether the job hangs is not known: no memory" in lines(found)
    run.rank(0, moved=30, step=9)
    run.status["phase"] = "running"
    assert str(seen(run).next).endswith("after 30m without any work (--idle-timeout).")


def test_a_given_start_timeout_is_active_from_the_spawn(run: MadeRun) -> None:
    run.limits = run.limits._replace(start=60.0)
    run.run["sources"]["start-timeout"] = "environment"
    run.status["phase"] = "starting"
    found = str(seen(run).next)
    assert found.startswith("The command would be suspected in 10s: 50s without a first ")
    assert found.endswith("(timeout 60s, set by FTRUN_START_TIMEOUT).")


def test_the_idle_rule_is_shown(run: MadeRun) -> None:
    run.attempt |= {"idle_since": run.now - 45, "accelerator": True}
    why = "the default, since the job uses an accelerator"
    assert seen(run).next == f"The command would be suspected in 29m 15s: 45s without any work (timeout 30m, {why})."


def test_without_a_given_time_hangs_are_proved(run: MadeRun) -> None:
    without_options(run)
    run.run["sources"]["hang-timeout"] = "default"
    run.rank(0, moved=10)
    found = seen(run)
    assert [(limit.name, limit.seconds) for limit in found.limits] == [
        ("hang", None),
        ("device-wait", 45.0),
        ("spin", 3600.0),
        ("idle", 1800.0),
    ]
    assert "timeouts hang auto default: what is proved to hang" in (" ".join(line.split()) for line in lines(found))
    assert found.stalest is not None
    assert (found.stalest.rank, found.stalest.limit) == (0, None)
    assert str(found.next).startswith("The command works; it would be suspected after 30m without any work")


def test_a_rank_that_computes_in_one_function_has_a_limit(run: MadeRun) -> None:
    without_options(run)
    run.rank(0, moved=1000)
    since = {"still": run.now - 1000, "since": run.now - 980}
    run.attempt["spin"] = {"rank": 0, **since, "why": "rank 0 computes at train.py:7"}
    words = "Rank 0 would be suspected in 43m 40s, or sooner if it is deadlocked: 16m 20s"
    assert str(seen(run).next).startswith(words)


def test_a_stall_is_shown_until_the_rank_moves(run: MadeRun) -> None:
    without_options(run)
    run.rank(0, moved=720)
    run.attempt |= {"stalled": {"rank": 0, "since": run.now - 720}, "wait": "rank 0 waits for a timer"}
    found = seen(run)
    assert found.stalled is not None
    assert found.stalled.age == pytest.approx(720, abs=5)
    assert "stalled, rank 0 has not moved for 12m" in headline(found)
    (line,) = (text for text in lines(found, 1000) if text.startswith("stalled"))
    assert "`ftctl restart` starts it again" in line
    assert [rank.state for rank in found.ranks if rank.rank == 0] == ["stalled"], "and not moving"
    run.rank(0, moved=10)
    assert seen(run).stalled is None


def test_a_hang_whose_cause_another_member_may_know_is_shown_with_the_time_that_is_left_for_it(run: MadeRun) -> None:
    run.rank(0, moved=100)
    rounds = {"number": 1, "stage": "settling", "rung": None, "replacing": [], "awaited": [], "why": "rank 0 stopped"}
    run.attempt["rounds"] = rounds | {"since": run.now - 15, "began": run.now - 200, "lacks_culprit": True}
    found = "a hang was found for 15s: rank 0 stopped; another member may show which rank causes it, else all restart"
    assert seen(run).recovery == f"{found} in 30s"
    run.attempt["rounds"] |= {"lacks_culprit": False}
    assert seen(run).recovery == "a collective failed for 15s: rank 0 stopped; the death of a rank may be the reason"


def test_ages_do_not_grow_during_a_pause(run: MadeRun) -> None:
    run.rank(0, moved=95)
    run.status["paused"] = {"since": run.now - 60, "until": run.now + 1200}
    found = seen(run)
    assert found.paused == pytest.approx(60)
    assert found.resumes == pytest.approx(1200)
    assert found.next == "Paused: hangs and faults are not acted on; verdicts resume in 20m."
    assert found.ranks[0].age == pytest.approx(35, abs=0.01)


FOUND = {"rank": 1, "age": 9.0, "limit": 8.0}
NEXT_ACTIONS: list[tuple[dict[str, Any], float | None, str]] = [
    ({"phase": "pending", "want": {"want": "again"}}, 8, "Restart in 8s (backoff)."),
    ({"phase": "stopping", "stage": "term"}, 4, "SIGKILL in 4s."),
    (
        {"phase": "stopping", "stage": "kill"},
        50,
        "The node is declared unusable in 50s (197) if processes survive SIGKILL.",
    ),
    (
        {"phase": "stopping", "stage": "asked"},
        None,
        "A signal from outside asked the command to exit; its exit is awaited.",
    ),
    ({"phase": "healing"}, 180, "Healing is given up in 3m, and ftrun exits with 197."),
    (
        {"phase": "healing", "held": "hands off"},
        180,
        "The platform does not permit a start: hands off; given up in 3m.",
    ),
    (
        {"phase": "suspect", "finding": FOUND | {"rule": "step", "rank": 3}},
        28,
        "The verdict on rank 3 follows in 28s at the latest; evidence is being collected.",
    ),
    (
        {"phase": "suspect", "finding": FOUND | {"rule": "deadlock", "mechanism": "it waits for itself"}},
        28,
        "Rank 1 was proved to be deadlocked: it waits for itself; the verdict follows in 28s at the latest; evidence "
        "is being collected.",
    ),
    (
        {"phase": "suspect", "finding": FOUND | {"rule": "spin", "mechanism": "rank 1 computes at train.py:7"}},
        28,
        "Rank 1 computes at train.py:7; the verdict follows in 28s at the latest; evidence is being collected.",
    ),
    ({"phase": "launching"}, None, "The command is being executed."),
    (
        {"phase": "pending", "attempt": None, "awaits": ["devices", "history"]},
        8,
        "The first start, once the devices are checked and the state dir is read, or in 8s without an answer.",
    ),
    (
        {"phase": "pending", "attempt": None, "spare": True},
        None,
        "The place of a lost member, or a further one, at the next restart of all.",
    ),
]


@pytest.mark.parametrize(("status", "left", "text"), NEXT_ACTIONS, ids=range(len(NEXT_ACTIONS)))
def test_the_next_action_is_a_sentence(run: MadeRun, status: dict[str, object], left: float | None, text: str) -> None:
    run.status |= status | {"deadline": None if left is None else run.now + left}
    found = seen(run)
    assert found.next == text
    assert found.deadline == (None if left is None else pytest.approx(left, abs=0.01))


def test_an_ftrun_that_waits_in_the_run_dir_of_one_that_has_ended_is_shown_as_waiting(run: MadeRun) -> None:
    run.record("ended", ago=40, verdict="succeeded", exit_code=0)
    run.run["began"] = records.timestamp(time.time_ns(), time.gmtime())
    run.status |= {"phase": "pending", "deadline": None, "attempt": None, "group": {"what": "wait", "why": ""}}
    found = seen(run)
    assert (found.alive, found.phase, found.exit_code, found.ended) == (True, "waiting", None, None)
    assert headline(found).startswith("waiting")
    run.gone()
    assert seen(run).phase == "cut off", "the one that waited was killed"


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_has_ended_whatever_the_wall_clock_said_when_it_began(run: MadeRun, saved: bool) -> None:
    run.record("ended", verdict="succeeded", exit_code=0)
    run.run["began"] = "2100-01-01T00:00:00.000Z"  # before NTP has corrected a clock that was fast
    run.rest["ended"] = saved  # False: ftrun was killed after its last record
    run.status |= {"phase": "done", "attempt": None} if saved else {"phase": "stopping"}
    run.gone()
    found = seen(run)
    assert (found.phase, found.exit_code, condition(found)) == ("done", 0, 0)


def test_a_member_that_has_finished_first_is_no_trouble(run: MadeRun) -> None:
    want = {"want": "finish", "code": 0, "verdict": "succeeded", "why": ""}
    run.status |= {"phase": "stopping", "stage": "verdict", "want": want}
    found = seen(run)
    assert (found.phase, condition(found)) == ("finished", 0)
    assert found.next == "The end, once the commands of the other members have ended."
    rows = (MemberRow(0, "a", "running", "", 1, run.now), own_row(found, 1, "b", run.now))
    other = found._replace(phase="running")
    assert group.marked(other, GroupNow(2, 0, 1, "run", "", (), rows, {0: 0.0, 1: 0.0})).job is None
    run.status["want"] = want | {"code": 7}
    found = seen(run)
    assert (found.phase, found.next) == ("stopping", "The verdict of the group, which is awaited.")


def test_checkpoints_have_an_age(run: MadeRun) -> None:
    run.record("progress", ago=25, by="checkpoint", step=5, checkpoint="/c/5")
    run.record("progress", ago=20, by="step", step=6)
    run.ledger = run.ledger._replace(last_checkpoint="/c/5", best_checkpoint=5)
    found = seen(run)
    assert (found.checkpoint, found.checkpoint_step) == ("/c/5", 5)
    assert found.checkpoint_age == pytest.approx(25, abs=5)
    run.rank(0, CHECKPOINT_AT=int((run.now - 3) * NS), CHECKPOINT_STEP=6)
    assert seen(run).checkpoint_age == pytest.approx(3, abs=0.01), "the rank reported it"


def test_lost_time_and_goodput(run: MadeRun) -> None:
    account = Account(
        wall=100.0,
        kept=60.0,
        lost=LostTime(hang=30.0),
        restarts=RestartCounts(hang=2),
        open=10.0,
        begun=True,
        stepped=True,
    )
    account = account._replace(at=run.now - 5)
    run.ledger = run.ledger._replace(account=account)
    found = seen(run)
    assert found.wall == pytest.approx(105, abs=0.01)
    assert found.goodput == pytest.approx(75 / 105, abs=0.01)
    assert found.lost == {"hang": 30.0}
    assert found.restarts["hang"] == 2


HANG: dict[str, Any] = {
    "rule": "step",
    "rank": 3,
    "age": 41.0,
    "limit": 38.0,
    "step": 812,
    "why": "collectives.py:88 all_reduce",
}


def test_the_last_incident_is_a_hang_with_its_report(run: MadeRun) -> None:
    report = run.folder / "reports" / "attempt-1" / "report.md"
    report.parent.mkdir(parents=True)
    report.touch()
    run.record("hang", ago=9, **HANG)
    run.record("stopping", ago=9, by="SIGTERM")
    run.record("exited", ago=8, signal=15)
    run.record("restart", 2, ago=8, reason="hang", start_cnt=2, consecutive=1)
    found = seen(run).trouble
    assert found is not None
    assert (found.cause, found.attempt, found.report) == ("hang", 1, str(report))
    assert found.why == "rank 3 stopped at step 812, 41s ago (limit 38s), at collectives.py:88 all_reduce"


WARNING = ("fault", {"device": "GPU-1", "code": "13", "severity": "warning"})
PREEXISTING = ("fault", {"device": "GPU-1", "code": "46", "severity": "major", "preexisting": True})
LOST = ("fault", {"device": "GPU-1", "code": "79", "severity": "critical", "why": "fell off the bus"})
FAILED = [("exited", {"code": 3, "why": "ValueError: no"}), ("stopping", {"by": "SIGTERM"})]
ASKED = [("stopping", {"by": "outside", "signal": 15}), ("problem", {"what": "else"}), ("exited", {"signal": 15})]


@pytest.mark.parametrize(
    ("happened", "incident"),
    [
        (FAILED, ("failure", "ValueError: no")),
        (ASKED, None),
        ([WARNING], None),
        ([PREEXISTING], None),
        ([WARNING, LOST], ("fault", "device GPU-1 reported 79: fell off the bus")),
    ],
    ids=["a failure", "a stop that was asked for", "a warning", "one before the first start", "a fault"],
)
def test_what_is_an_incident(run: MadeRun, happened: Any, incident: tuple[str, str] | None) -> None:
    for event, fields in happened:
        run.record(event, **fields)
    found = seen(run).trouble
    assert (found and (found.cause, found.why)) == incident
    assert found is None or found.report is None


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"cause": "failure", "node": "b"}, "attempt 2 after a failure on b"),
        ({"cause": "manual", "node": "b"}, "attempt 2 after an operator command on b"),
        ({"cause": "peer"}, "attempt 2 after the loss of a member"),
        ({"cause": None}, "attempt 2 after another member stopped"),
    ],
)
def test_a_restart_of_a_group_names_what_happened_elsewhere(run: MadeRun, order: Any, words: str) -> None:
    run.ledger = run.ledger._replace(start_cnt=2, reason="peer")
    run.record("started", reason="first")
    run.record("group", what="stop", epoch=1, **order)
    run.record("group", what="run", epoch=2)
    run.record("restart", 2, reason="peer")
    assert words in headline(seen(run))


def test_a_restart_of_a_group_has_the_cause_that_is_known_only_with_the_start(run: MadeRun) -> None:
    """As when an operator restarts it: the member that was asked reports that once its command has ended."""
    run.ledger = run.ledger._replace(start_cnt=2, reason="peer")
    run.record("group", what="run", epoch=1, cause="first")
    run.record("started", reason="first")
    run.record("group", what="stop", epoch=1, node="b", member=1)
    run.record("group", what="run", epoch=2, cause="manual", node="b", member=1)
    run.record("restart", 2, reason="peer")
    assert "attempt 2 after an operator command on b" in headline(seen(run))
    run.status |= {"phase": "pending", "attempt": None, "deadline": None, "group": {"what": "wait", "why": ""}}
    assert "the start waits for the other members of the group" in headline(seen(run))


def test_a_snapshot_of_1024_ranks_and_many_records_is_cheap_and_finds_an_incident_of_long_ago(
    run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.ledger = run.ledger._replace(start_cnt=2)
    for rank in range(1024):
        run.rank(rank)
    run.record("hang", ago=9, **HANG)
    run.record("spawned", 2)
    for number in range(20_000):
        run.record("progress", 2, by="checkpoint", step=number, checkpoint=f"/c/{number}")
    path, texts, parse = run.write(), list[bytes](), record_files._json

    def noted(content: bytes) -> object:
        texts.append(content)
        return parse(content)

    monkeypatch.setattr(record_files, "_json", noted)
    found = read_snapshot(path).trouble
    assert found is not None
    assert found.cause == "hang"
    assert sum(map(len, run.lines)) > 2 << 20
    assert 1 <= len(texts) < 20, "of 20,000 records"


def test_after_the_end_there_is_a_verdict_and_no_budget_until_a_new_start(run: MadeRun) -> None:
    run.record("ended", verdict="hang-limit", exit_code=195, why="again and again")
    run.status |= {"phase": "done", "attempt": None}
    found = seen(run)
    assert (found.alive, found.phase, found.verdict, found.exit_code) == (False, "done", "hang-limit", 195)
    assert (found.why, found.next) == ("again and again", None)
    assert (found.counts, found.left) == ({}, {}), "a new run begins with a full budget"
    run.record("started", 2, reason="failure", start_cnt=2)
    run.status |= {"phase": "running", "attempt": run.attempt}
    found = seen(run)
    assert (found.alive, found.phase, found.verdict) == (True, "running", None)


def test_a_killed_ftrun_is_cut_off(run: MadeRun) -> None:
    run.rank(0, moved=2, START_TICKS=1)
    run.gone()
    run.ledger = run.ledger._replace(account=Account(wall=59.0, at=run.now - 1))
    found = seen(run)
    assert (found.alive, found.phase, found.problems) == (False, "cut off", ())
    assert (found.ranks[0].state, found.ranks[0].age) == ("gone", None), "no rule is active"
    assert found.ranks[0].moved == pytest.approx(1, abs=0.01), "as it was at the end"


def test_ranks_that_run_on_after_ftrun_are_a_problem(run: MadeRun) -> None:
    run.record("progress", ago=25, by="checkpoint", step=5, checkpoint="/c/5")
    run.ledger = run.ledger._replace(last_checkpoint="/c/5", best_checkpoint=5, account=Account(at=run.now - 24))
    run.rank(0, moved=0.5, step=95, CHECKPOINT_AT=int((run.now - 3) * NS), CHECKPOINT_STEP=90)
    run.gone()
    found = seen(run)
    assert (found.phase, found.step, found.checkpoint_step, found.ranks) == ("cut off", 7, 5, ())
    assert found.checkpoint_age == pytest.approx(25, abs=5)
    assert found.problems == ("1 rank still runs, unsupervised; the rest is as of the end of ftrun",)


def test_another_process_with_the_number_of_a_rank_is_no_rank_that_runs_on(run: MadeRun) -> None:
    """As number 2 of a container that was killed, which is a thread of the kernel out here."""
    run.rank(0, moved=0.5, START_TICKS=1, ALIVE_AT=int((run.now - 0.5) * NS))
    run.gone()
    assert seen(run).problems == ()


def test_a_process_that_nobody_has_reaped_does_not_run(run: MadeRun) -> None:
    child = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        run.rank(0, moved=0.5, PID=child.pid, ALIVE_AT=int((run.now - 0.5) * NS))
        run.gone()
        assert seen(run).problems == (), "its heartbeat is fresh, but it is a zombie"
    finally:
        child.wait()


def test_the_age_of_a_checkpoint_counts_on_after_the_end(run: MadeRun) -> None:
    run.record("progress", ago=500, by="checkpoint", step=5, checkpoint="/c/5")
    run.record("suspect", ago=400)
    run.ledger = run.ledger._replace(last_checkpoint="/c/5", account=Account(wall=59.0, at=run.now - 400))
    run.gone()
    found = seen(run)
    assert found.checkpoint_age is not None
    assert found.checkpoint_age >= 499
    assert found.checkpoint_time is not None
    assert found.ended is not None


def test_another_boot_has_another_clock(run: MadeRun) -> None:
    run.rank(0, moved=2)
    run.run["boot"] = "another"
    found = seen(run)
    assert (found.alive, found.phase, found.ranks) == (False, "cut off", ())


def test_devices_are_those_of_the_probe(run: MadeRun) -> None:
    path = Path(run.write())
    device = {"vendor": "nvidia", "id": "GPU-1", "index": 0, "name": "H100", "util": 97.0, "memory_used": 5}
    device |= {"power": 650.5, "health": "GPU is lost", "recovery": "reboot"}
    (path / "devices.json").write_text(json.dumps({"mono": run.now - 4, "devices": [device]}))
    (found,) = read_snapshot(str(path), run.now).devices
    assert found[:6] == ("GPU-1", "H100", 97.0, 5, None, 650.5)
    assert found.age == pytest.approx(4, abs=0.01)
    assert (found.index, found.health, found.recovery) == (0, "GPU is lost", "reboot")
    (path / "devices.json").write_text('{"mono": "x", "devices": 7}')
    assert read_snapshot(str(path), run.now).devices == ()


# --- damaged and missing files ----------------------------------------------------------------------------------------


def test_without_a_state_nothing_is_shown_as_zero(run: MadeRun) -> None:
    path = Path(run.write())
    (path / "state.json").write_bytes(b"torn")
    found = read_snapshot(str(path), run.now)
    assert (found.restarts, found.counts, found.left, found.wall, found.schedule_cnt) == ({}, {}, {}, None, None)
    assert not any(line.startswith(("restarts", "goodput")) for line in lines(found))
    for number in (2, 3):
        run.record("restart", number, reason="hang", start_cnt=number)
    run.write()
    (path / "state.json").unlink()
    found = read_snapshot(str(path), run.now)
    assert (found.attempt, found.reason, found.restarts) == (3, "hang", {"hang": 2})
    assert "restarts    2 after a hang" in lines(found)


def test_an_unreadable_state_is_a_problem(run: MadeRun) -> None:
    run.rank(0)
    path = Path(run.write())
    whole = (path / "state.json").read_bytes()
    torn = [whole[:length] for length in range(0, len(whole.rstrip()), 97)]
    for content in (*torn, b"{", b"null", b'{"schema": 2}', b"\0" * 512, b"[" * 100_000):
        (path / "state.json").write_bytes(content)
        found = read_snapshot(str(path), run.now)
        assert (found.phase, found.attempt, found.alive) == ("cut off", 1, False), "as the records say"
        (problem,) = found.problems
        assert "state.json" in problem
        assert "\n" not in problem


@pytest.mark.parametrize(
    "part",
    [
        {"attempt": {"number": "x"}},
        {"attempt": 7},
        {"paused": {"since": None}},
        {"deadline": "soon", "phase": "healing"},
        {"attempt": {"spawned_at": 1, "idle_since": None}},
    ],
    ids=range(5),
)
def test_a_malformed_part_of_the_state_is_a_problem(run: MadeRun, part: dict[str, object]) -> None:
    run.status |= part
    found = seen(run)
    assert "malformed" in found.problems[0]
    assert found.step == 7, "the ledger is valid"


def test_heartbeats_that_cannot_be_read_are_a_problem(run: MadeRun) -> None:
    run.write()
    os.truncate(run.beats / at.BEATS, 100)
    assert "truncated" in read_snapshot(str(run.folder), run.now).problems[0]
    run.close()
    found = read_snapshot(str(run.folder), run.now)
    assert found.alive
    assert "was deleted by the command" in found.problems[0]
    assert headline(found).endswith("its heartbeats cannot be read from here"), "there have been some"


def test_damaged_records_are_skipped(run: MadeRun) -> None:
    run.lines.insert(1, b"\xff\xfe not ours\n")
    run.lines.insert(2, b'{"event": 7}\n')
    run.lines.insert(3, b"[" * 100_000 + b"\n")
    run.record("hang", rule="step", rank=0, age=2.0, limit=1.0)
    run.lines.append(b"x" * (10 << 20) + b"\n")
    run.record("problem", what="the last")
    run.lines.append(b'{"schema": 1, "ti')
    found = seen(run)
    assert found.alive
    assert found.problems == ()


def test_no_run_dir(tmp_path: Path) -> None:
    with pytest.raises(NoRunDir, match="no such folder"):
        read_snapshot(str(tmp_path / "none"))
    with pytest.raises(NoRunDir, match=r"it has no events\.jsonl"):
        read_snapshot(str(tmp_path))
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(NoRunDir, match="is not a file"):
        read_snapshot(str(tmp_path))


def test_a_full_disk_is_a_problem(run: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.record("started", reason="first", start_cnt=1)
    path = run.write()
    assert not read_snapshot(path).full_disk
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    shown = read_snapshot(path)
    assert headline(shown).startswith("THE DISK OF THE RUN DIR IS FULL, what follows may be out of date: running")
    assert lines(shown)[0].startswith("do          free space on the disk of")
