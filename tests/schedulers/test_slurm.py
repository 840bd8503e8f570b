"""docs/schedulers/slurm with a real Slurm: which jobs run again, and where; which fail; which nodes are drained."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from schedulers import slurm
from schedulers.slurm import NODES, Cluster, Job, Submit, drained, failing_npu_smi
from support.runs import DEADLINE, carrying, python, wait_for
from support.short import quick

SOON = {"FTRUN_HANG_TIMEOUT": "1s", "FTRUN_GRACE": "off", "FTRUN_BACKOFF": "10ms"}
# Without restarts in place, so that the first hang of a schedule is its last.
AT_ONCE = SOON | {"FTRUN_RESTART_ON": "none"}
HANG = "exec fthang sleep --step-time 2ms --steps 20 --checkpoint-dir kept"


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", f"echo schedule $MA_SCHEDULE_CNT on $SLURMD_NODENAME; {script}")


def verdict(job: Job) -> dict[str, Any]:
    path = job.state_dir / "verdict.json"
    assert path.stat().st_mode & 0o044 == 0o044, "the epilog runs as SlurmUser"
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_a_hang_limit_is_requeued_and_resumes_from_its_checkpoint(submit: Submit) -> None:
    script = f"{HANG} --after 8 --times $((9 * (2 - MA_SCHEDULE_CNT)))"
    job = submit(*shell(script), **SOON, FTRUN_MAX_RESTARTS="1")
    ended = job.end()
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("COMPLETED", "1", "0:0")
    assert job.requeued == ["195:0"]
    first, second = job.output.split("schedule 2 on ")
    assert first.count("schedule 1 on n1") == 2  # the start and the restart in place
    assert "resumed at step 5" in second
    assert "finished at step 20" in second
    assert (verdict(job)["verdict"], verdict(job)["schedule_cnt"]) == ("hang-limit", 1)
    assert drained(submit) == []


def test_the_node_of_a_197_is_drained_and_the_job_runs_on_the_other(submit: Submit, tmp_path: Path) -> None:
    """A chip fails permanently while the job runs."""
    script = (
        "test $SLURMD_NODENAME = n1 || exit 0; until grep -q health healthy/calls; do sleep 0.1; done; touch broken; "
    )
    options = {
        "FTRUN_PROBE": "ascend",
        "FTRUN_GRACE": "off",
        "FTRUN_IDLE_TIMEOUT": "20s",
    }  # the probe reads as often as the idle rule
    path = f"{failing_npu_smi(tmp_path, 'n1')}:{submit.cluster.environment['PATH']}"
    job = submit(*shell(f"{script} exec sleep 3600"), **options, PATH=path)
    ended = job.end()
    assert (ended["JobState"], ended["Restarts"], ended["NodeList"]) == ("COMPLETED", "1", "n2")
    assert job.requeued == ["197:0"]
    assert "schedule 1 on n1" in job.output
    assert "schedule 2 on n2" in job.output
    assert (verdict(job)["verdict"], verdict(job)["node"]) == ("node-fault", "n1")
    assert drained(submit) == ["n1"]
    reason = submit.cluster.node("n1")["Reason"]
    assert reason.startswith(f"ftrun: job {job.number}: ")
    assert "80818C00" in reason


@pytest.mark.parametrize(
    ("content", "job", "expected"),
    [
        pytest.param({}, {}, ["n1"], id="its own node"),
        pytest.param({"node": "n2"}, {"SLURM_JOB_NODELIST": "n[1-2]"}, ["n2"], id="one of its nodes"),
        pytest.param({"node": "n2"}, {}, [], id="a node of another job"),
        pytest.param({"node": "n[1-2]"}, {}, [], id="a range", marks=pytest.mark.slow),
        pytest.param({"node": ""}, {}, [], id="no node", marks=pytest.mark.slow),
        pytest.param({"schedule_cnt": 2}, {}, [], id="another schedule", marks=pytest.mark.slow),
        pytest.param({"schedule_cnt": 2}, {"SLURM_JOB_RESTART_COUNT": "1"}, ["n1"], id="the second schedule"),
        pytest.param({"exit_code": 195}, {}, [], id="another verdict", marks=pytest.mark.slow),
        pytest.param({}, {"SLURM_JOB_EXIT_CODE2": "195:0"}, [], id="another exit code", marks=pytest.mark.slow),
        pytest.param(None, {}, [], id="no verdict", marks=pytest.mark.slow),
    ],
)
def test_the_epilog_drains_only_a_node_of_the_job(
    submit: Submit, tmp_path: Path, content: dict[str, object] | None, job: dict[str, str], expected: list[str]
) -> None:
    """The file belongs to the user, so it may contain anything."""
    found = {"schema": 1, "verdict": "node-fault", "exit_code": 197, "node": "n1", "device": None}
    found |= {"why": 'chip "0"\n$(id); "node": "n2" Ω', "schedule_cnt": 1, "time": "2026-01-01T00:00:00Z"}
    if content is not None:
        (tmp_path / "ftrun-7").mkdir()
        (tmp_path / "ftrun-7" / "verdict.json").write_text(json.dumps(found | content))
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "197:0", "SLURM_JOB_WORK_DIR": str(tmp_path)}
    variables |= {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_RESTART_COUNT": "0"}
    subprocess.run([submit.cluster.folder / "epilog"], env=variables | job, timeout=DEADLINE)
    assert drained(submit) == expected
    for name in expected:
        reason = submit.cluster.node(name)["Reason"]
        assert reason.startswith("ftrun: job 7: chip ")
        assert not set('"$\\') & set(reason)


UNREACHABLE = """ClusterName=none
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
MessageTimeout=2
SlurmctldTimeout=2
NodeName=n1
PartitionName=all Nodes=n1
"""


@pytest.mark.parametrize(
    ("conf", "why"),
    [(None, "no verdict"), ("Nonsense=1\n", "scontrol"), (UNREACHABLE, "n1 is not drained")],
    ids=["no verdict", "no configuration", "no slurmctld"],
)
def test_an_epilog_that_cannot_drain_reports_why(submit: Submit, tmp_path: Path, conf: str | None, why: str) -> None:
    """Without any configuration `scontrol` fails as well, but only after a minute."""
    (tmp_path / "slurm.conf").write_text(conf or "")
    if conf is not None:
        (tmp_path / "ftrun-7").mkdir()
        found = {"exit_code": 197, "node": "n1", "schedule_cnt": 1, "why": "a chip"}
        (tmp_path / "ftrun-7" / "verdict.json").write_text(json.dumps(found))
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_EXIT_CODE2": "197:0", "SLURM_JOB_WORK_DIR": str(tmp_path)}
    variables |= {
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
    }
    epilog = str(slurm.FILES / "epilog.sh")
    done = subprocess.run([epilog], env=variables, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 1
    assert done.stderr.startswith("ftrun-epilog: job 7: ")
    assert why in done.stderr


def test_after_a_hang_limit_the_job_can_avoid_its_node(submit: Submit) -> None:
    """Its first node is n1, which remains available for other jobs."""
    job = submit(*shell(f"test $MA_SCHEDULE_CNT = 2 && exit; {HANG} --times 9"), **AT_ONCE, AVOID_HUNG_NODES="1")
    wait_for(lambda: job.show().get("ExcNodeList") == "n1", "that n1 is excluded")
    ended = job.end()
    assert (ended["JobState"], ended["Restarts"], ended["NodeList"]) == ("COMPLETED", "1", "n2")
    assert drained(submit) == []


def test_three_failed_restarts_fail_the_job(submit: Submit) -> None:
    job = submit(*shell("exec fthang crash 3 --after 3 --times 9"), **SOON, FTRUN_RESTART_ON="failure")
    ended = job.end()
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "93:0", "0")
    assert job.output.count("schedule 1") == 4
    assert verdict(job)["verdict"] == "failure-limit"


def test_an_error_that_no_restart_can_cure_fails_the_job(submit: Submit) -> None:
    job = submit(*python("ft.beat(1); ft.fail('the data are gone', recoverable=False)"), FTRUN_RESTART_ON="failure")
    ended = job.end()
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "94:0", "0")
    assert (verdict(job)["verdict"], "the data are gone" in verdict(job)["why"]) == ("non-recoverable", True)


HANGS = f"{HANG} --times 9"
GIVES_UP = "exec " + shlex.join(python("ft.beat(1); ft.fail('lost', recoverable=False)"))


@pytest.mark.parametrize(
    ("failure", "code", "state"),
    quick([(HANGS, 195, "COMPLETED"), (GIVES_UP, 94, "FAILED")], ids=lambda case: f"{case[1]}"),
)
def test_two_tasks_end_with_one_verdict(submit: Submit, failure: str, code: int, state: str) -> None:
    """Rank 1 fails.  Slurm then ends rank 0, which ignores SIGTERM: it ends with the same verdict.  Of two codes Slurm
    uses the higher one, and 143 would be neither."""
    script = (
        "test $MA_SCHEDULE_CNT = 2 && exit; "
        "if test $SLURM_PROCID = 0; then trap '' TERM; touch ready; while :; do sleep 1; done; fi; "
        f"until test -e ready; do sleep 0.1; done; {failure}"
    )
    job = submit(*shell(script), nodes="2", **AT_ONCE, FTRUN_STOP_GRACE="1s")
    ended = job.end()
    again = state == "COMPLETED"
    assert (ended["JobState"], ended["ExitCode"]) == (state, "0:0" if again else f"{code}:0")
    assert job.requeued == [f"{code}:0"] * again
    for rank, node in enumerate(NODES):
        assert f"{node}: task {rank}: Exited with exit code {code}" in job.output
        assert (f"schedule 2 on {node}" in job.output) == again
    assert (verdict(job)["exit_code"], verdict(job)["node"]) == (code, "n2")


def test_the_fourth_schedule_in_a_row_without_progress_fails_the_job(submit: Submit) -> None:
    job = submit(*shell("exec sleep 3600"), FTRUN_START_TIMEOUT="1s", FTRUN_GRACE="off", FTRUN_RESTART_ON="none")
    ended = job.end()
    assert job.requeued == ["195:0"] * 3
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "93:0", "3")
    assert (verdict(job)["verdict"], verdict(job)["schedule_cnt"]) == ("failure-limit", 4)


def test_training_gets_the_signals_of_slurm_and_may_end_by_itself(submit: Submit) -> None:
    """As by --signal=B:USR1@60, and then by the time limit, scancel or a preemption."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('warned', flush=True))\n"
        "def save(*_):\n    time.sleep(1)\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('trains', flush=True)\n"
        "while True: signal.pause()\n"
    )
    job = submit(*python(code), nodes="2")
    job.prints("trains\n", 2)
    submit.cluster.output("scancel", "--batch", "--signal=USR1", job.number)
    job.prints("warned\n", 2)
    submit.cluster.output("scancel", job.number)
    assert job.end()["JobState"] == "CANCELLED"
    assert (job.output.count("warned\n"), job.output.count("saved\n")) == (2, 2), job.output


def test_a_cluster_that_does_not_come_up_leaves_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "CONF", slurm.CONF + "Nonsense=1\n")
    broken = Cluster(tmp_path)
    with pytest.raises(AssertionError, match="a daemon has ended"), broken:
        pass
    assert carrying(broken.marker) == []
