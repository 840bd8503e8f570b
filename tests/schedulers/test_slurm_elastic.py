"""docs/schedulers/slurm/elastic.sh with a real Slurm: one of three tasks is lost, and the job goes on."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from schedulers.slurm import Job, Submit, drained, failing_npu_smi
from support.ports import free_ports
from support.runs import python, wait_for

pytestmark = pytest.mark.slow  # in the gate tests/net/test_group_fewer.py has spares and fewer members
SECRET = "0123456789abcdef"
SOON = {"FTRUN_PEER_TIMEOUT": "5s", "FTRUN_WAIT_PEER": "3s", "FTRUN_STOP_GRACE": "1s", "FTRUN_GRACE": "1s"}
# Each node trains until the file `enough` exists.
WORK = """
import os, time
env = os.environ
print("start", env["MA_PROC_START_CNT"], "epoch", env["FTRUN_EPOCH"], "node", env["GROUP_RANK"], "of", env["NNODES"],
      "task", env["SLURM_PROCID"], "on", env["SLURMD_NODENAME"], "under", os.getppid(), flush=True)
step = 0
while not os.path.exists("enough"):
    step += 1
    ft.beat(step)
    time.sleep(0.02)
"""
START = re.compile(r"^start (\d+) epoch (\d+) node (\d+) of (\d+) task (\d+) on (\w+) under (\d+)$", re.MULTILINE)


def begin(submit: Submit, folder: Path, **options: str) -> Job:
    (folder / "secret").write_text(SECRET)
    # The names of these nodes do not resolve.
    group = {"FTRUN_GROUP_SECRET_FILE": str(folder / "secret"), "FTRUN_GROUP_ENDPOINT": f"127.0.0.1:{free_ports(1)[0]}"}
    return submit(*python(WORK), nodes="3", partition="wide", script="elastic.sh", **SOON, **group, **options)


def at_work(job: Job, epoch: int, nodes: int) -> dict[int, int]:
    """When all nodes of this epoch have started: their tasks in the order of the nodes, and the pid of each ftrun."""

    def found() -> dict[int, int]:
        starts = [[int(n) for n in m.groups() if n.isdigit()] for m in START.finditer(job.output)]
        these = sorted((node, task, under) for _, at, node, of, task, under in starts if at == epoch and of == nodes)
        assert len(these) <= nodes
        return {task: under for _, task, under in these} if len(these) == nodes else {}

    running: dict[int, int] = wait_for(found, f"{nodes} nodes of epoch {epoch}")
    return running


def finish(job: Job) -> dict[str, str]:
    (job.folder / "enough").touch()
    return job.end()


def message(job: Job, task: int) -> dict[str, Any] | None:
    path = job.state_dir / "messages" / str(task)
    return dict(json.loads(path.read_bytes())) if path.exists() else None


def failing_device(submit: Submit, folder: Path) -> dict[str, str]:
    """Options for devices of which that of n2 fails once there is a file `broken`."""
    path = f"{failing_npu_smi(folder, 'n2')}:{submit.cluster.environment['PATH']}"
    return {"FTRUN_PROBE": "ascend", "FTRUN_IDLE_TIMEOUT": "20s", "PATH": path}


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        pytest.param({"FTRUN_SPARES": "1"}, [0, 1], [0, 2], id="a spare"),
        pytest.param({"FTRUN_GROUP_SIZE": "2:3"}, [0, 1, 2], [0, 2], id="fewer"),
    ],
)
def test_a_job_goes_on_and_succeeds_after_the_ftrun_of_a_task_was_killed(
    submit: Submit, tmp_path: Path, options: dict[str, str], before: list[int], after: list[int]
) -> None:
    job = begin(submit, tmp_path, **options)
    running = at_work(job, 1, len(before))
    assert [*running] == before
    os.kill(running[1], signal.SIGKILL)
    assert [*at_work(job, 2, len(after))] == after
    ended = finish(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "0")
    assert message(job, 1) is None
    for task in after:
        found = message(job, task)
        assert found is not None
        assert (found["exit_code"], found["verdict"], found["isolate"]) == (0, "succeeded", False)


def test_a_job_goes_on_and_succeeds_after_a_node_has_failed(submit: Submit, tmp_path: Path) -> None:
    job = begin(submit, tmp_path, FTRUN_GROUP_SIZE="2:3")
    at_work(job, 1, 3)
    submit.cluster.fail_node("n3")
    assert [*at_work(job, 2, 2)] == [0, 1]
    ended = finish(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "0")


def test_a_node_with_a_fault_is_drained_although_the_job_goes_on_and_succeeds(submit: Submit, tmp_path: Path) -> None:
    """Its 197 is the highest code of all tasks, and would have the job run again.  A signal from outside later is no
    reason either to end with it."""
    job = begin(submit, tmp_path, FTRUN_SPARES="1", **failing_device(submit, tmp_path))
    at_work(job, 1, 2)
    (tmp_path / "broken").touch()
    assert [*at_work(job, 2, 2)] == [0, 2]
    ended = finish(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "0")
    found = message(job, 1)
    assert found is not None
    assert (found["exit_code"], found["verdict"], found["isolate"], found["node"]) == (197, "node-fault", True, "n2")
    assert not (job.state_dir / "verdict.json").exists()
    wait_for(lambda: drained(submit) == ["n2"], "that only n2 is drained")


def test_a_job_that_is_cancelled_after_one_node_had_a_fault_does_not_end_with_its_197(
    submit: Submit, tmp_path: Path
) -> None:
    job = begin(submit, tmp_path, FTRUN_SPARES="1", **failing_device(submit, tmp_path))
    at_work(job, 1, 2)
    (tmp_path / "broken").touch()
    at_work(job, 2, 2)
    submit.cluster.output("scancel", job.number)
    assert job.end()["JobState"] == "CANCELLED"
    found = [message(job, task) for task in (0, 2)]
    assert 197 not in [one and one["exit_code"] for one in found], found
    wait_for(lambda: drained(submit) == ["n2"], "that only n2 is drained")


@pytest.mark.parametrize(
    ("options", "working", "lost"),
    [
        pytest.param({"FTRUN_GROUP_SIZE": "2:3"}, 3, [1, 2], id="too few"),
        pytest.param({"FTRUN_SPARES": "1"}, 2, [0], id="task 0, which coordinates the group"),
    ],
)
def test_a_job_that_cannot_go_on_runs_again(
    submit: Submit, tmp_path: Path, options: dict[str, str], working: int, lost: list[int]
) -> None:
    job = begin(submit, tmp_path, **options)
    running = at_work(job, 1, working)
    for task in lost:
        os.kill(running[task], signal.SIGKILL)
    wait_for(lambda: job.show().get("Restarts") == "1", "that the job is requeued")
    ended = finish(job)
    assert job.requeued == ["195:0"]
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1")
