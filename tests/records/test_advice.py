"""The `do` line: what a person can do now."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from ftctl.top import screen as top
from ftrun.core.rules import exit_codes
from ftrun.records.files.recent_events import Incident
from ftrun.records.present import advice, summary
from ftrun.records.present.advice import what_to_do
from ftrun.records.present.run_snapshot import read_snapshot
from ftrun.records.present.snapshot import DeviceNow, Snapshot
from support.made_run import MadeRun
from support.snapshots import snapshot

RUNNING = snapshot()
MOVING = RUNNING._replace(stalest=None, trouble=None)
SLOW = MOVING.ranks[0]._replace(straggler="2s per step, the others 1s")


def test_nothing_is_to_be_done_where_nothing_is_wrong() -> None:
    assert what_to_do(MOVING) == ""
    assert what_to_do(MOVING._replace(alive=False, phase="done", verdict="succeeded", exit_code=0)) == ""
    assert not any(name == "do" for name in summary.lines(MOVING))


def test_a_command_with_a_path_that_is_no_text_can_be_pasted() -> None:
    odd = os.fsdecode(b"/it's\xff a\n\\rd")
    command = advice.ftctl("resume", MOVING._replace(run_dir=odd))
    assert command.isprintable()
    done = subprocess.run(["bash", "-c", command.replace("ftctl", "printf %s", 1)], capture_output=True, check=True)
    assert done.stdout == b"resume--run-dir" + os.fsencode(odd)
    assert advice.ftctl("resume", MOVING._replace(run_dir="/ä b")) == "ftctl resume --run-dir '/ä b'"


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (RUNNING, "`ftctl stacks --run-dir /run/dir` shows where each rank is"),
        (MOVING._replace(paused=5.0), "`ftctl resume --run-dir /run/dir`"),
        (MOVING._replace(phase="suspect"), "nothing yet, the verdict follows"),
        (MOVING._replace(phase="stopping"), "nothing, ftrun acts by itself"),
        (MOVING._replace(phase="waiting", group="epoch 2"), "`ftctl status --all --run-dir /run/dir` names"),
        (MOVING._replace(wait="rank 0 waits for a connection"), "see to what it waits for"),
        (MOVING._replace(wait="rank 0 is stopped by SIGSTOP"), "continue it with SIGCONT, unless somebody holds it"),
        (
            MOVING._replace(devices=(DeviceNow("GPU-1", health="GPU is lost"),), node="a"),
            "have the devices of a checked",
        ),
        (MOVING._replace(ranks=(SLOW,)), "compare rank 0 with the others"),
        (MOVING._replace(trouble=RUNNING.trouble), "nothing now, it was restarted; `ftctl report"),
        (
            MOVING._replace(trouble=Incident("", 1, "fault", "device GPU-1 reported 79")),
            "nothing now, it was restarted; if it comes again, have the device checked",
        ),
        (MOVING._replace(full_disk=True), "free space on the disk of /run/dir"),
        (MOVING._replace(alive=False, phase="cut off"), "start the same command in the same run dir again"),
        (
            MOVING._replace(alive=False, phase="done", verdict="failed", exit_code=1),
            "read how it failed: `ftctl report",
        ),
    ],
)
def test_what_a_person_can_do(shown: Snapshot, words: str) -> None:
    assert words in what_to_do(shown)
    assert words in " ".join(" ".join(summary.lines(shown, 300)).split())
    assert words in top.render(shown, (), (), "", top.Screen(300, 40)).plain


@pytest.mark.parametrize("verdict", exit_codes.TABLE, ids=lambda verdict: verdict.name)
def test_each_verdict_says_what_to_do(verdict: exit_codes.Verdict) -> None:
    ended = RUNNING._replace(alive=False, phase="done", verdict=verdict.name, exit_code=verdict.code, node="n7")
    found = what_to_do(ended)
    assert found or verdict is exit_codes.USAGE  # which starts nothing, so that there is no run
    assert "{" not in found
    assert "n7" in found or verdict is not exit_codes.NODE_FAULT


def hangs(run: MadeRun, *places: str) -> Snapshot:
    for attempt, place in enumerate(places, 1):
        why = f"{place} all_reduce; it waits for rank 3, at other.py:1 recv"
        run.record("hang", attempt, ago=60.0 - attempt, rule="step", rank=3, age=41.0, limit=38.0, step=101, why=why)
        run.record("stopping", attempt, ago=60.0 - attempt, by="SIGTERM")
        run.record(
            "restart", attempt + 1, ago=60.0 - attempt, reason="hang", start_cnt=attempt + 1, consecutive=attempt
        )
    return read_snapshot(run.write())


def test_a_hang_at_the_same_place_is_counted(run: MadeRun) -> None:
    found = hangs(run, "failures.py:68", "failures.py:68", "failures.py:68")
    assert found.trouble is not None
    assert found.trouble.again == "third hang at failures.py:68, step 101"
    shown: Any = " ".join(" ".join(summary.lines(found)).split())
    assert "hang in attempt 3, third hang at failures.py:68, step 101: rank 3" in shown
    assert "it comes again at the same place" in what_to_do(found._replace(stalest=None))


def test_the_last_hang_is_counted_also_when_it_ends_the_job(run: MadeRun) -> None:
    hangs(run, "failures.py:68", "failures.py:68")
    run.record("hang", 3, rule="step", rank=3, age=41.0, limit=38.0, step=101, why="failures.py:68 all_reduce")
    run.record("escalated", 3, cause="hang", verdict="hang-limit", exit_code=195, why="rank 3 stopped")
    found = read_snapshot(run.write()).trouble
    assert found is not None
    assert (found.again, found.cause) == ("third hang at failures.py:68, step 101", "hang")


def test_a_hang_elsewhere_is_another_one(run: MadeRun) -> None:
    found = hangs(run, "failures.py:68", "failures.py:68", "model.py:7").trouble
    assert found is not None
    assert found.again == ""


def test_a_path_is_quoted_for_the_shell() -> None:
    assert advice.ftctl("report", MOVING._replace(run_dir="/a b")) == "ftctl report --run-dir '/a b'"
