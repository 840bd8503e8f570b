"""The check of a job of a group finds planted violations."""

import pickle
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job
from ftrun.core.rules.policy import Policy
from proof.chaos.companions import COMPANIONS, SHORT_INPUT
from proof.chaos.group_check import check
from proof.chaos.group_faults import leftovers
from proof.chaos.group_plan import ALONE, OUTER, SHAPES, GroupJob, GroupOutcome, GroupRun, Shape, job, ranks_job
from proof.chaos.rank_numbers import final_values
from proof.chaos.rank_plan import RankJob
from proof.chaos.replay import core_records

OPTIONS = (("restart-on", "hang,fault,failure"), ("recover", "retry,rank"))
BASE = RankJob(1, 1, 4, 4, 0.01, 1, 2, True, False, False, OPTIONS, 3, ())
ELASTIC = GroupJob(BASE, Shape(2, 1), False, ())
SAVED = "/shared/checkpoint-000002-0"
POLICY = Policy(restart_on=frozenset({"failure"}), max_restarts=1, limits=Policy().limits._replace(grace=1.0))
EVENTS: tuple[ev.Event, ...] = (ev.Started(1.0), ev.CommandSpawned(1.1, 7), ev.CommandExited(5.0, 0), ev.TreeEnded(5.1))


def decisions() -> bytes:
    """Of an ftrun whose command ends with 0, as kept_decisions.py keeps them."""
    kept, job, policy = b"", Job(), POLICY
    for number, event in enumerate(EVENTS):
        kept += pickle.dumps((event, None if number else policy, None if number else job))
        job, _ = decide(job, event, policy)
    return kept


RECORDS = tuple(
    record | {"mono": at, "time": ""}
    for record, at in zip(core_records(decisions()), (1.0, 1.1, 5.0, 5.0, 5.1), strict=True)
)
SAVES = {"schema": 1, "time": "", "mono": 2.5, "event": "problem", "attempt": 1, "what": "it has saved"}


def order(epoch: int) -> dict[str, Any]:
    """To start this epoch."""
    fields = {"event": "group", "attempt": 0, "what": "run", "epoch": epoch}
    return {"schema": 1, "time": "", "mono": 1.05, **fields}


def run(member: int, **changed: Any) -> GroupRun:
    made = GroupRun(member, 0, RECORDS, 0, False, 0.5, {"exit_code": 0}, "", decisions())._replace(**changed)
    return made._replace(records=(*made.records[:1], order(1), order(2), *made.records[1:]))


def lines(*what: tuple[int, int, int, int, float]) -> tuple[dict[str, Any], ...]:
    """Of the training: epoch, rank, first and last step, and when the first of them was done."""
    return tuple(
        {
            "epoch": epoch,
            "round": 1,
            "rank": rank,
            "node": f"member-{rank // 2}-0",
            "pid": 10 + rank,
            "step": step,
            "value": final_values(4, step, True)[0],
            "mono": at + 0.1 * (step - first),
        }
        for epoch, rank, first, last, at in what
        for step in range(first, last + 1)
    )


def begun(epoch: int, ranks: int, step: int, at: float, number: int = 1) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "epoch": epoch,
            "round": number,
            "rank": rank,
            "node": f"member-{rank // 2}-0",
            "pid": 10 + rank,
            "step": step,
            "mono": at,
        }
        for rank in range(ranks)
    )


def outcome(**changed: Any) -> GroupOutcome:
    """Two members, of which one is killed after step 2; the other goes on with half of the ranks."""
    struck = ({"mono": 2.9, "kind": "ftrun killed", "what": "", "member": 1},)
    steps = lines(*((1, rank, 1, 2, 2.0) for rank in range(4)), *((2, rank, 3, 4, 4.0) for rank in range(2)))
    right = GroupOutcome(
        ELASTIC,
        (run(1, code=137, killed=True, records=RECORDS[:2]), run(0)),
        struck,
        steps,
        (*begun(1, 4, 0, 1.9), *begun(2, 2, 2, 3.9)),
        {rank: final_values(4, 4, True)[0] for rank in range(2)},
        (),
        (1,),
        9.0,
        0.0,
    )
    return right._replace(**changed)


def with_run(**changed: Any) -> dict[str, Any]:
    return {"runs": (outcome().runs[0], run(0, **changed))}


def with_record(at: int, **fields: Any) -> dict[str, Any]:
    return with_run(records=tuple(one | fields if number == at else one for number, one in enumerate(RECORDS)))


def saved(at: float) -> dict[str, Any]:
    fields = {"event": "progress", "attempt": 1, "by": "checkpoint", "step": 2, "checkpoint": SAVED}
    return {"schema": 1, "time": "", "mono": at, **fields}


def struck(kind: str, what: str = "", member: int = 0, **more: Any) -> dict[str, Any]:
    """A fault that struck a member from outside, beside that of the right outcome."""
    fault = {"mono": 2.0, "kind": kind, "what": what, "member": member, "container": 0, "rank": 0, "pid": 0}
    return fault | {"lasting": 1.0} | more


def with_fault(fault: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {"struck": (*outcome().struck, fault)} | changed


def request(what: str, at: float, ok: bool = True) -> dict[str, Any]:
    fields = {"event": "order", "attempt": 1, "what": what, "id": "1", "by": "root", "ok": ok, "why": ""}
    return {"schema": 1, "time": "", "mono": at, **fields}


def recovery(rung: str = "rank", number: int = 2, proved: tuple[int, ...] = (1,), **changed: Any) -> dict[str, Any]:
    """A round that begins, and succeeds."""
    fields = {"schema": 1, "time": "", "attempt": 1, "rung": rung, "round": number}
    begins = fields | {"mono": 3.0, "event": "recovering", "ranks": [1] if rung == "rank" else [], "why": ""}
    succeeds = fields | {"mono": 3.5, "event": "recovered", "ranks": list(proved), "step": 2}
    return with_run(records=(*RECORDS[:2], begins, succeeds, *RECORDS[2:])) | changed


STOP = struck("operator request", "stop", answer=0)
STOPPED = run(
    0,
    code=143,
    verdict={"exit_code": 143},
    records=(*RECORDS[:2], request("stop", 2.1), RECORDS[-1] | {"mono": 2.5, "exit_code": 143, "verdict": "stopped"}),
)
COARSE = recovery("tree")["runs"][1].records[4] | {"mono": 2.95}
TOO_SOON = "member 1 (node-1) is lost: no message arrived from it for 2.5s"
WRONG: dict[str, dict[str, Any]] = {
    "it did not end": with_run(code=None),
    "another code than on record": with_run(code=93, verdict={"exit_code": 93}),
    "another termination message": with_run(verdict={"exit_code": 93}),
    "a rank has read a part of the input": with_record(2, code=SHORT_INPUT),
    "ftrun threw": with_run(stderr='File "/x/supervisor/ftrun/pid1/loop.py"'),
    "the records are not in order": with_record(3, mono=4.0),
    "another value in a step": {"steps": (*outcome().steps[:-1], outcome().steps[-1] | {"value": 1})},
    "another value at the end": {"final": {0: 1, 1: 2}},
    "no value at the end": {"final": {0: outcome().final[0]}},
    "two epochs at work": {"steps": (*outcome().steps, outcome().steps[0] | {"mono": 4.05})},
    "a process is new without a record": {
        "rounds": (*outcome().rounds, *(one | {"pid": 99} for one in begun(2, 2, 2, 4.5, number=2)))
    },
    "a checkpoint is lost": {
        "runs": (run(1, code=137, killed=True, records=(*RECORDS[:2], saved(2.4))), run(0)),
        "rounds": (*begun(1, 4, 0, 1.9), *begun(2, 2, 1, 3.9)),
    },
    "a code that nothing explains": {
        "runs": (
            outcome().runs[0],
            run(0, code=93, verdict={"exit_code": 93}, records=(*RECORDS[:-1], RECORDS[-1] | {"exit_code": 93})),
        )
    },
    "something is left": {"left": ("process 7",)},
    "the core would have written another record": with_record(2, code=3),
    "the core would have written one more record": with_run(records=(*RECORDS[:2], *RECORDS[3:])),
    "the core would have written one record less": with_run(records=(*RECORDS, RECORDS[-1] | {"event": "restart"})),
    "the last record is missing": with_run(records=RECORDS[:-1]),
    "the state dir is full, and a record is missing": with_fault(
        struck("disk full", "state"), **with_run(records=(*RECORDS[:2], *RECORDS[3:]))
    ),
    "the run dir is full, and ftrun does not say that a record is missing": with_fault(
        struck("disk full", "run"), **with_run(records=(*RECORDS[:2], *RECORDS[3:]))
    ),
    "the run dir is full, and a record is none of the core": with_fault(
        struck("disk full", "run"),
        **with_run(
            records=(*RECORDS[:2], RECORDS[2] | {"code": 3}, *RECORDS[3:]), stderr="records in /run cannot be written"
        ),
    ),
    "the run dir is full, and the code is another one than that of the termination message": with_fault(
        struck("disk full", "run"), **with_run(verdict={"exit_code": 93})
    ),
    "the state dir is full for ever, and that is not on record": with_fault(struck("disk full", "state", lasting=1e6)),
    "a member is lost too soon": {
        "job": ELASTIC._replace(base=BASE._replace(options=(*OPTIONS, ("peer-timeout", "15s")))),
        "runs": (
            outcome().runs[0],
            run(0, records=(*RECORDS[:2], order(2) | {"mono": 2.9, "why": TOO_SOON}, *RECORDS[2:])),
        ),
    },
    "an epoch begins before its order is on record": {
        "runs": (outcome().runs[0], outcome().runs[1]._replace(records=RECORDS))
    },
    "ftctl hangs": with_fault(struck("operator request", "resume", answer=-9)),
    "ftctl calls done what is not on record": with_fault(struck("operator request", "resume", answer=0)),
    "a silence of the ftruns that is permitted ends one": {
        "struck": (struck("ftrun's traffic blocked", "sent"),),
        "runs": (
            outcome().runs[0]._replace(code=0, killed=False),
            run(0, code=195, records=(*RECORDS[:-1], RECORDS[-1] | {"exit_code": 195}), verdict={"exit_code": 195}),
        ),
    },
    "an epoch begins before the ranks of the one before have ended": {
        "runs": (
            run(1)._replace(records=(RECORDS[0], order(1), RECORDS[1], RECORDS[2] | {"mono": 3.5}, *RECORDS[3:])),
            run(0)._replace(records=(RECORDS[0], order(2), RECORDS[1] | {"mono": 3.1}, *RECORDS[2:])),
        )
    },
    "what the platform reports is not on record": with_fault(struck("platform reports a faulty process", lasting=2.0)),
    "a stop starts the ranks again": {
        "struck": (STOP,),
        "runs": (
            outcome().runs[0],
            run(0, records=(*RECORDS[:2], request("stop", 2.1), RECORDS[1] | {"mono": 2.2}, *RECORDS[2:])),
        ),
    },
    "an epoch begins after a stop": {
        "struck": (STOP,),
        "runs": (run(1, code=143, verdict={"exit_code": 143}, records=STOPPED.records), STOPPED),
    },
    "the platform wants a new process, and the old one goes on": with_fault(
        struck("platform asks for a new process", pid=10, lasting=1.5),
        **with_run(
            records=(*RECORDS[:2], RECORDS[1] | {"mono": 2.4, "event": "fault", "retry": "process"}, *RECORDS[2:])
        ),
    ),
}
WRONG |= {
    "a coarser rung comes first": with_run(records=(*RECORDS[:2], COARSE, *recovery(number=3)["runs"][1].records[4:])),
    "a rung that is not permitted": recovery(
        job=ELASTIC._replace(base=BASE._replace(options=(*OPTIONS[:1], ("recover", "retry"))))
    ),
    "another success than was begun": recovery(proved=(0,)),
    "a round again": recovery(number=1),
    "it recovers from nothing": recovery(struck=()),
}
# What another rule than the one that is meant must not hide.
NAMED = {
    "a rank has read a part of the input": "its input whole",
    "a coarser rung comes first": "rung rank follows tree",
    "a rung that is not permitted": "rung rank is not permitted",
    "another success than was begun": "it recovered by rank for [0], begun was",
    "a round again": "after round 1",
    "it recovers from nothing": "and nothing had been done to it",
    "the run dir is full, and ftrun does not say that a record is missing": "it does not say so",
    "the run dir is full, and a record is none of the core": "against the core",
    "an epoch begins before its order is on record": "before the order to start was on record",
    "an epoch begins before the ranks of the one before have ended": "epoch 2 began in 0-0 at 3.1",
    "what the platform reports is not on record": "is not on record",
    "a stop starts the ranks again": "has started its ranks again",
    "the state dir is full for ever, and that is not on record": "disk full of the state dir is not on record",
    "a member is lost too soon": "a member was lost after 2.5 s without a message, of 15 s",
    "ftctl hangs": "ftctl resume ended with -9",
    "ftctl calls done what is not on record": "which is not on record",
    "a silence of the ftruns that is permitted ends one": "which nothing explains",
    "an epoch begins after a stop": "was stopped, and rank 0 began epoch 2",
    "the platform wants a new process, and the old one goes on": "that the platform wants replaced",
}


def test_what_ftrun_leaves_in_memory_and_in_the_folder_for_temporary_files_is_found(tmp_path: Path) -> None:
    (tmp_path / "dev/shm/ftrun-standby").mkdir(parents=True)
    for name in ("tmpabc", "verdict", "output-0", "known"):
        (tmp_path / name).touch()
    made: Any = SimpleNamespace(folder=tmp_path, inside=lambda path: tmp_path / path.relative_to("/"))
    assert leftovers(made, {"known", "dev"}) == [str(tmp_path / "tmpabc"), "/dev/shm/ftrun-standby"]


def test_a_stop_of_a_spare_ends_that_one_alone() -> None:
    spare = order(2) | {"members": [0]}
    ended = RECORDS[-1] | {"exit_code": 143, "verdict": "stopped"}
    stopped = run(1, code=143, verdict={"exit_code": 143}, records=(RECORDS[0], spare, request("stop", 3.9), ended))
    alone = {"struck": (struck("operator request", "stop", 1, mono=3.8, answer=0),)}
    assert not any("the members [0] with 0" in wrong for wrong in check(outcome(**alone, runs=(stopped, run(0)))))
    placed = stopped._replace(records=tuple(one for one in stopped.records if one != spare))
    assert any("the members [0] with 0" in wrong for wrong in check(outcome(**alone, runs=(placed, run(0)))))


def test_a_right_outcome_has_no_violation() -> None:
    assert check(outcome()) == []


@pytest.mark.parametrize("proved", [False, True])
def test_a_round_that_another_member_has_proved_may_be_followed_by_the_finest_rung(proved: bool) -> None:
    first, second = (recovery(rung, number)["runs"][1].records for rung, number in (("rank", 2), ("retry", 3)))
    begins, succeeds = (next(r for r in first if r["event"] == what) for what in ("recovering", "recovered"))
    anew = [r | {"mono": r["mono"] + 0.1} for r in second if r["event"] in ("recovering", "recovered")]
    other = run(1, records=(*RECORDS[:2], *([succeeds] if proved else []), *RECORDS[2:]))
    wrong = check(outcome(runs=(other, run(0, records=(*RECORDS[:2], begins, *anew, *RECORDS[2:])))))
    assert any("rung retry follows rank" in one for one in wrong) != proved


def test_what_suspends_one_ftrun_alone_ends_no_rank() -> None:
    alone = recovery(
        job=ELASTIC._replace(shape=Shape(1)), struck=(struck("container stopped", "signals", lasting=8.0),)
    )
    assert any("and nothing had been done to it" in wrong for wrong in check(outcome(**alone)))


@pytest.mark.parametrize(("at", "wrong"), [(0.9, False), (1.1, True)])
def test_a_coordinator_may_be_lost_before_it_has_told_the_ftrun_beside_it_to_start(at: float, wrong: bool) -> None:
    lost = struck("helper killed", "messenger", mono=at)
    found = check(outcome(**recovery(struck=(lost,))))
    assert any("and nothing had been done to it" in one for one in found) == wrong


def test_one_ftrun_alone_has_no_orders_but_its_rounds_are_on_record() -> None:
    alone = {
        "job": ELASTIC._replace(shape=Shape(1)),
        "runs": (run(0)._replace(records=RECORDS),),
        "struck": (),
        "steps": lines(*((1, rank, 1, 4, 2.0) for rank in range(4))),
        "final": {rank: final_values(4, 4, True)[0] for rank in range(4)},
        "lost": (),
    }
    first, second = begun(1, 4, 0, 1.9), begun(1, 4, 2, 2.5, number=2)
    assert check(outcome(**alone, rounds=first)) == []
    assert any("before that was on record" in wrong for wrong in check(outcome(**alone, rounds=(*first, *second))))


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_violation_is_found(name: str) -> None:
    assert any(NAMED.get(name, "") in wrong for wrong in check(outcome(**WRONG[name])))


def test_a_full_run_dir_may_lose_records_of_which_ftrun_says_so() -> None:
    alone = with_run(records=(*RECORDS[:2], *RECORDS[3:-1]), stderr="records in /run cannot be written (no space)")
    assert check(outcome(**with_fault(struck("disk full", "run"), **alone))) == []


@pytest.mark.parametrize("name", [name for name in WRONG if name.startswith("the core")])
def test_the_replay_alone_finds_what_is_not_as_the_core_has_it(name: str) -> None:
    assert any("against the core" in wrong for wrong in check(outcome(**WRONG[name])))


def test_a_record_from_around_the_core_may_stand_between() -> None:
    assert check(outcome(**with_run(records=(*RECORDS[:2], SAVES, *RECORDS[2:])))) == []


def test_a_group_of_which_nobody_was_left_begins_with_epoch_1_again() -> None:
    struck = [{"mono": at, "kind": "ftrun killed", "what": "anew", "member": 1} for at in (2.9, 4.5)]
    steps = lines(*((epoch, rank, 3 * epoch - 2, 3 * epoch - 1, 2.0 + epoch) for epoch in (1, 2) for rank in range(2)))
    later = lines(*((1, rank, 4, 4, 6.0) for rank in range(2)))
    runs = [run(1, code=137, killed=True, records=RECORDS[:2], began=at) for at in (0.5, 3.0)]
    rounds = (*begun(1, 2, 0, 2.9), *begun(2, 2, 3, 3.9), *begun(1, 2, 3, 5.9))
    alone = {"struck": tuple(struck), "steps": (*steps, *later), "rounds": rounds}
    assert check(outcome(**alone, runs=(*runs, run(0, began=5.5)))) == []
    assert check(outcome(**alone, runs=(*runs, run(0, began=4.0))))  # it could have known


def test_within_an_epoch_a_snapshot_may_be_older_than_a_checkpoint_by_the_steps_between_snapshots() -> None:
    """As docs/recovery.md has it, the ranks begin with the newest snapshot, or else with the checkpoint."""
    job = ELASTIC._replace(base=BASE._replace(keep_every=2, save_every=3))
    saved_3 = saved(2.4) | {"checkpoint": "/shared/checkpoint-000003-0"}
    first = (*begun(1, 4, 0, 1.9), *begun(1, 4, 2, 2.6, number=2), *begun(2, 2, 3, 3.9))
    alone = {"job": job, "runs": (run(1, code=137, killed=True, records=(*RECORDS[:2], saved_3)), run(0))}
    assert not any("on record is checkpoint" in wrong for wrong in check(outcome(**alone, rounds=first)))
    second = (*begun(1, 4, 0, 1.9), *begun(1, 4, 1, 2.6, number=2), *begun(2, 2, 3, 3.9))
    assert any("on record is checkpoint" in wrong for wrong in check(outcome(**alone, rounds=second)))


def test_the_own_code_of_the_command_ends_all_where_failures_are_not_restarted() -> None:
    job = ELASTIC._replace(base=BASE._replace(options=(("restart-on", "hang,fault"), *OPTIONS[1:])))
    records = (*RECORDS[:2], RECORDS[2] | {"code": 1}, *RECORDS[3:-1], RECORDS[-1] | {"exit_code": 1})
    ended = {"code": 1, "verdict": {"exit_code": 1}, "records": records}
    alone = {"job": job, "final": {}, "runs": (run(0, **ended), run(1, **ended))}
    struck = ({"mono": 2.9, "kind": "raises", "moment": "step", "rank": 0},)
    assert not any("which nothing explains" in wrong for wrong in check(outcome(**alone, struck=struck)))
    assert any("which nothing explains" in wrong for wrong in check(outcome(**alone, struck=())))


def test_a_group_that_begins_after_the_end_of_another_member_may_end_otherwise() -> None:
    job = ELASTIC._replace(base=BASE._replace(options=(("restart-on", "hang,fault"), *OPTIONS[1:])))
    ended = run(1, code=3, verdict={"exit_code": 3}, records=(*RECORDS[:-1], RECORDS[-1] | {"exit_code": 3}))
    struck = ({"mono": 2.9, "kind": "exits", "moment": "step", "rank": 2},)
    late, beside = (outcome(job=job, struck=struck, runs=(ended, run(0, began=at))) for at in (5.5, 0.5))
    assert not any("the members [0] with 0" in wrong for wrong in check(late))
    assert any("the members [0] with 0" in wrong for wrong in check(beside))


def test_a_process_may_begin_its_first_round_while_it_is_killed_for_the_platform() -> None:
    fault = RECORDS[1] | {"mono": 3.2, "event": "fault", "retry": "process"}
    ended = RECORDS[1] | {"mono": 3.6, "event": "rank_exited", "local_rank": 0}
    asked = struck("platform asks for a new process", pid=10, rank=0, lasting=1.5)

    def wrong(rounds: tuple[dict[str, Any], ...], *records: dict[str, Any]) -> bool:
        told = check(
            outcome(struck=(asked,), rounds=rounds, **with_run(records=(*RECORDS[:2], *records, *RECORDS[2:])))
        )
        return any("that the platform wants replaced" in one for one in told)

    first = begun(1, 4, 0, 3.3)
    assert not wrong(first, fault, ended)
    assert wrong(first, fault), "it was not killed"
    assert wrong((*first, *begun(1, 4, 0, 3.4, number=2)), fault, ended), "another round"
    assert wrong(begun(1, 4, 0, 3.7), fault, ended), "it had ended, by the records"
    assert not wrong(first, RECORDS[1] | {"mono": 3.0, "event": "removed"}, fault), "which rank is meant is not known"
    new = RECORDS[1] | {"event": "rank_spawned", "local_rank": 0, "pid": 10}
    assert not wrong(first, new | {"mono": 3.1}, fault), "it was new, and waited for its first round"
    assert wrong(first, fault, new | {"mono": 3.25}), "it was started after that"
    assert wrong((*begun(1, 4, 0, 3.15), *first), new | {"mono": 3.1}, fault), "it had begun a round"


def test_a_killed_ftrun_need_not_have_written_its_last_decision() -> None:
    last = run(1, code=137, killed=True, records=RECORDS[:1], decisions=decisions() + decisions()[:20])
    assert check(outcome(runs=(last, run(0)))) == []


def test_a_job_follows_from_seed_and_index() -> None:
    made = [job(7, index) for index in range(300)]
    assert made == [job(7, index) for index in range(300)]
    kinds = {fault.fault.kind for one in made for fault in one.outer}
    assert kinds == {make(random.Random(1), "", 0.0).kind for _, make in OUTER}
    assert {one.shape for one in made} == set(SHAPES)
    assert {dict(one.base.options)["heal"] for one in made} >= {"true", "false"}
    assert {dict(one.base.options).get("min-devices") for one in made} == {None, "1"}
    alone = [ranks_job(7, index) for index in range(200)]
    assert alone == [ranks_job(7, index) for index in range(200)]
    moments = {fault.moment for one in alone for fault in one.base.inner}
    assert moments == {"step", "keep", "leave", "restore", "go", "end"}
    assert {kind for one in alone for kind in one.base.beside} == set(COMPANIONS)
    assert {one.base.rewrites for one in alone} == {True, False}
    signalled = [one for one in alone if one.has(None, ("child signalled",))]
    assert signalled
    assert all(one.base.workers for one in signalled)
    assert {fault.fault.kind for one in alone for fault in one.outer} == {*ALONE} - {"two killed"}
