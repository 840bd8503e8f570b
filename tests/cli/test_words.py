"""The lines of ftrun: what happened, why, and what follows; and how a run ended."""

import json
import re
from pathlib import Path

import pytest

from ftrun.core.machine.effects import Exit
from ftrun.core.machine.values import Ledger
from ftrun.core.rules import exit_codes
from ftrun.core.text import sentences
from support.ports import free_port
from support.runs import Run, Runs, python

LONGEST = 300  # characters of a line, its report's path not counted


def ours(run: Run) -> list[str]:
    return [line for line in run.stderr.splitlines() if line.startswith("[ftrun] ")]


# --- of values --------------------------------------------------------------------------------------------------------


def test_a_long_text_keeps_both_ends() -> None:
    assert sentences.short("a failed assertion fails again", 30) == "a failed assertion fails again"
    assert sentences.short("a failed assertion fails again", 20) == "a failed ass...again"
    assert [len(sentences.short("x" * 99, most)) for most in (3, 4, 5, 50, 98, 99)] == [3, 4, 5, 50, 98, 99]


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


def test_last_line_of_a_verdict_names_the_action_of_the_scheduler() -> None:
    for verdict in exit_codes.TABLE:
        last = sentences.last_lines(Exit(verdict.code, verdict.name, "why"), Ledger(start_cnt=1), "/run", 1.0, {})
        assert (
            last is None
            if verdict.name in sentences.UNREPORTED
            else f"the scheduler should {verdict.outer};" in str(last)
        )


def test_last_line_says_which_starts_it_counts_where_not_all_are_of_this_ftrun() -> None:
    def starts(number: int, **restarts: int) -> str:
        line = sentences.last_lines(ENDED, Ledger(start_cnt=number, last_step=7), "/run", 5.0, restarts)
        return str(line).partition(": ")[2].partition(", step 7")[0]

    assert starts(1) == "1 start"
    assert starts(2, hang=1) == "2 starts (restarted once because of a hang)"
    before = "5 starts in this pod, with those before this ftrun"
    assert starts(5, hang=1) == f"{before} (restarted once because of a hang)"
    assert starts(5) == before
    assert starts(0) == "0 starts"


# --- by real runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [False, True])
def test_last_line_of_a_group_that_never_formed_counts_the_wait(shares: bool, runs: Runs) -> None:
    """Also where the start had to wait for the state dir."""
    disk = ("--state-dir", str(runs.folder / "state")) if shares else ()
    place = ("--group-size", "2", "--group-rank", "0", "--group-endpoint", f"127.0.0.1:{free_port()}")
    run = runs.ends(195, *place, *disk, "--wait-peer", "2s", "true")
    found = re.search(r"ended with 195 \(.*?\) after ([\d.]+)s: .* 0 starts;", run.stderr)
    assert found is not None, run.stderr
    assert float(found[1]) >= 2


def test_line_of_a_hang_has_finding_evidence_and_action(runs: Runs, tmp_path: Path) -> None:
    run = runs.ends(
        195,
        *("--hang-timeout", "1s", "--grace", "1s", "--max-restarts", "1"),
        *python("import time\nft.beat(step=7)\ndef stuck(): time.sleep(900)\nstuck()"),
    )
    first, second, *_ = ours(run)
    report = re.escape(str(run.run_dir / "reports")) + r"/attempt-\d/report\.md"
    found = (
        r"\[ftrun\] rank 0 stopped at step 7, \d\S* ago \(limit 1s\); rank 0 sleeps at \S+:\d+ stuck; killing [^;]+; "
    )
    assert re.fullmatch(found + rf"restart 1 of 1 without progress; report: {report}", first), first
    ended = r"1 restart in a row without progress; ending with 195 \(hang-limit\)"
    assert re.fullmatch(found + rf"{ended}; report: {report}", second), second
    assert all(len(line.partition("; report")[0]) <= LONGEST for line in (first, second))


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


def test_last_line_summarises_the_run(runs: Runs) -> None:
    run = runs.ends(0, *python("for step in range(5): ft.beat(step=step)"))
    (line,) = ours(run)
    assert re.match(r"\[ftrun\] ended with 0 \(succeeded\) after \S+: 1 start, step 4; ", line), line
    assert line.endswith(f"; records: {run.run_dir}")
