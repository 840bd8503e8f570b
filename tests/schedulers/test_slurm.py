"""docs/schedulers/slurm with a real Slurm: which jobs run again, and where; which fail; which nodes are drained."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schedulers import slurm
from schedulers.slurm import NODES, Job, Submit, drained, failing_npu_smi
from support.runs import DEADLINE, HOUSE, python, wait_for

SLOW = pytest.mark.slow
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
        pytest.param({"node": "n2"}, {"SLURM_JOB_NODELIST": "n[1-2]"}, ["n2"], id="one of its nodes", marks=SLOW),
        pytest.param({"node": "n2"}, {}, [], id="a node of another job"),
        pytest.param({"node": "n[1-2]"}, {}, [], id="a range", marks=SLOW),
        pytest.param({"schedule_cnt": 2}, {}, [], id="another schedule", marks=SLOW),
        pytest.param({"schedule_cnt": 2}, {"SLURM_JOB_RESTART_COUNT": "1"}, ["n1"], id="second schedule", marks=SLOW),
        pytest.param({}, {"SLURM_JOB_EXIT_CODE2": "195:0"}, [], id="another exit code", marks=SLOW),
    ],
)
def test_the_epilog_drains_only_a_node_of_the_job(
    submit: Submit, tmp_path: Path, content: dict[str, object], job: dict[str, str], expected: list[str]
) -> None:
    """The file belongs to the user, so it may contain anything."""
    found = {"schema": 1, "verdict": "node-fault", "exit_code": 197, "node": "n1", "device": None}
    found |= {"why": 'chip "0"\n$(id); "node": "n2" Ω', "schedule_cnt": 1, "time": "2026-01-01T00:00:00Z"}
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


@SLOW
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


@SLOW
def test_after_a_hang_limit_the_job_can_avoid_its_node(submit: Submit) -> None:
    """Its first node is n1, which remains available for other jobs."""
    job = submit(*shell(f"test $MA_SCHEDULE_CNT = 2 && exit; {HANG} --times 9"), **AT_ONCE, AVOID_HUNG_NODES="1")
    wait_for(lambda: job.show().get("ExcNodeList") == "n1", "that n1 is excluded")
    ended = job.end()
    assert (ended["JobState"], ended["Restarts"], ended["NodeList"]) == ("COMPLETED", "1", "n2")
    assert drained(submit) == []


@SLOW
def test_three_failed_restarts_fail_the_job(submit: Submit) -> None:
    job = submit(*shell("exec fthang crash 3 --after 3 --times 9"), **SOON, FTRUN_RESTART_ON="failure")
    ended = job.end()
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "93:0", "0")
    assert job.output.count("schedule 1") == 4
    assert verdict(job)["verdict"] == "failure-limit"


@SLOW
def test_an_error_that_no_restart_can_cure_fails_the_job(submit: Submit) -> None:
    job = submit(*python("ft.beat(1); ft.fail('the data are gone', recoverable=False)"), FTRUN_RESTART_ON="failure")
    ended = job.end()
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "94:0", "0")
    assert (verdict(job)["verdict"], "the data are gone" in verdict(job)["why"]) == ("non-recoverable", True)


HANGS = f"{HANG} --times 9"
GIVES_UP = "exec " + shlex.join(python("ft.beat(1); ft.fail('lost', recoverable=False)"))


@SLOW
@pytest.mark.parametrize(
    ("failure", "code", "state"), [(HANGS, 195, "COMPLETED"), (GIVES_UP, 94, "FAILED")], ids=["195", "94"]
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


@SLOW
def test_the_fourth_schedule_in_a_row_without_progress_fails_the_job(submit: Submit) -> None:
    job = submit(*shell("exec sleep 3600"), FTRUN_START_TIMEOUT="1s", FTRUN_GRACE="off", FTRUN_RESTART_ON="none")
    ended = job.end()
    assert job.requeued == ["195:0"] * 3
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "93:0", "3")
    assert (verdict(job)["verdict"], verdict(job)["schedule_cnt"]) == ("failure-limit", 4)


@SLOW
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


# --- the members of a group: each task of a step is one ---------------------------------------------------------------

PRINTS_MEMBERSHIP = (
    "import os; from ftrun import platforms;"
    "print(platforms.discover(platforms.Surroundings(os.environ, 'h', '', 'auto')), flush=True)"
)
SECRET = "0123456789abcdef"
PRINTS_GROUP = (
    "import os; from ftrun.config import option_values, group_config; os.environ.pop('FTRUN_BEAT_DIR', None);"
    "group, note = group_config.current_group(option_values.settings({}, os.environ));"
    " print(group or note or 'alone', flush=True)"
)


def with_ftrun(code: str) -> str:
    return shlex.join(["env", f"PYTHONPATH={HOUSE}/supervisor", sys.executable, "-c", code])


def of_script(submit: Submit, folder: Path, line: str) -> list[str]:
    """The output of a batch script with this line."""
    out = folder / "out"
    out.unlink(missing_ok=True)
    (folder / "script").write_text("\n".join(["#!/bin/sh", line, "echo over"]))
    command = ["sbatch", "--nodes=2", "--ntasks-per-node=2", "--overcommit", f"--output={out}", "script"]
    subprocess.run(
        command, env=submit.cluster.environment, cwd=folder, check=True, capture_output=True, timeout=DEADLINE
    )
    wait_for(lambda: out.exists() and "over\n" in out.read_text(), "the end of the script")
    return sorted(out.read_text().splitlines()[:-1])


@SLOW
def test_each_task_of_a_step_is_a_member_and_the_script_is_none(submit: Submit, tmp_path: Path) -> None:
    prints = with_ftrun(PRINTS_MEMBERSHIP)
    assert of_script(submit, tmp_path, prints) == [
        "PlatformMembership(source=\"Slurm's batch script\", size=1, rank=None, host=None, job='')"
    ]
    found = of_script(submit, tmp_path, f"srun --overcommit {prints}")
    job = found[0].rpartition("job='")[2].partition(".")[0]
    assert found == [
        f"PlatformMembership(source='Slurm', size=4, rank={rank}, host='n1', job='{job}.0')" for rank in range(4)
    ]
    found = of_script(submit, tmp_path, f"srun --overcommit --nodes=1 --ntasks=1 --nodelist=n2 {prints}")
    assert [line.partition(", job")[0] for line in found] == [
        "PlatformMembership(source='Slurm', size=1, rank=0, host='n2'"
    ]


@SLOW
def test_the_script_for_users_makes_a_group_if_there_is_a_secret(submit: Submit, tmp_path: Path) -> None:
    """A program in place of ftrun prints the group that ftrun would join."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ftrun").write_text(f"#!/bin/sh\nexec {with_ftrun(PRINTS_GROUP)}\n")
    (tmp_path / "bin" / "ftrun").chmod(0o755)
    path = f"{tmp_path}/bin:{submit.cluster.environment['PATH']}"
    job = submit("true", nodes="2", PATH=path, FTRUN_GROUP_SECRET_FILE=str(tmp_path / "secret"))
    assert job.end()["ExitCode"] == "0:0"
    endpoint = f"n1:{20000 + int(job.number) % 9000}"
    assert sorted(job.output.splitlines()) == [
        f"Group(size=2, rank={rank}, endpoint='{endpoint}', secret='{tmp_path}/secret', wait=600.0, "
        f"job='{job.number}.0', source='Slurm', least=0, spares=0, replaces=False, scale_out=False)"
        for rank in range(2)
    ]
    job = submit("true", nodes="2", PATH=path)
    assert job.end()["ExitCode"] == "0:0"
    assert job.output.splitlines() == ["no group: Slurm reports 2 members, but there is no --group-secret-file"] * 2
    job = submit("true", PATH=path, FTRUN_GROUP_SECRET_FILE=str(tmp_path / "secret"))
    assert job.end()["ExitCode"] == "0:0"
    assert job.output == "alone\n"
