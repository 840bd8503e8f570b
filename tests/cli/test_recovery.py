"""End to end: a hang is found, ended and restarted in place, and training continues; a healthy job is left alone."""

import json
import os
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest

from support.runs import FTHANG, Run, Runs, python, state_of, wait_for
from support.short import quick

HANG = ("--hang-timeout", "1s", "--grace", "off")
FAST = ("--step-time", "2ms", "--after", "7", "--steps", "20", "--checkpoint-every", "5")
SHOW = (
    "import os; open('seen', 'a').write(repr({k: v for k, v in os.environ.items() if k[:2] in ('MA', 'FT')}) + '\\n')\n"
)


def seen(runs: Runs) -> list[dict[str, str]]:
    """The variables that each start of a program that begins with SHOW was given."""
    return [eval(line) for line in (runs.folder / "seen").read_text().splitlines()]


def only(run: Run, event: str) -> dict[str, object]:
    (record,) = run.named(event)
    return record


@pytest.mark.parametrize("kind", quick(["stop", "spin"]))
def test_hang_is_found_and_training_resumes_in_place(runs: Runs, kind: str) -> None:
    run = runs.ends(0, *HANG, *FTHANG, *FAST, kind)
    assert f"hanging: {kind}" in run.stdout
    assert "start 2 (restart after hang): resumed at step 5" in run.stdout
    assert "finished at step 20" in run.stdout
    found = only(run, "hang")
    assert (found["rule"], found["rank"], found["step"], found["limit"]) == ("step", 0, 7, 1.0)
    assert 1 <= float(str(found["age"])) < 60
    again = only(run, "restart")
    assert (again["reason"], again["start_cnt"], again["consecutive"]) == ("hang", 2, 1)
    assert runs.verdict["verdict"] == "succeeded"
    wait_for(lambda: not runs.living(), "that nothing of it is left")  # helpers of ftrun end after it
    last = 0.0
    for record in run.records:
        assert list(record)[:5] == ["schema", "time", "mono", "event", "attempt"]
        assert record["schema"] == 1
        assert datetime.strptime(record["time"], "%Y-%m-%dT%H:%M:%S.%fZ")
        assert record["mono"] >= last
        last = record["mono"]
    assert [r["attempt"] for r in run.named("spawned")] == [1, 2]
    state = run.state
    assert (state["schema"], state["start_cnt"], state["hang"], state["ended"]) == (2, 2, 0, True)
    assert (state["best_checkpoint"], state["last_step"]) == (20, 20)
    log = (run.run_dir / "run.log").read_text()
    assert "restart 1 of 3 without progress" in log
    assert "Traceback" not in log + run.stderr


def test_after_limit_fail_ends_with_93(runs: Runs) -> None:
    """Here a given start timeout, which applies without any heartbeat."""
    options = ("--start-timeout", "700ms", "--grace", "off", "--after-limit", "fail", "--max-restarts", "0")
    run = runs.ends(93, *options, *FTHANG, *FAST, "--no-hooks", "nobeat")
    assert only(run, "ended")["verdict"] == "failure-limit"
    found = only(run, "hang")
    assert (found["rule"], found["rank"], found["limit"]) == ("start", None, 0.7)


def test_fourth_hang_in_a_row_ends_with_195(runs: Runs) -> None:
    run = runs.ends(195, *HANG, *FTHANG, *FAST, "--times", "9", "sleep")
    assert len(run.named("hang")) == 4
    assert [(r["start_cnt"], r["consecutive"], r["attempt"]) for r in run.named("restart")] == [
        (2, 1, 2),
        (3, 2, 3),
        (4, 3, 4),
    ]
    attempt = ["spawned", "first_beat", "suspect", "hang", "stopping", "exited", "killed"]
    assert [event for event in run.order if event != "progress"] == [
        *("started", *attempt),
        *("restart", *attempt) * 2,
        *("restart", *attempt[:4], "escalated", *attempt[4:], "ended"),
    ]
    escalated = only(run, "escalated")
    assert (escalated["cause"], escalated["verdict"], escalated["exit_code"]) == ("hang", "hang-limit", 195)
    verdict = runs.verdict
    assert (verdict["verdict"], verdict["exit_code"], verdict["start_cnt"]) == ("hang-limit", 195, 4)
    assert (verdict["schema"], verdict["last_step"], verdict["run_dir"]) == (1, 7, str(run.run_dir))
    assert str(verdict["last_checkpoint"]).endswith("checkpoint-00000005.json")
    assert "stopped at step 7" in verdict["message"]
    assert "195 (hang-limit)" in run.stderr


def test_records_are_written_before_their_effects(runs: Runs) -> None:
    """A command that reads the records at its SIGTERM and at its next start finds the reason there."""
    code = (
        "import os, signal, time\n"
        "def copy(*_):\n"
        "    open('copy', 'a').write(open(os.environ['FTRUN_RUN_DIR'] + '/events.jsonl').read() + '---\\n')\n"
        "    os._exit(0)\n"
        "if ft.attempt().is_restart: copy()\n"
        "signal.signal(signal.SIGTERM, copy); ft.beat(); time.sleep(3600)\n"
    )
    runs.ends(0, "--hang-timeout", "500ms", "--grace", "30s", *python(code))
    first, second, _ = (runs.folder / "copy").read_text().split("---\n")
    names = [[json.loads(line)["event"] for line in part.splitlines()] for part in (first, second)]
    assert names[0][-3:] == ["suspect", "hang", "stopping"]
    assert "restart" in names[1]


def test_failure_is_passed_on_by_default(runs: Runs) -> None:
    run = runs.ends(7, *FTHANG, *FAST, "crash", "7")
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("failed", 7)
    assert "restart" not in run.order
    assert run.stderr.startswith("[ftrun] ended with 7 (failed) after ")
    assert run.stderr.count("\n") == 1


RANKS = """
import os, time
def rank(number, work):
    if os.fork() == 0:
        os.environ['RANK'] = str(number)
        work()
        os._exit(0)
def train(steps, pause=0.02):
    for step in range(steps):
        ft.beat(step); time.sleep(pause)
def wait():
    try:
        while True: os.wait()
    except ChildProcessError: pass
again = ft.attempt().is_restart
"""


def test_hang_of_one_rank_is_a_hang_of_the_job(runs: Runs) -> None:
    code = "rank(0, lambda: train(100 if again else 10**6))\n"
    code += "rank(1, lambda: (train(5), again or time.sleep(3600)))\nwait()"
    run = runs.ends(0, *HANG, *python(RANKS + code))
    found = only(run, "hang")
    assert (found["rank"], found["step"]) == (1, 4)


def test_rank_that_is_done_or_gone_is_not_suspected(runs: Runs) -> None:
    code = "rank(0, lambda: train(160, 0.025))\nrank(1, lambda: (train(5), ft.done(), time.sleep(4)))\n"
    code += "rank(2, lambda: train(3))\nwait()"
    run = runs.ends(0, "--hang-timeout", "3s", *python(RANKS + code))
    assert "hang" not in run.order


def test_side_thread_does_not_hide_a_hung_main_thread(runs: Runs) -> None:
    code = """
import threading, time
def keep_alive():
    while True: ft.beat(); time.sleep(0.02)
if ft.attempt().is_restart: sys.exit(0)
ft.beat(1); threading.Thread(target=keep_alive, daemon=True).start(); time.sleep(3600)
"""
    run = runs.ends(0, *HANG, *python(code))
    assert only(run, "hang")["rule"] == "step"


def test_timeout_of_an_outer_section_includes_its_inner_ones(runs: Runs) -> None:
    code = """
import time
if ft.attempt().is_restart: open('last', 'w').write(repr(ft.attempt().last_section)); sys.exit(0)
ft.beat(1)
with ft.section('evaluate', timeout='1s'):
    while True:
        with ft.section('batch', timeout='1h'): ft.beat(); time.sleep(0.02)
"""
    run = runs.ends(0, "--grace", "off", *python(code))
    found = only(run, "hang")
    assert (found["rule"], found["section"], found["limit"]) == ("section", "evaluate", 1.0)
    assert (runs.folder / "last").read_text() == "'evaluate'", "the outermost one"


def test_given_hang_timeout_applies_in_sections_that_the_hooks_open_by_themselves(runs: Runs) -> None:
    code = "import time\nfrom ftrun_hooks._section import Automatic\nft.beat(1)\n"
    code += "with Automatic('torch.save'): time.sleep(600)\n"
    run = runs.ends(195, *HANG, "--max-restarts", "0", *python(code))
    found = only(run, "hang")
    assert (found["rule"], found["section"], found["limit"]) == ("section", "torch.save", 1.0)


def test_each_start_gets_its_number_and_reason(runs: Runs) -> None:
    code = SHOW + (
        "import time\nstart = ft.attempt().start_cnt\n"
        "if start == 3: sys.exit(0)\n"
        "ft.beat(4 + start); ft.checkpoint(4 + start, f'/ckpt/{start}')\n"
        "with ft.section('load'): pass\n"
        "with ft.section('collective', timeout=0.5): time.sleep(3600)"
    )
    inner = {"FTRUN_RESTART_REASON": "peer", "FTRUN_LAST_STEP": "99", "FTRUN_BEAT_DIR": "/nowhere"}
    run = runs.ends(0, "--grace", "off", *python(code), **inner)
    first, second, third = seen(runs)
    assert [given["MA_PROC_START_CNT"] for given in (first, second, third)] == ["1", "2", "3"]
    assert {given["MA_SCHEDULE_CNT"] for given in (first, second, third)} == {"1"}
    assert [given["FTRUN_RESTART_REASON"] for given in (first, second, third)] == ["first", "hang", "hang"]
    assert {given["FTRUN_RUN_DIR"] for given in (first, second, third)} == {str(run.run_dir)}
    assert first["FTRUN_BEAT_DIR"].startswith("/")
    assert not Path(first["FTRUN_BEAT_DIR"]).exists()
    assert not {"FTRUN_LAST_STEP", "FTRUN_LAST_CHECKPOINT", "FTRUN_LAST_SECTION"} & set(first)
    assert (second["FTRUN_LAST_STEP"], second["FTRUN_LAST_CHECKPOINT"]) == ("5", "/ckpt/1")
    assert (third["FTRUN_LAST_STEP"], third["FTRUN_LAST_SECTION"]) == ("6", "collective")


def test_progress_restores_the_restart_budget(runs: Runs) -> None:
    code = "s = ft.attempt().start_cnt; ft.checkpoint(s); sys.exit(s < 4)"
    run = runs.ends(0, "--restart-on", "failure", "--backoff", "1ms", "--max-restarts", "1", *python(code))
    assert [r["consecutive"] for r in run.named("restart")] == [1] * 3


TRAINS = ("--step-time", "20ms", "--checkpoint-every", "1000", "--steps", "150", "none")


def progressed(run: Run, steps: int) -> bool:
    return run.stdout.count("step ") > steps


def test_time_in_which_everything_was_stopped_does_not_count(runs: Runs) -> None:
    run = runs.start("--hang-timeout", "2s", *FTHANG, *TRAINS)
    command = run.until("spawned")["pid"]
    wait_for(lambda: progressed(run, 10), "steps")
    for pid in (run.pid, command):
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: state_of(run.pid) == state_of(command) == "T", "both are stopped")
    time.sleep(3.5)  # nothing to wait for but the time itself: longer than the hang timeout
    for pid in (command, run.pid):
        os.kill(pid, signal.SIGCONT)
    assert run.wait() == 0, run.log()
    assert not run.named("hang", "restart"), run.log()
    assert "finished at step 150" in run.stdout


def test_stopped_ftrun_does_not_disturb_the_training(runs: Runs) -> None:
    run = runs.start("--hang-timeout", "2s", *FTHANG, *TRAINS)
    run.until("first_beat")
    os.kill(run.pid, signal.SIGSTOP)
    wait_for(lambda: "finished at step 150" in run.stdout, "training goes on")
    os.kill(run.pid, signal.SIGCONT)
    assert run.wait() == 0, run.log()
    assert not run.named("suspect", "hang", "restart")


def test_touch_file_is_a_heartbeat_and_its_silence_a_hang(runs: Runs) -> None:
    code = """
[ $MA_PROC_START_CNT = 1 ] || exit 0
i=0; while [ $i -lt 15 ]; do touch $FTRUN_BEAT_DIR/touch; sleep 0.2; i=$((i+1)); done
echo silent; exec sleep 3600
"""
    run = runs.ends(0, *HANG, "sh", "-c", code)
    assert "silent" in run.stdout, "not while it was touched"
    assert only(run, "hang")["rank"] == -1
