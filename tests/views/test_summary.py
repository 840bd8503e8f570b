"""A snapshot as text."""

import json
from typing import Any

import pytest

from ftrun.views.snapshot import DeviceNow, Incident, Limit, RankNow, Snapshot
from ftrun.views.summary import document, goodput, headline, lines, title

QUIET = RankNow(3, 77, "moving", 812, moved=26.0, alive=1.0, rule="step", age=26.0, limit=38.0)
RUNNING = Snapshot(
    run_dir="/run/dir",
    alive=True,
    phase="running",
    attempt=3,
    reason="hang",
    command=("python", "train.py", "--config", "c.yaml"),
    version="0.1.0",
    pid=4711,
    began="2026-01-02T03:04:05.000Z",
    wall=7380.0,
    up=3600.0,
    counts={"hang": 1, "fault": 0, "failure": 0},
    left={"hang": 2, "fault": 3, "failure": 0},
    restarts={"hang": 2, "fault": 0},
    step=812,
    best_step=812,
    step_time=0.35,
    checkpoint="/checkpoints/800",
    checkpoint_step=800,
    checkpoint_age=250.0,
    ranks=(RankNow(0, 70, "moving", 814, moved=1.0, alive=1.0, rule="step", age=1.0, limit=38.0), QUIET),
    slowest=QUIET,
    stalest=QUIET,
    limits=(
        Limit("hang", 38.0, "learned: 10 times 3.8s, within which 99 of 100 silences are, over 800 steps"),
        Limit("start", 3600.0, "default"),
        Limit("section", 3600.0, "default"),
        Limit("idle", None, "option"),
    ),
    deadline=12.0,
    next="Rank 3 will be suspected in 12s: 26s without a step (timeout 38s, learned: 10 times 3.8s).",
    devices=(DeviceNow("GPU-1", "H100", 97.0, 70 << 30, 80 << 30, 650.0, 2.0), DeviceNow("GPU-2", "H100", 99.0)),
    trouble=Incident("2026-01-02T03:30:00.000Z", 2, "hang", "rank 3 stopped at step 600", "/run/dir/reports/r.md"),
    lost={"hang": 300.0, "redone": 120.0, "startup": 60.0, "stopping": 0.5},
    goodput=0.93,
)


def text(shown: Snapshot, width: int = 80) -> str:
    return "\n".join([*title(shown, width), *lines(shown, width)])


def test_status_shows_all_that_an_operator_needs() -> None:
    said = " ".join(text(RUNNING).split())
    for words in (
        "running for 60m, attempt 3 after a hang: quiet, rank 3 has not moved for 26s",
        "next Rank 3 will be suspected in 12s",
        "hang in attempt 2: rank 3 stopped at step 600 report /run/dir/reports/r.md",
        "2 after a hang; consecutive without progress: hang 1 of 3, fault 0 of 3; a failure ends the job",
        "812, 350ms per step, 2.86 steps/s",
        "step 800, 4m 10s ago: /checkpoints/800",
        "ranks 2: 1 moving, 1 quiet",
        "slowest rank 3 at step 812, 2 steps behind",
        "stalest rank 3, process 77: 26s of 38s",
        "hang 38s learned: 10 times 3.8s",
        "idle off option",
        "2 H100s, util 97-99%, memory 70 of 80 GiB, 650 W, 2s ago",
        "93% of 2h 3m; lost 8m: 5m hang, 2m redone, 60s startup",
        "python train.py --config c.yaml (process 4711)",
        "records /run/dir",
    ):
        assert words in said


@pytest.mark.parametrize("count", [0, 1, 1024])
def test_it_fits_a_screen(count: int) -> None:
    ranks = tuple(RankNow(n, n, "moving", n, 1.0, 1.0, None, "step", 1.0, 38.0) for n in range(count))
    found = text(RUNNING._replace(ranks=ranks)).split("\n")
    assert len(found) <= 30
    assert max(map(len, found)) <= 80
    assert max(map(len, text(RUNNING._replace(ranks=ranks), 60).split("\n"))) <= 60


def test_the_headline_begins_with_a_pause() -> None:
    found = headline(RUNNING._replace(paused=720.0, resumes=1080.0))
    assert found.startswith("PAUSED for 12m: HANGS ARE NOT DETECTED; resumes in 18m")
    assert "until `ftctl resume`" in headline(RUNNING._replace(paused=720.0))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"stalest": QUIET._replace(age=1.0)}, "healthy, making progress"),
        ({"stalest": QUIET._replace(rule="section", section="eval")}, "healthy, in section eval"),
        ({"phase": "suspect"}, "it may hang, evidence is being collected"),
        ({"ranks": (), "stalest": None}, "no heartbeat yet"),
        (
            {"phase": "starting", "ranks": (), "stalest": None, "first_beat": 5.5},
            "no heartbeat since this start; in an earlier start the first one came after 5.5s",
        ),
        ({"stalest": QUIET._replace(age=225.0, limit=300.0)}, "quiet, rank 3 has not moved for 3m 45s"),
        ({"stalest": QUIET._replace(age=16.0, limit=300.0, step_time=0.024)}, "quiet, rank 3 has not moved for 16s"),
        ({"stalest": QUIET._replace(age=16.0, limit=300.0, step_time=2.0)}, "healthy, making progress"),
        ({"stalest": QUIET._replace(age=14.0, limit=300.0, step_time=0.024)}, "healthy, making progress"),
        ({"stalest": None}, "no rank is active"),
        ({"phase": "waiting"}, "between two attempts"),
        ({"phase": "cut off", "alive": False}, "ftrun is gone and left no verdict"),
    ],
)
def test_the_headline_describes_the_state(changed: dict[str, Any], words: str) -> None:
    assert words in headline(RUNNING._replace(**changed))


def test_device_faults_are_listed() -> None:
    well = DeviceNow("GPU-1", "H100", 97.0, health="ok", recovery="none", index=0)
    lost = DeviceNow("GPU-2", "H100", health="GPU is lost", index=1)
    marked = well._replace(id="GPU-3", recovery="reboot", index=2)
    said = " ".join(text(RUNNING._replace(devices=(well, well._replace(id="GPU-4")))).split())
    assert "2 H100s, health ok, util 97-97%" in said
    said = " ".join(text(RUNNING._replace(devices=(lost, well, marked))).split())
    assert "3 H100s, health ok: 1 of 3, util 97-97%" in said
    assert "GPU-2 (number 1): GPU is lost" in said
    assert "GPU-3 (number 2): the driver asks for: reboot" in said
    said = " ".join(text(RUNNING._replace(devices=(lost,) * 12)).split())
    assert "and 4 more with a fault" in said


def test_after_the_end_the_action_of_the_scheduler_is_shown() -> None:
    ended = RUNNING._replace(alive=False, phase="done", verdict="node-fault", exit_code=197, why="GPU-1 reported 79")
    said = " ".join(text(ended).split())
    assert said.startswith(
        "ended with 197 (node-fault) in attempt 3 why GPU-1 reported 79 scheduler should isolate the node"
    )
    assert "next" not in said
    own = RUNNING._replace(alive=False, phase="done", verdict="succeeded", exit_code=0, why="the command exited with 0")
    assert "should act as it would without ftrun" in " ".join(text(own).split())


def test_the_reason_is_shown_once() -> None:
    why = "rank 3 stopped at step 600"
    assert (
        text(RUNNING._replace(alive=False, phase="done", verdict="hang-limit", exit_code=195, why=why)).count(why) == 1
    )


def test_control_characters_in_foreign_text_are_escaped() -> None:
    odd = RUNNING._replace(command=("a\x1b[2Jb", "\n", "\udcff"), checkpoint="/c\n/\x07", problems=("x\ny",))
    for line in lines(odd):
        assert line.isprintable()


def test_goodput_without_lost_time() -> None:
    assert goodput(RUNNING._replace(lost={}, goodput=1.0)) == "100% of 2h 3m"
    assert goodput(RUNNING._replace(lost={}, goodput=None)) == "nothing lost"


def test_lost_time_that_rounds_to_zero_is_left_out() -> None:
    short = RUNNING._replace(wall=1.5, goodput=0.2, lost={"hang": 1.0, "stopping": 0.03})
    assert goodput(short) == "20% of 1.5s; lost 1s: 1s hang"


def test_the_json_document_has_all_fields() -> None:
    found = json.loads(json.dumps(document(RUNNING._replace(command=("\udcff",))), allow_nan=False))
    assert found["schema"] == 1
    assert set(found) == {"schema", *Snapshot._fields}
    assert found["ranks"][1] == found["stalest"] == QUIET._asdict()
    assert found["limits"][0]["source"].startswith("learned")
    assert found["command"] == ["\\udcff"]
    assert found["trouble"]["report"] == "/run/dir/reports/r.md"
