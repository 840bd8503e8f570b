"""A snapshot as text."""

import json
from typing import Any

import pytest

from ftrun.core.rules.standby import NextStart
from ftrun.records.present.snapshot import DeviceNow, Snapshot
from ftrun.records.present.summary import document, goodput, headline, lines, title
from support.snapshots import snapshot

RUNNING = snapshot()
QUIET = RUNNING.ranks[3]
UNPACED = QUIET._replace(rule=None, limit=None, step_time=None, age=124.0)  # no timeout, no second step


def text(shown: Snapshot, width: int = 80) -> str:
    return "\n".join([*title(shown, width), *lines(shown, width)])


def test_status_shows_the_state_of_the_run() -> None:
    shown = " ".join(text(RUNNING).split())
    for part in (
        "running for 13m 32s, attempt 2 after a hang: quiet, rank 3 has not moved for 31s",
        "next Rank 3 would be suspected in 7s",
        "hang in attempt 1: rank 3 stopped at step 790, 41s ago (limit 38s) report /run/dir/reports/",
        "1 after a hang; consecutive without progress: hang 1 of 3, fault 0 of 3; a failure ends the job",
        "812, none of rank 3 for 31s; before that 420ms per step",
        "step 800, 2026-11-21 12:00:00 UTC, 4m 10s ago: /checkpoints/step-800",
        "ranks 8: 6 moving, 1 quiet, 1 in a section",
        "slowest rank 3 at step 811, 1 step behind",
        "stalest rank 3, process 4003: 31s of 38s",
        "hang 38s option",
        "idle off option",
        "8 NVIDIA H100s, util 91-98%, memory 568 of 640 GiB, 5120 W, 1.2s ago",
        "99% of 2h 3m; lost 84s: 41s hang, 30s startup, 13s redone",
        "torchrun --standalone --nproc-per-node 8 train.py (process 4000)",
        "records /run/dir",
    ):
        assert part in shown


def test_the_step_line_of_a_run_that_moves_has_its_pace_and_that_of_a_hang_has_its_silence() -> None:
    moving = RUNNING._replace(stalest=QUIET._replace(age=1.0))
    assert "step 812, 420ms per step, 2.38 steps/s" in " ".join(text(moving).split())
    suspected = moving._replace(phase="suspect", stalest=None)
    assert "step 812, none of rank 3 for 31s" in " ".join(text(suspected).split())
    assert "steps/s" not in text(suspected)


@pytest.mark.parametrize("count", [0, 1, 1024])
def test_the_status_fits_a_screen(count: int) -> None:
    found = text(snapshot(count)).split("\n")
    assert len(found) <= 30
    assert max(map(len, found)) <= 80
    assert max(map(len, text(snapshot(count), 60).split("\n"))) <= 60


def test_a_rank_without_a_known_pace_is_quiet_after_a_while() -> None:
    assert "ranks       1: 1 quiet" in lines(RUNNING._replace(ranks=(UNPACED,)))


def test_the_headline_begins_with_a_pause() -> None:
    found = headline(RUNNING._replace(paused=720.0, resumes=1080.0))
    assert found.startswith("PAUSED for 12m: HANGS ARE NOT DETECTED; until ")
    assert " UTC, in 18m (running" in found
    assert "until `ftctl resume`" in headline(RUNNING._replace(paused=720.0))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"stalest": QUIET._replace(age=1.0)}, "healthy, making progress"),
        ({"stalest": QUIET._replace(rule="section", section="eval")}, "healthy, in section eval"),
        ({"phase": "suspect"}, "it may hang, evidence is being collected"),
        ({"phase": "starting", "ranks": (), "stalest": None, "first_beat": None}, "no heartbeat yet"),
        (
            {"phase": "starting", "ranks": (), "stalest": None, "first_beat": 5.5},
            "no heartbeat since this start; in an earlier start the first one came after 5.5s",
        ),
        ({"stalest": QUIET._replace(age=225.0, limit=300.0)}, "quiet, rank 3 has not moved for 3m 45s"),
        ({"stalest": QUIET._replace(age=16.0, limit=300.0)}, "quiet, rank 3 has not moved for 16s"),
        ({"stalest": QUIET._replace(age=16.0, limit=300.0, step_time=2.0)}, "healthy, making progress"),
        ({"stalest": QUIET._replace(age=14.0, limit=300.0)}, "healthy, making progress"),
        ({"stalest": UNPACED}, "quiet, rank 3 has not moved for 2m 4s"),
        ({"stalest": UNPACED._replace(age=50.0)}, "healthy, making progress"),
        ({"stalest": UNPACED._replace(age=50.0), "wait": "rank 3 is stopped by SIGSTOP"}, "quiet, rank 3 has not"),
        ({"stalest": None}, "no rank is active"),
        ({"phase": "waiting"}, "the next start is due later"),
        ({"phase": "waiting", "attempt": 0, "reason": "first"}, "before the first start: the next start is due later"),
        (
            {"phase": "done", "alive": False, "attempt": 0, "verdict": "hang-limit", "exit_code": 195},
            "ended with 195 (hang-limit) before the first start",
        ),
        ({"phase": "cut off", "alive": False}, "ftrun is gone and left no verdict"),
    ],
)
def test_the_headline_describes_the_state(changed: dict[str, Any], words: str) -> None:
    assert words in headline(RUNNING._replace(**changed))


@pytest.mark.parametrize(
    ("next_start", "words"),
    [
        (NextStart(8, 8), "warm: its imports are done"),
        (
            NextStart(1, 8, None, 2.5),
            "warm for 1 of 8 processes: standbys are not ready yet; the last warm start saved 2.5s",
        ),
        (NextStart(1, 1, None, -0.5), "the last warm start lost 0.5s"),
        (NextStart(0, 1, "an import started a thread"), "cold: an import started a thread"),
    ],
)
def test_the_next_start_is_warm_or_cold(next_start: NextStart, words: str) -> None:
    assert words in " ".join(text(RUNNING._replace(next_start=next_start)).split())
    assert "next start" not in text(RUNNING._replace(next_start=next_start, alive=False))


def test_device_faults_are_listed() -> None:
    well = DeviceNow("GPU-1", "H100", 97.0, health="ok", recovery="none", index=0)
    lost = DeviceNow("GPU-2", "H100", health="GPU is lost", index=1)
    marked = well._replace(id="GPU-3", recovery="reboot", index=2)
    shown_text = " ".join(text(RUNNING._replace(devices=(well, well._replace(id="GPU-4")))).split())
    assert "2 H100s, health ok, util 97-97%" in shown_text
    shown_text = " ".join(text(RUNNING._replace(devices=(lost, well, marked))).split())
    assert "3 H100s, health ok: 1 of 3, util 97-97%" in shown_text
    assert "GPU-2 (number 1): GPU is lost" in shown_text
    assert "GPU-3 (number 2): the driver asks for: reboot" in shown_text
    shown_text = " ".join(text(RUNNING._replace(devices=(lost,) * 12)).split())
    assert "and 4 more with a fault" in shown_text


def test_after_the_end_the_action_of_the_scheduler_is_shown() -> None:
    ended = RUNNING._replace(alive=False, phase="done", verdict="node-fault", exit_code=197, why="GPU-1 reported 79")
    shown_text = " ".join(text(ended).split())
    assert shown_text.startswith(
        "ended with 197 (node-fault) in attempt 2 do take node (the one it ran on) out of service and have it "
        "repaired; start the job on another node why GPU-1 reported 79 scheduler should isolate the node"
    )
    assert "next" not in shown_text
    own = RUNNING._replace(alive=False, phase="done", verdict="succeeded", exit_code=0, why="the command exited with 0")
    assert "should act as it would without ftrun" in " ".join(text(own).split())


def test_the_reason_is_shown_once() -> None:
    why = RUNNING.trouble.why if RUNNING.trouble else ""
    ended = RUNNING._replace(alive=False, phase="done", verdict="hang-limit", exit_code=195, why=why)
    assert " ".join(text(ended).split()).count(why) == 1


def test_control_characters_in_foreign_text_are_escaped() -> None:
    odd = RUNNING._replace(command=("a\x1b[2Jb", "\n", "\udcff"), checkpoint="/c\n/\x07", problems=("x\ny",))
    for line in lines(odd):
        assert line.isprintable()


def test_goodput_without_lost_time() -> None:
    assert goodput(RUNNING._replace(lost={}, goodput=1.0)) == "100% of 2h 3m"
    assert goodput(RUNNING._replace(lost={}, goodput=None)) == "- (no step and no checkpoint has been seen)"
    found = goodput(RUNNING._replace(lost={"startup": 60.0}, goodput=None))
    assert found == "- (no step and no checkpoint has been seen); lost 60s: 60s startup"
    assert "goodput     - (no step and no checkpoint has been seen)" in lines(RUNNING._replace(lost={}, goodput=None))


def test_lost_time_that_rounds_to_zero_is_left_out() -> None:
    short = RUNNING._replace(wall=1.5, goodput=0.2, lost={"hang": 1.0, "stopping": 0.03})
    assert goodput(short) == "20% of 1.5s; lost 1s: 1s hang"


def test_the_json_document_has_all_fields() -> None:
    found = json.loads(json.dumps(document(RUNNING._replace(command=("\udcff",))), allow_nan=False))
    assert found["schema"] == 1
    assert set(found) == {"schema", "do", *Snapshot._fields}
    assert found["ranks"][3] == found["stalest"] == QUIET._asdict()
    assert found["limits"][0]["source"] == "option"
    assert found["command"] == ["\\udcff"]
    assert found["trouble"]["report"] == "/run/dir/reports/attempt-1/report.md"
