"""Faults that can heal, end to end: the tree is ended first, then the device is cured, then the training goes on."""

import os
import signal

import pytest

from support.device.nvml import uuid
from support.device.rig import NONE, RESET, Rig, kill_helper, reasons
from support.runs import Run, Runs, alive, wait_for

SHORT = ("--heal-timeout", "2s")


@pytest.fixture
def rig(runs: Runs) -> Rig:
    return Rig(runs)


def verdict(rig: Rig) -> tuple[str, int]:
    return rig.runs.verdict["verdict"], rig.runs.verdict["exit_code"]


def test_fault_that_heals_ends_the_tree_without_its_grace_and_training_continues(rig: Rig) -> None:
    run = rig.start("--grace", "1h")
    rig.gpus.xid(0, 109)
    run.until("restart")
    rig.end_well(run)
    assert [r for r in run.named("exited", "killed") if r["attempt"] == 1]
    assert run.order[run.order.index("stopping") :][:3] in (
        ["stopping", "exited", "killed"],
        ["stopping", "exited", "healing"],
    )
    (healing,) = run.named("healing")
    assert (healing["device"], healing["code"], healing["severity"]) == (uuid(0), "109", "major")
    first, second = rig.starts
    assert (second["env"]["FTRUN_RESTART_REASON"], second["env"]["MA_PROC_START_CNT"]) == ("fault", "2")
    assert first["env"]["MA_SCHEDULE_CNT"] == second["env"]["MA_SCHEDULE_CNT"] == "1"
    assert reasons(run) == ["fault"]


HEALS = """
echo "$FTRUN_FAULT_DEVICE $FTRUN_FAULT_CODE $FTRUN_FAULT_INDEX $FTRUN_FAULT_SEVERITY" >>healed
[ "$(cat command-pid 2>/dev/null)" ] && echo alive >>healed
touch healing; while [ ! -e cured ]; do sleep 0.05; done
"""


def test_heal_command_gets_the_device_and_runs_alone_with_it(runs: Runs) -> None:
    rig = Rig(runs, 2)
    run = rig.start("--heal", HEALS)
    command = run.named("spawned")[0]["pid"]
    rig.gpus.xid(1, 46)
    wait_for((rig.folder / "healing").exists, f"the healing: {run.order}")
    assert not alive(command)
    assert run.helper("heal")
    assert not run.helper("probe"), "it holds the devices open"
    assert not run.named("restart")
    rig.put("cured")
    run.until("restart")
    wait_for(lambda: run.helper("probe"), "the probe")
    rig.until_heard(run)
    rig.end_well(run)
    assert (rig.folder / "healed").read_text() == f"{uuid(1)} 46 1 major\n"


def test_heal_command_gets_minor_for_a_fault_that_the_program_caused(rig: Rig) -> None:
    table = rig.put("table.txt", "46 minor+user ours\n")
    run = rig.start("--fault-table", str(table), "--heal", "echo $FTRUN_FAULT_SEVERITY >healed")
    rig.gpus.xid(0, 46)
    run.until("restart")
    rig.end_well(run)
    assert (rig.folder / "healed").read_text() == "minor\n"
    assert [one["severity"] for one in run.named("fault", code="46")] == ["minor+user"]


def test_heal_command_that_fails_ends_with_197(rig: Rig) -> None:
    run = rig.start("--heal", "exit 3")
    rig.gpus.xid(0, 46)
    assert run.wait() == 197, run.log()
    assert verdict(rig) == ("node-fault", 197)
    assert f"device {uuid(0)} did not heal from 46 (it ended with 3)" in rig.runs.verdict["message"]
    assert len(run.named("spawned")) == 1


def test_heal_command_that_hangs_ends_with_197_and_leaves_no_process(rig: Rig) -> None:
    run = rig.start("--heal", "setsid sleep 3600 & sleep 3600; true", *SHORT)
    rig.gpus.xid(0, 46)
    assert run.wait() == 197, run.log()
    assert "(the heal command did not end within 2s)" in rig.runs.verdict["message"]
    assert run.named("ended")[0]["mono"] - run.named("healing")[0]["mono"] > 1.7, "nearly the whole time is given"
    wait_for(lambda: not rig.runs.living(), "that nothing of it is left")  # helpers of ftrun end after it


def test_restart_without_a_heal_command_waits_for_the_driver(rig: Rig) -> None:
    run = rig.start()
    rig.gpus.set(0, **RESET)
    healing = run.until("healing")
    rig.gpus.later(1.0, 0, **NONE)
    again = run.until("restart")
    rig.end_well(run)
    assert again["mono"] - healing["mono"] > 0.5
    assert len(run.named("fault", code="recovery:reset")) == 1


def test_two_faulty_devices_are_healed_one_after_the_other(runs: Runs) -> None:
    rig = Rig(runs, 2)
    run = rig.start("--heal", "echo $FTRUN_FAULT_INDEX >>healed; [ -e both ] || sleep 1")
    rig.gpus.xids((0, 46), (1, 109))  # a later one might come while there is no probe
    run.until("restart")
    rig.end_well(run)
    assert sorted((rig.folder / "healed").read_text().split()) == ["0", "1"]
    assert len(run.named("spawned")) == 2


def hanging(rig: Rig, *options: str) -> Run:
    """ftrun while its heal command, which has children, runs."""
    run = rig.start("--heal", "(sleep 3600; true) & touch healing; sleep 3600; true", *options)
    rig.gpus.xid(0, 46)
    wait_for((rig.folder / "healing").exists, f"the healing: {run.order}")
    return run


def test_stop_from_outside_ends_the_healing(rig: Rig) -> None:
    run = hanging(rig)
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143, run.log()
    assert verdict(rig) == ("stopped", 143)
    wait_for(lambda: not rig.runs.living(), "that nothing of it is left")


def test_killed_healer_ends_with_197_and_leaves_no_process(rig: Rig) -> None:
    run = hanging(rig)
    kill_helper(run, "heal")
    assert run.wait() == 197, run.log()
    assert "the healer died" in rig.runs.verdict["message"]
    wait_for(lambda: not rig.runs.living(), "that nothing of it is left")


def test_killed_ftrun_leaves_no_healing(rig: Rig) -> None:
    run = hanging(rig)
    run.kill_ftrun()
    wait_for(lambda: not rig.runs.living(), "that nothing of it is left")


def test_probe_that_is_killed_during_a_healing_answers_after_its_restart(rig: Rig) -> None:
    run = rig.start("--heal-timeout", "60s")
    rig.gpus.set(0, **RESET)
    run.until("healing")
    kill_helper(run, "probe")
    rig.gpus.set(0, **NONE)
    run.until("restart")
    rig.end_well(run)


def test_fault_that_occurs_without_a_probe_is_found_by_the_next_one(rig: Rig) -> None:
    run = rig.start()
    kill_helper(run, "probe")
    rig.gpus.set(0, **RESET)
    run.until("healing")
    rig.gpus.set(0, **NONE)
    run.until("restart")
    rig.end_well(run)
