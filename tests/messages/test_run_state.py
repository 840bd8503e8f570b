"""What `state.json` has beside the ledger: written and read as one type, also if another version has written it."""

import json
from pathlib import Path

from ftrun.core.machine.states import Job, Paused, Pending, Restart, Running, Suspect
from ftrun.core.machine.values import Attempt, Finding, Ledger, LocalRank, LookState, Spin, Standstill
from ftrun.core.ranks.table import RankMember, Rounds
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.standby import NextStart
from ftrun.messages import run_state
from ftrun.messages.run_state import AttemptStatus, JobStatus, RoundStatus, RunFacts, RunState, SpinStatus, job_status
from ftrun.messages.state import dump_state, load_state
from ftrun.records.files import state

ROOT = Path(__file__).parents[2]
LIMITS = Limits(hang=60.0, start=None, section=None)
PROCESSES = LocalRank(4, 0, 11), LocalRank(5, 1, 12, 7.0, code=1, exception="ValueError: no")
MEMBERS = RankMember(0, 4, "waiting"), RankMember(1, 5, "starting")
ROUNDS = Rounds(MEMBERS, "meeting", 2, "rank", frozenset({1}), "rank 5 died", since=7.0, began=3.0)
LOOK = LookState(Standstill(4, 5.0), wait="rank 4 computes", spin=Spin(6.0, "it computes", "f", 4, 11))
ATTEMPT = Attempt(3, 11, 1.0, aways=((1.0, 2.0),), stalled=Standstill(4, 5.0), processes=PROCESSES, look=LOOK)


def written_and_read(found: RunState) -> RunState:
    return run_state.read(load_state(dump_state(Ledger(), found._asdict()))[1])


def test_what_is_written_is_read() -> None:
    run = RunFacts(
        "1.0.0",
        7,
        8,
        "boot",
        command=("train",),
        limits=LIMITS,
        options={"grace": ("9s", "option")},
        restart_on=("hang",),
    )
    job = Job(Running(ATTEMPT._replace(rounds=ROUNDS), 90.0), paused=Paused(80.0, None, by="root"))
    found = RunState("/dev/shm/b", 11, 12, run=run, next_start=NextStart(1, 2), now=job_status(job, 70.0, False))
    assert written_and_read(found) == found
    attempt = found.now.attempt
    assert attempt is not None
    assert attempt.rounds == RoundStatus(2, "meeting", "rank", (5,), (5,), "rank 5 died", 7.0, 3.0)
    assert attempt.spin == SpinStatus(4, 5.0, 6.0, "it computes")
    assert attempt.processes == PROCESSES


def test_a_suspicion_and_what_is_intended_are_read() -> None:
    finding = Finding("step", -1, 61.0, 60.0)
    job = Job(Suspect(ATTEMPT, finding, 90.0), Restart("hang", 2))
    now = written_and_read(RunState(now=job_status(job, 70.0, True))).now
    assert (now.phase, now.finding, now.spare, now.since) == ("suspect", finding, True, 70.0)
    assert (now.want.want, now.want.reason, now.want.consecutive) == ("again", "hang", 2)


def test_what_the_first_start_waits_for_is_read() -> None:
    job = Job(Pending(9.0, frozenset({"history", "devices"})))
    now = written_and_read(RunState(now=job_status(job, 1.0, False))).now
    assert (now.phase, now.awaits) == ("pending", ("devices", "history"))


def test_a_file_of_another_version_is_read() -> None:
    attempt = {"number": 1, "pid": 7, "spawned_at": 5.0, "wait": "it waits", "of_a_later_one": 1}
    now = run_state.read(
        {"now": {"phase": "running", "attempt": attempt, "of_a_later_one": 1}, "of_a_later_one": 1}
    ).now
    assert now.attempt == AttemptStatus(1, 7, 5.0, wait="it waits")
    found = state.load(str(ROOT / "docs/examples/timeline"))
    assert (found.problem, found.rest.now.phase, found.rest.run.node) == (None, "done", "vm")
    assert found.rest.run.limits == Limits(4.0, 3600.0, 3600.0, idle=1800.0, automatic=4.0)


def test_a_figure_that_no_clock_has_is_refused(tmp_path: Path) -> None:
    for since in ("1e300", "NaN", "Infinity", '"soon"', "true"):
        (tmp_path / "state.json").write_bytes(dump_state(Ledger(), {"now": JobStatus(since=0.5)._asdict()}))
        written = (tmp_path / "state.json").read_text().replace('"since": 0.5', f'"since": {since}')
        assert json.loads(written)
        (tmp_path / "state.json").write_text(written)
        assert "malformed (`now`: `since`: not a number)" in str(state.load(str(tmp_path)).problem)
