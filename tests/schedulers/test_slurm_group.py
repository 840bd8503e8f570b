"""The members of a group by the variables that a real Slurm sets: each task of a step is one, and nothing else is."""

import shlex
import subprocess
import sys
from pathlib import Path

from schedulers.slurm import Submit
from support.runs import DEADLINE, HOUSE, wait_for

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


def python(code: str) -> str:
    return shlex.join(["env", f"PYTHONPATH={HOUSE}/supervisor", sys.executable, "-c", code])


def output(submit: Submit, folder: Path, line: str) -> list[str]:
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


def test_each_task_of_a_step_is_a_member_and_the_script_is_none(submit: Submit, tmp_path: Path) -> None:
    prints = python(PRINTS_MEMBERSHIP)
    assert output(submit, tmp_path, prints) == [
        "PlatformMembership(source=\"Slurm's batch script\", size=1, rank=None, host=None, job='')"
    ]
    found = output(submit, tmp_path, f"srun --overcommit {prints}")
    job = found[0].rpartition("job='")[2].partition(".")[0]
    assert found == [
        f"PlatformMembership(source='Slurm', size=4, rank={rank}, host='n1', job='{job}.0')" for rank in range(4)
    ]
    found = output(submit, tmp_path, f"srun --overcommit --nodes=1 --ntasks=1 --nodelist=n2 {prints}")
    assert [line.partition(", job")[0] for line in found] == [
        "PlatformMembership(source='Slurm', size=1, rank=0, host='n2'"
    ]


def test_the_script_for_users_makes_a_group_if_there_is_a_secret(submit: Submit, tmp_path: Path) -> None:
    """A program in place of ftrun prints the group that ftrun would join."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ftrun").write_text(f"#!/bin/sh\nexec {python(PRINTS_GROUP)}\n")
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
