"""The checks of chaos find each planted violation, and none in a correct run."""

from typing import Any

import pytest

from proof.chaos.check import check
from proof.chaos.companions import COMPANIONS
from proof.chaos.plan import Fault, Injected, Job, Outcome, Run, Training, job

OPTIONS = {"restart-on": "hang,failure", "max-restarts": "1", "hang-timeout": "2s", "grace": "1s", "probe": "off"}
TRAINING = Training(60, 0.02, 5, 0, "default", True, (), ())
SAVED = "/c/000005.json"


def record(mono: float, event: str, attempt: int, **fields: Any) -> dict[str, Any]:
    return {"schema": 1, "time": "2026-01-01T00:00:00.000Z", "mono": mono, "event": event, "attempt": attempt, **fields}


def course() -> list[dict[str, Any]]:
    """A start is killed, the next is stopped, and that is one too many."""
    return [
        record(10.0, "started", 1, reason="first", start_cnt=1),
        record(10.1, "spawned", 1, pid=7),
        record(10.2, "first_beat", 1, rank=0, step=1),
        record(10.2, "progress", 1, by="step", step=1, checkpoint=None),
        record(10.5, "progress", 1, by="checkpoint", step=5, checkpoint=SAVED),
        record(11.0, "exited", 1, signal=9, why="signal 9 (SIGKILL) ended the command", rule="unknown"),
        record(11.0, "stopping", 1, by="SIGTERM", grace=1.0),
        record(12.0, "stopping", 1, by="SIGKILL"),
        record(12.1, "killed", 1, processes=2),
        record(13.1, "restart", 2, reason="failure", start_cnt=2, consecutive=1),
        record(13.2, "spawned", 2, pid=8),
        record(13.3, "first_beat", 2, rank=0, step=6),
        record(15.5, "suspect", 2, rule="step", rank=0, age=2.1, limit=2.0, step=8, section=None, pid=8),
        record(16.0, "hang", 2, rule="step", rank=0, age=2.6, limit=2.0, step=8, section=None, pid=8, why="sleeps"),
        record(16.0, "stopping", 2, by="SIGTERM", grace=1.0),
        record(16.1, "exited", 2, signal=15),
        record(16.2, "restart", 3, reason="hang", start_cnt=3, consecutive=1),
        record(16.3, "spawned", 3, pid=9),
        record(17.0, "exited", 3, code=1, why="the command exited with 1", rule="unknown"),
        record(17.0, "escalated", 3, cause="failure", verdict="failure-limit", exit_code=93, why="it exited with 1"),
        record(17.0, "stopping", 3, by="SIGTERM", grace=1.0),
        record(17.1, "ended", 3, verdict="failure-limit", exit_code=93, why="it exited with 1"),
    ]


def wrote(start: int, mono: float, **what: Any) -> dict[str, Any]:
    return {"start": start, "mono": mono, **what}


def outcome(**changed: Any) -> Outcome:
    made = Job(1, 1, "subreaper", "plain", tuple(OPTIONS.items()), 2.0, 1, TRAINING, ())
    attempts = (
        wrote(1, 10.15, pid=7, resumed=0, checkpoint=None),
        wrote(1, 10.45, saved=5, path=SAVED),
        wrote(2, 13.25, pid=8, resumed=5, checkpoint=SAVED),
        wrote(3, 16.35, pid=9, resumed=5, checkpoint=SAVED),
        wrote(3, 16.9, does="exits"),
    )
    injected = (
        Injected(Fault("command killed", "", 0.0, 0.0, "KILL"), 10.95, 0, 1, 70),
        Injected(Fault("command stopped", "", 0.0), 13.4, 0, 2, 80),
    )
    verdict = {"exit_code": 93, "verdict": "failure-limit", "start_cnt": 3}
    return Outcome(made, (Run(tuple(course()), 93),), injected, attempts, verdict=verdict)._replace(**changed)


def changed(at: int, **fields: Any) -> tuple[dict[str, Any], ...]:
    records = course()
    records[at] |= fields
    return tuple(records)


def without(at: int) -> tuple[dict[str, Any], ...]:
    return tuple(record for index, record in enumerate(course()) if index != at)


def test_correct_run_has_no_violation() -> None:
    assert check(outcome()) == []


WRONG: dict[str, dict[str, Any]] = {
    "the core decides nothing of it": {"runs": (Run(tuple(course()), 93, decisions=b""),)},
    "the exit code is another": {"runs": (Run(tuple(course()), 195),)},
    "it did not end": {"runs": (Run(tuple(course()[:-1]), None),)},
    "a process is left": {"left": ("70 python S",)},
    "a beat folder is left": {"beats": ("ftrun-beats-0-1-a",)},
    "the termination message says another code": {"verdict": {"exit_code": 0, "verdict": "succeeded", "start_cnt": 3}},
    "the termination message counts too few": {"verdict": {"exit_code": 93, "verdict": "", "start_cnt": 2}},
    "a line is none": {"unread": 1},
    "the copy is another": {"copied": False},
    "ftrun threw": {"runs": (Run(tuple(course()), 93, stderr='File "/x/supervisor/ftrun/loop.py"'),)},
    "time runs backwards": {"runs": (Run(changed(5, mono=9.0), 93),)},
    "a record has no schema": {"runs": (Run(changed(5, schema=None), 93),)},
    "it does not begin with started": {"runs": (Run(tuple(course()[1:]), 93),)},
    "it does not end with ended": {"runs": (Run(tuple(course()[:-1]), 93),)},
    "a start has no end": {"runs": (Run(without(5), 93),)},
    "an end is of another start": {"runs": (Run(changed(5, attempt=2), 93),)},
    "a restart too many in a row": {"runs": (Run(changed(9, consecutive=2), 93),)},
    "a wrong count of starts": {"runs": (Run(changed(9, start_cnt=3), 93),)},
    "the command saw a start twice": {"attempts": (*outcome().attempts, outcome().attempts[2])},
    "the command saw a start that is not on record": {"attempts": (*outcome().attempts, wrote(4, 17.0, resumed=5))},
    "a start went back behind a checkpoint": {"attempts": (*outcome().attempts[:2], wrote(2, 13.2, resumed=0))},
    "a stopped command was not found": {
        "injected": (*outcome().injected, Injected(Fault("command stopped", "", 0.0), 17.3, 0, 3))
    },
    "a killed command was not noticed": {
        "injected": (*outcome().injected, Injected(Fault("command killed", "", 0.0, 0.0, "KILL"), 12.5, 0, 4))
    },
    "a signal did not come to the command": {
        "injected": (outcome().injected[0], Injected(Fault("signal forwarded", "", 0.0, 0.0, "HUP"), 10.3, 0, 1))
    },
    "it ended though it was killed": {
        "injected": (*outcome().injected, Injected(Fault("ftrun killed", "", 0.0), 18.0, 0, 3))
    },
    "a healthy start was taken for hung": {"injected": outcome().injected[:1]},
    "a start fell of nothing": {"injected": outcome().injected[1:]},
    "a start fell of nothing by itself": {"attempts": outcome().attempts[:-1]},
    "a helper died of nothing": {
        "runs": (
            Run((*course()[:4], record(10.3, "problem", 1, helper="sampler", what="it ended"), *course()[4:]), 93),
        )
    },
    "nobody had asked for the end": {"runs": (Run(changed(6, by="outside", signal=15), 93),)},
    "125 without a reason": {"runs": (Run(changed(21, exit_code=125), 125),), "verdict": None},
}


@pytest.mark.parametrize("name", WRONG)
def test_planted_violation_is_found(name: str) -> None:
    assert check(outcome(**WRONG[name]))


def test_what_nobody_can_see_may_outlive_a_killed_ftrun_that_is_not_pid_1() -> None:
    """One process for each of them."""
    hiding = outcome().job._replace(place="hidden /proc", training=TRAINING._replace(beside=("unreadable process",)))
    runs = (Run(tuple(course()), 137, killed=True), *outcome().runs)

    def found(made: Job, *left: str) -> bool:
        return any("left behind" in wrong for wrong in check(outcome(job=made, runs=runs, left=left)))

    assert not found(hiding, "70 python S")
    assert found(hiding, "70 python S", "71 python S")
    assert found(hiding._replace(mode="pid1"), "70 python S")
    assert found(hiding._replace(place="masked /proc"), "70 python S")


def test_a_job_is_made_of_seed_and_index_alone() -> None:
    made = [job(7, index) for index in range(200)]
    assert made == [job(7, index) for index in range(200)]
    assert len(set(made)) == 200
    assert job(8, 0) != made[0]
    assert {one.mode for one in made} == {"pid1", "subreaper"}
    assert {kind for one in made for kind in one.training.beside} == set(COMPANIONS)
