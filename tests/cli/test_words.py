"""The lines of ftrun: what happened, why, and what follows; and how a run ended."""

import json
import re
from pathlib import Path

import pytest

from ftrun.core.machine.effects import Exit
from ftrun.core.machine.values import TOUCH, Finding, Ledger
from ftrun.core.rules import exit_codes, hang_rules
from ftrun.core.text import sentences
from support.runs import Run, Runs, python, wait_for

LONGEST = 300  # characters of a line, its report's path not counted


def ours(run: Run) -> list[str]:
    return [line for line in run.stderr.splitlines() if line.startswith("[ftrun] ")]


# --- of values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (Finding("step", 3, 41, 38, 812), "rank 3 stopped at step 812, 41s ago (limit 38s)"),
        (Finding("step", 3, 41, 38), "rank 3 stopped 41s ago (limit 38s)"),
        (Finding("step", TOUCH, 41, 38), "the touch file was last touched 41s ago (limit 38s)"),
        (Finding("start", 0, 41, 40), "rank 0 sent no heartbeat in its first 41s (limit 40s)"),
        (Finding("start", None, 41, 40), "the command sent no heartbeat in its first 41s (limit 40s)"),
        (Finding("section", 1, 301, 300, 7, "eval"), "rank 1 has been in section 'eval' for 5m 1s (limit 5m)"),
        (
            Finding("idle", None, 1860, 1800),
            "the command has been idle for 31m (limit 30m): no I/O, and no change on its devices",
        ),
    ],
)
def test_sentence_of_each_finding(found: Finding, sentence: str) -> None:
    assert hang_rules.sentence(found) == sentence


def test_clauses_of_the_available_evidence() -> None:
    seen = {"why": "train.py:12 step, in collectives.py:88 all_reduce", "processes": 9, "report": "/run/report.md"}
    assert sentences.mechanism(seen) == "stack: train.py:12 step, in collectives.py:88 all_reduce"
    assert sentences.mechanism(seen | {"mechanism": "rank 0 sleeps"}) == "rank 0 sleeps"
    assert (sentences.killing(seen), sentences.report(seen)) == ("killing 9 processes", "report: /run/report.md")
    assert (sentences.mechanism({}), sentences.killing({}), sentences.report({})) == ("", "killing the command", "")
    assert sentences.killing({"processes": 1}) == "killing 1 process"
    assert sentences.report({"report": None}) == "no report could be written"
    assert sentences.mechanism({"evidence": "none in time"}) == "evidence: none in time"
    assert len(sentences.mechanism({"why": "x" * 500})) < 180


def test_a_long_text_keeps_both_ends() -> None:
    assert sentences.short("a failed assertion fails again", 30) == "a failed assertion fails again"
    assert sentences.short("a failed assertion fails again", 20) == "a failed ass...again"
    assert [len(sentences.short("x" * 99, most)) for most in (3, 4, 5, 50, 98, 99)] == [3, 4, 5, 50, 98, 99]


def test_a_reason_that_is_too_long_loses_its_stack_first_and_its_middle_never() -> None:
    ends = "waits for an item in a queue at deadlock.py:25, which only its own threads can end"
    proved = hang_rules.sentence(Finding("deadlock", 0, 28, 15, mechanism=f"deadlock: rank 0, main thread, {ends}"))
    why = f"{proved}; stack: deadlock.py:25 <module>, in {'q' * 99}.py:171 get"
    assert sentences.reason(why) == proved
    assert proved.endswith(ends)
    assert (
        sentences.reason(f"{why}; not every rank could be restarted") == f"{proved}; not every rank could be restarted"
    )
    mechanism = " ".join(f"rank {number} in barrier at ddp.py:{number}9," for number in range(20))
    long = hang_rules.sentence(Finding("deadlock", 0, 28, 15, mechanism=mechanism))
    assert 200 < len(long) <= sentences.REASON
    assert re.search(r" rank \d in barrier at ddp\.py:\d+\.\.\.$| (rank|\d|in|barrier|at)\.\.\.$", long), (
        "at the end of a word"
    )
    assert sentences.reason(f"{long}; stack: ddp.py:9 _engine_run_backward") == long
    assert sentences.mechanism({"mechanism": mechanism}).startswith(mechanism[:130])


ENDED = Exit(0, exit_codes.SUCCEEDED, "the command exited with 0")


def test_plain_command_that_ended_by_itself_has_no_last_line() -> None:
    plain = Ledger(start_cnt=1)
    assert sentences.last_lines(ENDED, plain, "/run", 5.0, {}) is None
    assert sentences.last_lines(Exit(1, exit_codes.FAILED, "the command exited with 1"), plain, "/run", 5.0, {}) is None
    assert (
        sentences.last_lines(Exit(143, exit_codes.STOPPED, "stopped from outside"), plain, "/run", 5.0, {"hang": 0})
        is None
    )
    assert sentences.last_lines(Exit(127, "not-found", "pyhton: command not found"), plain, "/run", 0.1, {}) is None


def test_last_line_of_a_successful_training() -> None:
    ledger = Ledger(start_cnt=3, best_step=8120, last_step=8120, last_checkpoint="/ckpt/8000.pt")
    assert sentences.last_lines(
        ENDED, ledger, "/run", 7380.0, {"hang": 1, "failure": 1}, "goodput 93%; lost 8m: 5m hang"
    ) == (
        "ended with 0 (succeeded) after 2h 3m: 3 starts (restarted twice: once because of a hang, once because of a "
        "failure), step 8120, checkpoint 8000.pt; goodput 93%; lost 8m: 5m hang; records: /run"
    )


def test_last_line_of_a_verdict_names_the_action_of_the_scheduler() -> None:
    end = Exit(195, "hang-limit", "rank 0 stopped at step 5, 61s ago (limit 60s)")
    line = sentences.last_lines(end, Ledger(start_cnt=4, last_step=5), "/run", 300.0, {"hang": 3}) or ""
    assert line == (
        "ended with 195 (hang-limit) after 5m: rank 0 stopped at step 5, 61s ago (limit 60s); "
        "4 starts (restarted 3 times because of a hang), step 5; the scheduler should reschedule the job; records: /run"
    )
    for verdict in exit_codes.TABLE:
        last = sentences.last_lines(Exit(verdict.code, verdict.name, "why"), Ledger(start_cnt=1), "/run", 1.0, {})
        assert (
            last is None
            if verdict.name in sentences.UNREPORTED
            else f"the scheduler should {verdict.outer};" in str(last)
        )


def test_last_line_of_a_stop_or_failure_has_its_reason() -> None:
    ledger = Ledger(start_cnt=3, last_step=7)
    stopped = sentences.last_lines(
        Exit(143, exit_codes.STOPPED, "stopped from outside by SIGTERM"), ledger, "/r", 9.0, {}
    )
    assert stopped == (
        "ended with 143 (stopped) after 9s: stopped from outside by SIGTERM; 3 starts, step 7; records: /r"
    )
    failed = sentences.last_lines(
        Exit(1, exit_codes.FAILED, "e" * 500), ledger, "/r", 9.0, {"manual": 2, "peer": 1}, phase="eval"
    )
    assert failed is not None
    assert failed.startswith("phase eval ended with 1 (failed) after 9s: eee")
    assert "(restarted 3 times: twice by an operator, once because of another member)" in failed
    assert len(failed.partition("; records")[0]) <= LONGEST


# --- by real runs -----------------------------------------------------------------------------------------------------


def test_line_of_a_hang_has_finding_evidence_and_action(runs: Runs, tmp_path: Path) -> None:
    run = runs.run(
        *("--hang-timeout", "1s", "--grace", "1s", "--max-restarts", "1"),
        *python("import time\nft.beat(step=7)\ndef stuck(): time.sleep(900)\nstuck()"),
    )
    assert run.wait() == 195
    first, second, *_ = ours(run)
    report = re.escape(str(run.run_dir / "reports")) + r"/attempt-\d/report\.md"
    found = (
        r"\[ftrun\] rank 0 stopped at step 7, \d\S* ago \(limit 1s\); rank 0 sleeps at \S+:\d+ stuck; killing [^;]+; "
    )
    assert re.fullmatch(found + rf"restart 1 of 1 without progress; report: {report}", first), first
    ended = r"1 restart in a row without progress; ending with 195 \(hang-limit\)"
    assert re.fullmatch(found + rf"{ended}; report: {report}", second), second
    assert all(len(line.partition("; report")[0]) <= LONGEST for line in (first, second))


def test_line_of_a_hang_counts_the_processes(runs: Runs) -> None:
    children = "import subprocess, time\n[subprocess.Popen(['sleep', '900']) for _ in range(3)]\n"
    run = runs.run(
        *("--hang-timeout", "1s", "--grace", "1s", "--max-restarts", "0"),
        *python(children + "ft.beat(step=7)\ntime.sleep(900)"),
    )
    assert run.named("hang")[0]["processes"] == 4
    assert (
        "; killing 4 processes; restarts are off (--max-restarts 0); ending with 195 (hang-limit); report: "
        in ours(run)[0]
    )


def test_foreign_text_is_escaped(runs: Runs) -> None:
    """Neither an exception nor the name of a folder."""
    run = runs.run(
        *("--restart-on", "hang,failure", "--max-restarts", "1", "--backoff", "off", "--hang-timeout", "1s"),
        *("--grace", "1s"),
        *python("""
if ft.attempt().is_restart: raise ValueError("\\x1b]0;mine\\x07\\x1b[2J\\nfake")
import time; ft.beat(step=7); time.sleep(900)
"""),
        run_dir=runs.folder / "\x1b]0;run\x07\n[ftrun] fake\u2028",
    )
    hang, *rest = ours(run)
    assert r"\x1b]0;run\x07\n[ftrun] fake\u2028/reports/attempt-1/report.md" in hang
    assert any("ValueError: " in line for line in rest)
    assert all(line.isprintable() and not line.startswith("[ftrun] fake") for line in [hang, *rest])


def test_every_line_of_the_json_format_is_json(runs: Runs) -> None:
    run = runs.run(
        *("--restart-on", "failure", "--max-restarts", "1", "--backoff", "off", "--log-format", "json", "-v"),
        *("sh", "-c", "exit 3"),
    )
    lines = [json.loads(line) for line in run.stderr.splitlines()]
    assert {"time", "level", "source", "attempt", "message"} == set.intersection(*(set(line) for line in lines))
    assert {line["source"] for line in lines} == {"ftrun"}
    events = [line["event"] for line in lines if "event" in line]
    assert events == run.order
    assert [line["attempt"] for line in lines if line.get("event") == "spawned"] == [1, 2]


def test_command_that_ends_by_itself_causes_no_line(runs: Runs) -> None:
    assert runs.run("true").stderr == ""
    assert runs.run("sh", "-c", "exit 3").stderr == ""


def test_last_line_of_a_stop_during_the_backoff(runs: Runs) -> None:
    run = runs.start("--restart-on", "failure", "--backoff", "1h", "sh", "-c", "exit 3")
    run.until("exited")
    wait_for(lambda: "restart 1" in run.stderr, "the backoff")
    run.process.terminate()
    assert run.wait() == 143
    *_, line = ours(run)
    assert re.match(r"\[ftrun\] ended with 143 \(stopped\) after \S+: stopped from outside by signal 15", line), line


def test_last_line_summarises_the_run(runs: Runs) -> None:
    run = runs.run(*python("for step in range(5): ft.beat(step=step)"))
    assert run.wait() == 0
    (line,) = ours(run)
    assert re.match(r"\[ftrun\] ended with 0 \(succeeded\) after \S+: 1 start, step 4; ", line), line
    assert line.endswith(f"; records: {run.run_dir}")
