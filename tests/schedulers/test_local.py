"""docs/schedulers/local.py: the recovery policies of tests/requirements.tsv, by their names there, in containers."""

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ftrun.core.rules import exit_codes
from support.device.npu_smi import FakeNpuSmi
from support.runs import FTHANG, HOUSE, PID1, carrying, end_all, permitted, wait_for
from support.short import quick

LOCAL = HOUSE / "docs" / "schedulers" / "local.py"
SOON = ("--grace", "1s", "--backoff", "10ms", "--probe", "off")
HANGS = (*SOON, "--hang-timeout", "2s", "--max-restarts", "1")
MARK = "LOCAL_SCHEDULER_TEST"
# A training that outlives the device fault of its first seconds; after a restart it is short.
LONG = "n=600; [ $MA_SCHEDULE_CNT$MA_PROC_START_CNT = 11 ] || n=10; for i in $(seq $n); do sleep 0.1; done"


class Done(NamedTuple):
    code: int
    out: str
    root: Path
    err: str

    @property
    def schedules(self) -> list[str]:
        """One line for each container."""
        return [line for line in self.out.splitlines() if "schedule " in line.partition(":")[0]]

    @property
    def summary(self) -> str:
        return next(line for line in self.out.splitlines() if line.startswith("the job has"))

    def log(self, container: str) -> str:
        return (self.root / container / "output.log").read_text()


class Scheduler:
    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.mark = folder, folder / "root", uuid.uuid4().hex
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "SLURM_"))}
        self.environment |= {MARK: self.mark}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        self.started.append(
            subprocess.Popen(
                [sys.executable, str(LOCAL), *arguments],
                env=self.environment | environment,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.started[-1]

    def __call__(self, options: str, script: str, *ftrun_options: str, code: int = 0, **environment: str) -> Done:
        """Run to the end, which is with this code: options of local.py, a shell script as the training, and options of
        ftrun."""
        done = self.run(*options.split(), "--", *ftrun_options, "sh", "-c", script, **environment)
        assert done.code == code, done.out + done.err
        return done

    def run(self, *arguments: str, **environment: str) -> Done:
        process = self.start("--root", str(self.root), *arguments, **environment)
        out, err = process.communicate(timeout=240)
        return Done(process.returncode, out, self.root, err)

    def processes(self) -> list[int]:
        return carrying(f"{MARK}={self.mark}")

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        end_all(self.processes)


@pytest.fixture
def schedule(tmp_path: Path) -> Iterator[Scheduler]:
    made = Scheduler(tmp_path)
    yield made
    left = made.processes()
    made.close()
    assert not left


def training(*arguments: str) -> str:
    return f"exec {shlex.join([*FTHANG, *arguments])} --step-time 2ms --checkpoint-dir $FTRUN_STATE_DIR/checkpoints"


# --- the recovery policies --------------------------------------------------------------------------------------------


def test_in_place_recovery(schedule: Scheduler) -> None:
    done = schedule("--job-retry-num 1 --fault node-a passing", LONG, *SOON)
    assert done.schedules == ["schedule 1 on node-a: MA_SCHEDULE_CNT=1, restarts in place: 1 x fault; ended with 0"], (
        "the same container, and no reschedule used"
    )
    assert "after 0 of 1 reschedules" in done.summary


def test_in_place_recovery_degrades_to_isolated_job_level_rescheduling_when_healing_fails(schedule: Scheduler) -> None:
    done = schedule("--job-retry-num 1 --fault node-a lasting", LONG, *SOON, "--heal-timeout", "2s")
    assert done.schedules[0].endswith("197 node-fault: isolating node-a, job-level rescheduling 1 of 1")
    assert done.schedules[1].startswith("schedule 2 on node-b: MA_SCHEDULE_CNT=2")


def test_in_place_recovery_degrades_to_isolated_job_level_rescheduling_at_the_third_time(schedule: Scheduler) -> None:
    script = LONG.replace("= 11 ]", "-lt 20 ]")
    done = schedule("--job-retry-num 1 --fault node-a recurring", script, *SOON)
    assert done.schedules[0].endswith("197 node-fault: isolating node-a, job-level rescheduling 1 of 1")
    assert done.schedules[1].startswith("schedule 2 on node-b")
    history = json.loads((done.root / "shared" / "pod-0" / "history.json").read_bytes())
    assert [(fault["node"], fault["code"]) for fault in history["faults"]] == [("node-a", "80E01801")] * 3


@pytest.mark.slow
def test_in_place_recovery_degrades_to_unconditional_rescheduling_for_the_user_s_own_fault(schedule: Scheduler) -> None:
    """The third time of a fault that the user causes: another schedule, and the node is not isolated."""
    script = LONG.replace("= 11 ]", "-lt 30 ]")
    done = schedule("--job-retry-num 1 --fault node-a user", script, *SOON, code=exit_codes.USER_FAULT_LIMIT.code)
    assert done.schedules[0].endswith(
        "restarts in place: 2 x fault; ended with 196 user-fault-limit: job-level rescheduling 1 of 1"
    )
    assert done.schedules[1].startswith("schedule 2 on node-a")
    assert "isolated" not in done.summary


def test_unconditional_job_level_rescheduling(schedule: Scheduler) -> None:
    script = f"[ $MA_SCHEDULE_CNT -gt 2 ] && {training('none')}; {training('crash', '7')}"
    done = schedule("--job-retry-num 3 --unconditional", script, *SOON)
    assert [line.partition("MA_SCHEDULE_CNT=")[2] for line in done.schedules] == [
        "1, restarts in place: none; ended with 7 of the command: job-level rescheduling 1 of 3",
        "2, restarts in place: none; ended with 7 of the command: job-level rescheduling 2 of 3",
        "3, restarts in place: none; ended with 0",
    ]
    assert "resumed at step 10" in done.log("node-a/schedule-3"), "from the checkpoint"


def test_unconditional_job_level_rescheduling_degrades_to_failed_at_the_fourth_time_without_progress(
    schedule: Scheduler,
) -> None:
    done = schedule("--job-retry-num 128 --unconditional", "exit 7", *SOON, code=exit_codes.FAILURE_LIMIT.code)
    assert done.schedules[3].endswith("ended with 93 failure-limit: the job fails")
    assert "after 3 of 128 reschedules" in done.summary


def test_isolated_job_level_rescheduling(schedule: Scheduler) -> None:
    done = schedule("--job-retry-num 1 --fault node-a critical", LONG, *SOON)
    assert done.schedules == [
        "schedule 1 on node-a: MA_SCHEDULE_CNT=1, restarts in place: none; ended with 197 node-fault: "
        "isolating node-a, job-level rescheduling 1 of 1",
        "schedule 2 on node-b: MA_SCHEDULE_CNT=2, restarts in place: none; ended with 0",
    ]
    assert done.summary.endswith("isolated: node-a; exit code 0")
    assert json.loads((done.root / "shared" / "pod-0" / "verdict.json").read_bytes())["node"] == "node-a"


@pytest.mark.slow
def test_a_chip_that_is_still_at_fault_ends_the_next_schedule_before_anything_starts(schedule: Scheduler) -> None:
    """The first two nodes represent one machine, which a scheduler that isolates nothing uses again."""
    healthy = FakeNpuSmi(schedule.folder / "healthy")
    faulty = FakeNpuSmi(schedule.folder / "faulty")
    faulty.set(0, codes=[("80818C00", "AI core computes wrongly")], health="Critical")
    tools = schedule.folder / "tools"
    tools.mkdir()
    fails = f"[ $NODE_NAME = c ] || [ ! -e {tools}/failed ] || exec {faulty.folder}/npu-smi"
    (tools / "npu-smi").write_text(f'#!/bin/sh\n{fails} "$@"\nexec {healthy.folder}/npu-smi "$@"\n')
    (tools / "npu-smi").chmod(0o755)
    trains = f"echo trains on $NODE_NAME; [ $NODE_NAME = c ] && exit; touch {tools}/failed; while :; do :; done"
    often = ("--probe", "ascend", "--idle-timeout", "10s")  # the probe reads it each second
    path = f"{tools}:{os.environ['PATH']}"
    done = schedule("--job-retry-num 2 --nodes a,b,c", trains, "--grace", "1s", *often, PATH=path)
    assert done.schedules == [
        f"schedule {n} on {node}: MA_SCHEDULE_CNT={n}, restarts in place: none; ended with {end}"
        for n, node, end in (
            (1, "a", "197 node-fault: isolating a, job-level rescheduling 1 of 2"),
            (2, "b", "197 node-fault: isolating b, job-level rescheduling 2 of 2"),
            (3, "c", "0"),
        )
    ]
    logs = [done.log(f"{node}/schedule-{n}") for n, node in enumerate("abc", 1)]
    assert ["trains" in log for log in logs] == [True, False, True]
    assert "80818C00 before the first start" in logs[1]


def test_isolated_job_level_rescheduling_needs_a_healthy_node(schedule: Scheduler) -> None:
    done = schedule("--job-retry-num 9 --nodes a,b", "exit 197", *SOON, code=197)
    assert done.schedules[1].endswith("isolating b, the job fails: too few healthy nodes are left")


def test_isolated_job_level_rescheduling_of_the_node_that_the_verdict_names(schedule: Scheduler) -> None:
    """With several pods the first one that ends is not always the one at fault."""
    verdict = '{"exit_code": 197, "node": "b", "schedule_cnt": 1}'
    script = f"[ $MA_SCHEDULE_CNT -gt 1 ] && exit 0; [ $VC_TASK_INDEX = 1 ] && exec sleep 60; echo '{verdict}' > $V"
    done = schedule(
        "--job-retry-num 1 --nodes a,b,c --pods 2", f"V=$FTRUN_STATE_DIR/verdict.json; {script}; exit 197", *SOON
    )
    assert done.schedules[0].startswith("pod-0 schedule 1 on a")
    assert done.schedules[0].endswith("197 node-fault: isolating b, job-level rescheduling 1 of 1")
    assert sorted(line[:23] for line in done.schedules[2:]) == ["pod-0 schedule 2 on a: ", "pod-1 schedule 2 on c: "]


# Two pods: the second one fails in its first schedule; the first waits until the second is done.
PODS = """
if [ $VC_TASK_INDEX = 0 ]; then until [ -e $FTRUN_STATE_DIR/../done ]; do sleep 0.05; done; exit 0; fi
[ $MA_SCHEDULE_CNT -gt {} ] || exit 197; touch $FTRUN_STATE_DIR/../done
"""


def test_pod_level_rescheduling(schedule: Scheduler) -> None:
    done = schedule("--job-retry-num 1 --pod-retry-num 1 --pods 2", PODS.format(1), *SOON)
    first, second, third = done.schedules[0], *sorted(done.schedules[1:])
    assert first.startswith("pod-1 schedule 1 on node-b")
    assert first.endswith("isolating node-b, pod-level rescheduling 1 of 1")
    assert second.startswith("pod-0 schedule 1 on node-a: MA_SCHEDULE_CNT=1"), "the container that was healthy stays"
    assert third.startswith("pod-1 schedule 2 on node-c: MA_SCHEDULE_CNT=2")
    assert "0 of 1 reschedules, 1 of 1 of pods" in done.summary


def test_pod_level_rescheduling_degrades_to_unconditional_job_level_rescheduling(schedule: Scheduler) -> None:
    done = schedule("--job-retry-num 1 --pod-retry-num 1 --pods 2 --nodes a,b,c,d", PODS.format(2), *SOON)
    assert done.schedules[1].startswith("pod-1 schedule 2 on c")
    assert done.schedules[1].endswith(
        "isolating c, no pod-level rescheduling any more, job-level rescheduling 1 of 1"
    ), "the faulty node is isolated already"
    assert done.schedules[2].startswith("pod-0 schedule 1 on a")
    assert done.schedules[2].endswith("by the scheduler")
    assert sorted(line[:23] for line in done.schedules[3:]) == ["pod-0 schedule 2 on a: ", "pod-1 schedule 3 on d: "]


def test_restart_upon_suspension(schedule: Scheduler) -> None:
    done = schedule("--job-retry-num 1 --hang-retry", training("sleep"), *HANGS)
    assert done.schedules == ["schedule 1 on node-a: MA_SCHEDULE_CNT=1, restarts in place: 1 x hang; ended with 0"], (
        "the same container, and no reschedule used"
    )


def test_restart_upon_suspension_degrades_to_failed(schedule: Scheduler) -> None:
    """ModelArts: after the restarts in place the job has failed, whatever retries are left."""
    hangs = training("sleep", "--times", "9")
    done = schedule("--job-retry-num 3 --hang-retry --unconditional", hangs, *HANGS, code=exit_codes.FAILURE_LIMIT.code)
    (only,) = done.schedules
    assert only.endswith("restarts in place: 1 x hang; ended with 93 failure-limit: the job fails")


@pytest.mark.slow
def test_restart_upon_suspension_degrades_to_rescheduling_where_that_is_asked_for(schedule: Scheduler) -> None:
    script, options = training("sleep", "--times", "9"), (*HANGS, "--after-limit", "reschedule")
    done = schedule("--job-retry-num 1 --hang-retry", script, *options, code=exit_codes.HANG_LIMIT.code)
    assert [line.partition("MA_SCHEDULE_CNT=")[2] for line in done.schedules] == [
        "1, restarts in place: 1 x hang; ended with 195 hang-limit: job-level rescheduling 1 of 1",
        "2, restarts in place: 1 x hang; ended with 195 hang-limit: the job fails: all 1 reschedules are used up",
    ]
    assert "resumed at step 10" in done.log("node-a/schedule-2")


def test_without_restart_upon_suspension_a_hang_is_reported_and_left_as_it_is(schedule: Scheduler) -> None:
    """ModelArts: a suspended job ends no container by itself, and is only detected where hang-retry is set."""
    code = (
        "import os, time, ftrun_hooks as ft; ft.beat(1); ft.beat(2)\n"
        "while 'left as it is' not in open(os.environ['FTRUN_RUN_DIR'] + '/run.log').read(): time.sleep(0.05)\n"
        "ft.beat(3)"
    )
    script = f"PYTHONPATH={HOUSE / 'hooks'} exec {shlex.join([sys.executable, '-c', code])}"
    done = schedule("--job-retry-num 1", script, *HANGS)
    assert done.schedules == ["schedule 1 on node-a: MA_SCHEDULE_CNT=1, restarts in place: none; ended with 0"]


# --- exit codes and limits ------------------------------------------------------------------------------


def test_the_rules_are_those_of_the_exit_codes() -> None:
    rules = runpy.run_path(str(LOCAL))["RULES"]
    then = {
        "reschedule the job": "reschedule",
        "reschedule the job without isolating the node": "reschedule",
        "isolate the node and reschedule the job": "isolate",
        "mark the job as failed": "fail",
        "mark the job as failed at once": "fail",
        "mark the job as failed; look whether its training is complete": "fail",
    }
    assert rules == {v.code: (v.name, then[v.outer]) for v in exit_codes.TABLE}


def test_the_page_describes_what_the_scheduler_does() -> None:
    local = runpy.run_path(str(LOCAL))
    page = (LOCAL.parent / "README.md").read_text()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    described = {int(row[0]): (row[1], row[2], row[-1]) for row in rows if row[0].isdecimal() and row[0] != "0"}
    assert described == {v.code: (v.name, v.outer, local["RULES"][v.code][1]) for v in exit_codes.TABLE}
    assert set(local["FAULTS"]) <= {row[0] for row in rows}


def test_slurm_requeues_the_codes_that_ask_for_it_and_no_other_of_ftrun() -> None:
    conf = (LOCAL.parent / "slurm" / "slurm.conf").read_text()
    requeued = re.search(r"^RequeueExit=(\d+)-(\d+)$", conf, re.M)
    assert requeued is not None
    codes = range(int(requeued[1]), int(requeued[2]) + 1)
    assert [v.name for v in exit_codes.TABLE if ("reschedule" in v.outer) != (v.code in codes)] == []


@pytest.mark.parametrize(
    ("options", "code", "schedules", "end"),
    quick(
        [
            ("", 195, 1, "the job fails: no --job-retry-num"),
            ("--job-retry-num 1 --unconditional", 7, 2, "the job fails: all 1 reschedules are used up"),
            ("--job-retry-num 1", 197, 2, "isolating node-b, the job fails: all 1 reschedules are used up"),
            ("--job-retry-num 1 --unconditional", 94, 1, "94 non-recoverable: the job fails"),
        ],
        3,
    ),
)
def test_a_container_that_ends_with(schedule: Scheduler, options: str, code: int, schedules: int, end: str) -> None:
    plain = [sys.executable, "-c", "import os; os._exit(int(os.environ['CODE']))"]
    done = schedule.run(*options.split(), "--", *SOON, *plain, CODE=str(code))
    assert done.code == code
    assert len(done.schedules) == schedules, done.out + done.err
    assert done.schedules[-1].endswith(end)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--job-retry-num 0 --unconditional -- true", "any retry needs --job-retry-num"),
        ("--job-retry-num 129 -- true", "a retry number is from 1 to 128"),
        ("--pods 4 -- true", "--pods: 1 to 3"),
        ("--fault node-a flood -- true", "--fault: a KIND is one of critical"),
        ("--root / -- true", "--root: it is not empty"),
        ("", "required: -- WORDS"),
    ],
)
def test_bad_usage_starts_nothing(schedule: Scheduler, options: str, why: str) -> None:
    process = schedule.start(*options.split())
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (2, "")
    assert why in err


@pytest.mark.parametrize(
    ("command", "end"), [("--hang-timeout soon true", "2 usage"), ("/etc/passwd", "126 not-executable")]
)
def test_a_command_that_cannot_start_is_not_rescheduled(schedule: Scheduler, command: str, end: str) -> None:
    done = schedule.run("--job-retry-num", "3", "--unconditional", "--", *SOON, *command.split())
    assert len(done.schedules) == 1, done.out + done.err
    assert done.schedules[0].endswith(f"ended with {end}: the job fails")


def test_the_annotations_of_the_platform_reach_ftrun(schedule: Scheduler) -> None:
    done = schedule("--job-retry-num 8 --hang-retry --unconditional --pod-retry-num 3", "true", *SOON)
    assert sorted((done.root / "node-a" / "schedule-1" / "annotations").read_text().splitlines()) == [
        'fault-tolerance/hang-retry="true"',
        'fault-tolerance/job-retry-num="8"',
        'fault-tolerance/job-unconditional-retry="true"',
        'fault-tolerance/pod-retry-num="3"',
    ]
    records = (done.root / "node-a" / "schedule-1" / "run" / "events.jsonl").read_text()
    assert "problem" not in records, "ftrun accepts them"


# --- containers -------------------------------------------------------------------------------------------------------


def test_ftrun_is_the_first_process_of_a_pid_namespace(schedule: Scheduler) -> None:
    if not permitted(*PID1):
        pytest.skip("unshare --pid --fork --mount-proc is not permitted here")
    done = schedule("", "echo parent $PPID", *SOON)
    assert done.out.splitlines()[0].endswith("a container is a PID namespace")
    assert "parent 1" in done.log("node-a/schedule-1")


def unshare(schedule: Scheduler, script: str) -> str:
    """A PATH on which `unshare` is this script."""
    programs = schedule.folder / "programs"
    programs.mkdir()
    (programs / "unshare").write_text(f"#!/bin/sh\n{script}\necho unshare: not permitted >&2; exit 1\n")
    (programs / "unshare").chmod(0o755)
    return f"{programs}:{schedule.environment['PATH']}"


def test_where_no_namespace_is_permitted_the_container_is_a_plain_child(schedule: Scheduler) -> None:
    done = schedule("--job-retry-num 1", "exit $((197 * (MA_SCHEDULE_CNT < 2)))", *SOON, PATH=unshare(schedule, ""))
    assert "a plain child, as no PID namespace can be made here (unshare: not permitted)" in done.out
    assert done.schedules[1].startswith("schedule 2 on node-b")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_container_outlives_the_scheduler(schedule: Scheduler, number: signal.Signals) -> None:
    if not permitted(*PID1):
        pytest.skip("unshare --pid --fork --mount-proc is not permitted here")
    ready = schedule.folder / "ready"
    script = "trap '' TERM; touch $READY$VC_TASK_INDEX; while :; do sleep 1; done"
    options = ("--root", str(schedule.root), "--pods", "2", "--", *SOON, "--stop-grace", "100ms", "sh", "-c", script)
    process = schedule.start(*options, READY=str(ready))
    wait_for(lambda: Path(f"{ready}0").exists() and Path(f"{ready}1").exists(), "both containers")
    process.send_signal(number)
    assert process.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not schedule.processes(), "the end of all processes")


@pytest.mark.slow
def test_every_step_of_the_demo_holds() -> None:
    done = subprocess.run([sys.executable, str(LOCAL), "--demo"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n--- ") == 10
    assert "did not hold" not in done.stdout
