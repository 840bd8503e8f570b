"""The check of a job of ranks finds planted violations."""

from typing import Any

import pytest

from proof.chaos.rank_check import check
from proof.chaos.rank_numbers import final_values
from proof.chaos.rank_plan import RankJob, RankOutcome, job

OPTIONS = (("restart-on", "hang,fault,failure"), ("max-restarts", "3"), ("recover", "retry,rank"))
JOB = RankJob(1, 1, 2, 4, 0.01, 1, 4, True, False, False, OPTIONS, 3, (), ())


def record(mono: float, event: str, **fields: Any) -> dict[str, Any]:
    return {"mono": mono, "event": event, "attempt": 1, **fields}


RECORDS = (
    record(1.0, "started"),
    record(2.5, "recovering", rung="rank", round=2, ranks=[1], why="it died"),
    record(4.0, "recovered", rung="rank", round=2, ranks=[1], step=2),
    record(5.0, "ended", exit_code=0),
)


def steps() -> tuple[dict[str, Any], ...]:
    done = [(2.0 + (step > 2), step, 1 + (step > 2)) for step in range(1, 5)]
    values = [final_values(2, step, True) for step in range(5)]
    return tuple(
        {"mono": at, "rank": rank, "round": number, "step": step, "value": values[step][rank]}
        for at, step, number in done
        for rank in range(2)
    )


def rounds(*pids: tuple[int, int]) -> tuple[dict[str, Any], ...]:
    """The pids of both ranks, in each round."""
    return tuple(
        {"mono": 1.5 + number, "rank": rank, "round": number, "pid": pid}
        for number, pair in enumerate(pids, 1)
        for rank, pid in enumerate(pair)
    )


def outcome(**changed: Any) -> RankOutcome:
    final, struck = tuple(final_values(2, 4, True)), ({"mono": 2.4, "kind": "killed", "rank": 1},)
    right = RankOutcome(JOB, 0, RECORDS, struck, steps(), rounds((7, 8), (7, 9)), final, {"exit_code": 0})
    return right._replace(**changed)


def with_record(at: int, **fields: Any) -> tuple[dict[str, Any], ...]:
    return tuple(one | fields if number == at else one for number, one in enumerate(RECORDS))


WRONG: dict[str, dict[str, Any]] = {
    "it did not end": {"code": None},
    "another code than on record": {"code": 93, "verdict": {"exit_code": 93}},
    "another termination message": {"verdict": {"exit_code": 93}},
    "a code that the budget does not explain": {
        "code": 93,
        "verdict": {"exit_code": 93},
        "records": with_record(3, exit_code=93),
    },
    "ftrun threw": {"stderr": 'File "/x/supervisor/ftrun/pid1/loop.py"'},
    "another value at the end": {"final": (1, 2)},
    "no value at the end": {"final": (None, None)},
    "another value in a step": {"steps": (*steps()[:-1], steps()[-1] | {"value": 1})},
    "two rounds at work": {"steps": (*steps(), steps()[0] | {"mono": 3.5})},
    "a survivor has a new process": {"rounds": rounds((7, 8), (6, 9))},
    "a coarser rung comes first": {
        "records": (RECORDS[0], record(2.45, "recovering", rung="tree", round=2, ranks=[], why=""), *RECORDS[1:])
    },
    "a rung that is not permitted": {"job": JOB._replace(options=(*OPTIONS[:2], ("recover", "retry")))},
    "another success than was begun": {"records": with_record(2, ranks=[0])},
    "a round again": {"records": with_record(1, round=1)},
    "nothing had been done": {"struck": ()},
    "a process is left": {"left": ("process 7",)},
}


def test_a_right_outcome_has_no_violation() -> None:
    assert check(outcome()) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_violation_is_found(name: str) -> None:
    assert check(outcome(**WRONG[name]))


def test_a_job_follows_from_seed_and_index() -> None:
    made = [job(7, index) for index in range(200)]
    assert made == [job(7, index) for index in range(200)]
    assert {fault.moment for one in made for fault in one.inner} == {"step", "keep", "leave", "restore", "go"}
    assert {dict(one.options)["standby"] for one in made} >= {"off", "1"}
