"""Recovery below the tree, with real processes: ranks that speak the control protocol (`support/plain_rank.py`)."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ftrun.records.present.run_snapshot import read_snapshot
from support.containers import Run, Starter, either
from support.runs import HOUSE, Mode, wait_for
from support.short import quick

RANKS = 4
STEPS = 12


class Job:
    """A job of four such ranks.  Each line of `log` is one step: round, rank, step, pid."""

    def __init__(self, start: Starter, folder: Path, faults: str = "", mode: Mode = "subreaper", *options: str) -> None:
        self.folder = folder / "progress"
        self.folder.mkdir()
        paths = os.pathsep.join(str(HOUSE / name) for name in ("hooks",))
        environment = {"PROGRESS": str(self.folder), "PYTHONPATH": paths}
        command = [sys.executable, str(HOUSE / "tests/support/plain_rank.py"), str(STEPS), faults]
        given = ["--nproc-per-node", str(RANKS), "--grace", "1s", *options]
        self.run: Run = start(*command, mode=mode, options=given, env=environment)

    @property
    def log(self) -> list[tuple[int, ...]]:
        lines = (self.folder / "log").read_text().splitlines()
        return [tuple(map(int, line.split()[1:])) for line in lines]

    def pids(self, number: int) -> dict[int, int]:
        return {rank: pid for found, rank, _, pid in self.log if found == number}

    def finish(self) -> int:
        code, _, err = self.run.finish()
        print(err)
        return code


def only(records: list[dict[str, Any]]) -> dict[str, Any]:
    (record,) = records
    return record


# In its first process the victim leaves a daemon behind; its second one writes whether that is gone.
DIES = """
import os, subprocess, sys, time
if rank == {victim} and step == 5 and starts == 1:
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(3600)"
    path = f"{{FOLDER}}/daemon"
    subprocess.Popen([sys.executable, "-c", code, path], start_new_session=True)
    while not os.path.exists(path) or not open(path).read():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
if rank == {victim} and step == 5 and starts == 2:
    try:
        state = open("/proc/" + open(f"{{FOLDER}}/daemon").read() + "/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        state = "gone"
    open(f"{{FOLDER}}/gone", "w").write(str(state in ("gone", "Z", "X")))
"""


@pytest.mark.parametrize("victim", quick([0, 2]))
@either
def test_a_rank_that_is_killed_is_replaced_alone_and_its_daemon_is_ended(
    victim: int, start: Starter, mode: Mode, tmp_path: Path
) -> None:
    job = Job(start, tmp_path, DIES.format(victim=victim), mode)
    assert job.finish() == 0
    before, after = job.pids(1), job.pids(2)
    assert {rank for rank in before if before[rank] != after[rank]} == {victim}
    assert len(after) == RANKS
    begun = only(job.run.named("recovering"))
    assert (begun["rung"], begun["round"], begun["ranks"]) == ("rank", 2, [victim])
    assert "SIGKILL" in begun["why"]
    ended = only(job.run.named("recovered"))
    assert (ended["rung"], ended["round"], ended["ranks"], ended["step"]) == ("rank", 2, [victim], 5)
    assert min(step for number, _, step, _ in job.log if number == 2) == 6, "no step is done twice"
    assert (job.folder / "gone").read_text() == "True"
    assert not job.run.named("restart")
    wait_for(lambda: not start.living(), "the end of all processes")


def test_a_rank_that_does_not_leave_its_round_is_replaced(start: Starter, tmp_path: Path) -> None:
    fault = """
import os, time
if rank == 3 and step == 5 and starts == 1: time.sleep(3600)
if rank == 1 and step == 5 and round == 1:
    while any(not os.path.exists(f"{FOLDER}/at-1-5-{other}") for other in (0, 2)): time.sleep(0.01)
    raise Retry("why")
while rank == 3 and round == 2 and not os.path.exists(f"{FOLDER}/shown"): time.sleep(0.01)
"""
    job = Job(start, tmp_path, fault, "subreaper", "--recover-timeout", "3s")
    job.run.until("recovering")

    def is_shown() -> bool:
        return "rank 3" in (read_snapshot(str(job.run.run_dir)).recovery or "")

    wait_for(is_shown, "the state to show the recovery")
    (job.folder / "shown").touch()
    assert job.finish() == 0
    assert [record["rung"] for record in job.run.named("recovering")] == ["retry", "rank"]
    assert only(job.run.named("recovered"))["ranks"] == [3]


def test_a_rank_that_dies_again_before_the_recovery_is_proved_restarts_all(start: Starter, tmp_path: Path) -> None:
    fault = "import os\nif rank == 2 and step == 5 and starts < 3: os.kill(os.getpid(), 9)"
    job = Job(start, tmp_path, fault, "subreaper", "--restart-on", "failure", "--backoff", "10ms")
    assert job.finish() == 0
    assert [record["rung"] for record in job.run.named("recovering")] == ["rank", "tree"]
    restart = only(job.run.named("restart"))
    assert (restart["reason"], restart["start_cnt"]) == ("failure", 3), "no rank sees its number of starts go back"
    assert not job.run.named("recovered")


def test_a_death_ends_the_job_where_no_rank_may_be_replaced(start: Starter, tmp_path: Path) -> None:
    fault = "import os\nif rank == 2 and step == 5: os._exit(7)"
    job = Job(start, tmp_path, fault, "subreaper", "--recover", "retry")
    assert job.finish() == 7
    assert not job.run.named("recovered")


def test_a_rank_that_is_stopped_is_replaced_alone(start: Starter, tmp_path: Path) -> None:
    fault = "import os, signal\nif rank == 2 and step == 5 and starts == 1: os.kill(os.getpid(), signal.SIGSTOP)"
    job = Job(start, tmp_path, fault, "subreaper", "--hang-timeout", "4s")
    assert job.finish() == 0
    before, after = job.pids(1), job.pids(2)
    assert {rank for rank in before if before[rank] != after[rank]} == {2}
    assert only(job.run.named("hang"))["culprits"] == [2]
    assert read_snapshot(str(job.run.run_dir)).recovered == {"rank": 1}
    assert only(job.run.named("recovered"))["ranks"] == [2]
    assert not job.run.named("restart")
