"""MA_PROC_START_CNT in a pod: never lowered, and continued from one ftrun to the next in the same container."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.containers import NAMESPACE, Starter
from support.runs import FTRUN, HOUSE, need_pid1

SHOW = "echo start=$MA_PROC_START_CNT reason=$FTRUN_RESTART_REASON"
FAILS_ONCE = f"{SHOW}; test -e failed || {{ touch failed; exit 1; }}"
RESTARTS = ("--restart-on", "failure", "--backoff", "off")


def ftrun(script: str, *options: str) -> str:
    return shlex.join([*FTRUN, "--quiet", *options, "--", "sh", "-c", script])


def within(start: Starter, script: str, *above: str, **environment: str) -> list[str]:
    """What the shell script, as the entry point of a container of its own, prints."""
    need_pid1()
    done = subprocess.run(
        [*NAMESPACE, *above, "sh", "-c", script],
        cwd=start.folder,
        env=start.environment(environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return [line.partition(" reason=")[0].removeprefix("start=") for line in done.stdout.splitlines()]


def test_an_incoming_count_is_not_lowered(start: Starter) -> None:
    run = start(
        "sh",
        "-c",
        FAILS_ONCE.replace("failed", str(start.folder / "failed")),
        options=RESTARTS,
        env={"MA_PROC_START_CNT": "3"},
    )
    code, out, _ = run.finish()
    assert (code, out.decode().splitlines()) == (0, ["start=3 reason=first", "start=4 reason=failure"])


@pytest.mark.parametrize("text", ["", "-1"])
def test_an_invalid_incoming_count_is_ignored(start: Starter, text: str) -> None:
    code, out, _ = start("sh", "-c", SHOW, env={"MA_PROC_START_CNT": text}).finish()
    assert (code, out.decode().split()[0]) == (0, "start=1")


def test_consecutive_ftruns_in_one_container_continue_the_count(start: Starter) -> None:
    logs = ("--log-dir", str(start.folder / "logs"))
    script = "; ".join([ftrun(SHOW), ftrun(FAILS_ONCE, *RESTARTS), ftrun(SHOW, *logs), ftrun(SHOW, *logs), "exit 0"])
    assert within(start, script) == ["1", "2", "3", "4", "5"]
    assert within(start, f"{ftrun(SHOW)}; exit 0") == ["1"], "another container is another pod"


def test_a_new_schedule_restarts_the_count_at_no_less_than_the_platforms(start: Starter) -> None:
    script = f"{ftrun(SHOW)}; {ftrun(SHOW)}; MA_SCHEDULE_CNT=2 {ftrun(SHOW)}; exit 0"
    assert within(start, script, MA_PROC_START_CNT="5") == ["5", "6", "5"]


def test_phases_continue_the_count(start: Starter) -> None:
    """Also outside a container: they are one run."""
    file = start.folder / "job.toml"
    phase = '[[phase]]\nname = "{}"\ncommand = ["sh", "-c", "{}"]\n'
    file.write_text(f'log-dir = "{start.folder}/logs"\n' + "".join(phase.format(name, SHOW) for name in "abc"))
    done = subprocess.run(
        [*FTRUN, "--quiet", "--config", str(file)], env=start.environment(), capture_output=True, text=True, timeout=60
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["start=1", "start=2", "start=3"]


def test_outside_a_container_each_run_counts_from_one(start: Starter) -> None:
    for _ in range(2):
        assert start("sh", "-c", SHOW).finish()[1].decode().split()[0] == "start=1"


def test_once_also_holds_for_the_next_ftrun(start: Starter) -> None:
    code = "from ftrun_hooks.torch import once; import os; print('start=' + str(once('data', lambda: None)))"
    training = shlex.join([*FTRUN, "--quiet", "--", sys.executable, "-c", code])
    hooks = {"PYTHONPATH": str(HOUSE / "hooks")}
    assert within(start, f"{training}; {training}; exit 0", **hooks) == ["True", "False"]
    assert within(start, f"{training}; exit 0", **hooks) == ["True"], "in a new container it runs"


def test_a_folder_that_another_user_created_is_not_trusted(start: Starter) -> None:
    """A user who creates the folder first in a shared temp folder can neither set the count nor have a file written."""
    if os.geteuid() != 0:
        pytest.skip("it takes root to be two users")
    trap = start.folder / "trap"
    trap.mkdir(mode=0o777)
    (trap / "starts").write_text("70\n")
    theirs = "for d in $TMPDIR/ftrun-*-pod-*; do rm -rf $d; cp -r trap $d; chmod -R 777 $d; chown -R 65534 $d; done"
    linked = "for d in $TMPDIR/ftrun-*-pod-*; do case $d in *[0-9]) rm -rf $d; ln -s $PWD/trap $d;; esac; done"
    script = "; ".join([ftrun(SHOW), theirs, ftrun(SHOW), linked, ftrun(SHOW), "exit 0"])
    assert within(start, script) == ["1", "1", "1"]
    assert [path.read_text() for path in Path(trap).iterdir()] == ["70\n"]
