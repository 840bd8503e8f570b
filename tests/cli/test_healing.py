"""Faults that can heal, end to end: the tree is ended first, then the device is cured, then the training goes on."""

import json
import os
import signal
import time

import pytest

from support.device.nvml import GIB, uuid
from support.device.ward import NODE, NONE, REBOOT, RESET, Ward, faulted, kill_helper, reasons, told
from support.runs import Run, Runs, alive, carrying, wait_for, words

SHORT = ("--heal-timeout", "2s")


@pytest.fixture
def ward(runs: Runs) -> Ward:
    return Ward(runs)


def verdict(ward: Ward) -> tuple[str, int]:
    return ward.runs.verdict["verdict"], ward.runs.verdict["exit_code"]


@pytest.mark.parametrize(("code", "grace"), [(46, "off"), (109, "10s")])
def test_a_fault_that_heals_ends_the_tree_within_a_second_and_training_goes_on(
    ward: Ward, code: int, grace: str
) -> None:
    run = ward.start("--grace", grace)
    ward.gpus.xid(0, code)
    run.until("restart")
    ward.end()
    assert run.wait() == 0, run.told()
    fault = faulted(run, str(code))
    ended = [r["mono"] for r in run.named("exited", "killed") if r["attempt"] == 1]
    assert ended
    assert max(ended) - fault["mono"] < 1.0
    assert run.order[run.order.index("stopping") :][:3] in (
        ["stopping", "exited", "killed"],
        ["stopping", "exited", "healing"],
    )
    (healing,) = run.named("healing")
    assert (healing["device"], healing["code"], healing["severity"]) == (uuid(0), str(code), "major")
    first, second = ward.starts
    assert (second["env"]["FTRUN_RESTART_REASON"], second["env"]["MA_PROC_START_CNT"]) == ("fault", "2")
    assert first["env"]["MA_SCHEDULE_CNT"] == second["env"]["MA_SCHEDULE_CNT"] == "1"
    assert reasons(run) == ["fault"]


HEALS = """
echo "$FTRUN_FAULT_DEVICE $FTRUN_FAULT_CODE $FTRUN_FAULT_INDEX $FTRUN_FAULT_SEVERITY" >>healed
[ "$(cat command-pid 2>/dev/null)" ] && echo alive >>healed
touch healing; while [ ! -e cured ]; do sleep 0.05; done
"""


def test_the_command_for_healing_is_told_the_device_and_runs_alone_with_it(runs: Runs) -> None:
    ward = Ward(runs, 2)
    run = ward.start("--heal", HEALS)
    command = run.named("spawned")[0]["pid"]
    ward.gpus.xid(1, 46)
    wait_for((ward.folder / "healing").exists, f"the healing: {run.order}")
    assert not alive(command)
    assert run.helper("heal")
    assert not run.helper("probe"), "it holds the devices open"
    assert not run.named("restart")
    ward.put("cured")
    run.until("restart")
    ward.end()
    assert run.wait() == 0, run.told()
    assert (ward.folder / "healed").read_text() == f"{uuid(1)} 46 1 major\n"


def test_the_probe_comes_back_after_the_healing(ward: Ward) -> None:
    run = ward.start("--heal", "true")
    ward.gpus.xid(0, 46)
    run.until("spawned", 2)
    wait_for(lambda: run.helper("probe"), "the probe")
    ward.hears(run)
    ward.end()
    assert run.wait() == 0, run.told()


def test_a_command_for_healing_that_fails_ends_with_197(ward: Ward) -> None:
    run = ward.start("--heal", "exit 3")
    ward.gpus.xid(0, 46)
    assert run.wait() == 197, run.told()
    assert verdict(ward) == ("node-fault", 197)
    assert f"device {uuid(0)} did not heal from 46 (it ended with 3)" in ward.runs.verdict["message"]
    assert len(run.named("spawned")) == 1


def test_a_command_for_healing_that_hangs_ends_with_197_and_nothing_of_it_is_left(ward: Ward) -> None:
    run = ward.start("--heal", "touch healing; setsid sleep 3600 & sleep 3600; true", *SHORT)
    ward.gpus.xid(0, 46)
    assert run.wait() == 197, run.told()
    assert (ward.folder / "healing").exists()
    assert "did not end within 1s" in ward.runs.verdict["message"]
    assert not ward.runs.living()


def test_what_a_command_for_healing_leaves_in_the_background_is_ended_before_the_start(ward: Ward) -> None:
    run = ward.start("--heal", "FROM_HEALING=1 setsid sleep 3600 & sleep 0.3; touch healing")
    ward.gpus.xid(0, 46)
    run.until("spawned", 2)
    assert (ward.folder / "healing").exists()
    assert not carrying("FROM_HEALING=1")
    ward.end()
    assert run.wait() == 0, run.told()


def test_a_healing_that_does_not_cure_ends_with_197(ward: Ward) -> None:
    run = ward.start("--heal", "true", *SHORT)
    ward.gpus.set(0, **RESET)
    assert run.wait() == 197, run.told()
    assert len(run.named("spawned")) == 1
    assert "did not heal from recovery:reset" in ward.runs.verdict["message"]


def test_without_a_command_a_restart_waits_until_the_driver_asks_for_nothing_any_more(ward: Ward) -> None:
    run = ward.start()
    ward.gpus.set(0, **RESET)
    healing = run.until("healing")
    ward.gpus.later(1.0, 0, **NONE)
    again = run.until("restart")
    ward.end()
    assert run.wait() == 0, run.told()
    assert again["mono"] - healing["mono"] > 0.5
    assert len(told(run, "recovery:reset")) == 1


def test_what_nobody_clears_ends_with_197(ward: Ward) -> None:
    run = ward.start(*SHORT)
    ward.gpus.set(0, **RESET)
    assert run.wait() == 197, run.told()
    ended, healing = run.named("ended")[0], run.named("healing")[0]
    assert 1.0 < ended["mono"] - healing["mono"] < 30
    assert verdict(ward) == ("node-fault", 197)
    assert uuid(0) in ward.runs.verdict["message"]
    assert ward.runs.verdict["node"] == NODE


def test_memory_that_is_still_held_after_the_healing_ends_with_197(ward: Ward) -> None:
    run = ward.start("--heal", "true", "--device-timeout", "2s")
    pid = run.named("spawned")[0]["pid"]
    ward.gpus.set(0, memory_used=40 * GIB, pids=[pid])
    ward.gpus.xid(0, 46)
    assert run.wait() == 197, run.told()
    assert "devices are not free" in ward.runs.verdict["message"]
    assert f"by {pid}" in ward.runs.verdict["message"]
    assert len(run.named("spawned")) == 1


def test_two_sick_devices_are_healed_one_after_the_other(runs: Runs) -> None:
    ward = Ward(runs, 2)
    run = ward.start("--heal", "echo $FTRUN_FAULT_INDEX >>healed; [ -e both ] || sleep 1")
    ward.gpus.xid(0, 46)
    ward.gpus.xid(1, 109)
    run.until("restart")
    ward.end()
    assert run.wait() == 0, run.told()
    assert sorted((ward.folder / "healed").read_text().split()) == ["0", "1"]
    assert len(run.named("spawned")) == 2


def test_a_fault_while_a_hang_is_killed_is_healed_before_the_restart(ward: Ward) -> None:
    ward.put("deaf")
    run = ward.start("--hang-timeout", "1s", "--grace", "60s", "--heal", "touch healed")
    ward.put("still-1")
    run.until("hang")
    ward.gpus.xid(0, 46)
    faulted(run, "46")
    os.kill(run.named("spawned")[0]["pid"], signal.SIGKILL)
    run.until("restart")
    assert (ward.folder / "healed").exists()
    ward.end()
    assert run.wait() == 0, run.told()
    assert reasons(run) == ["hang"]
    assert len(run.named("healing")) == 1


def test_a_fault_while_a_restart_is_waited_for_is_healed_before_it(ward: Ward) -> None:
    run = ward.start("--restart-on", "failure,fault", "--backoff", "2s", "--heal", "touch healed")
    ward.end(1, start=1)
    run.until("stopping")
    ward.gpus.xid(0, 46)
    run.until("restart")
    assert (ward.folder / "healed").exists()
    ward.end()
    assert run.wait() == 0, run.told()
    assert reasons(run) == ["failure"]
    assert len(run.named("spawned")) == 2


def hanging(ward: Ward, *options: str) -> Run:
    """ftrun, while its command for healing runs, which has children."""
    run = ward.start("--heal", "(sleep 3600; true) & touch healing; sleep 3600; true", *options)
    ward.gpus.xid(0, 46)
    wait_for((ward.folder / "healing").exists, f"the healing: {run.order}")
    return run


def test_a_stop_from_outside_ends_the_healing(ward: Ward) -> None:
    run = hanging(ward)
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143, run.told()
    assert verdict(ward) == ("stopped", 143)
    wait_for(lambda: not ward.runs.living(), "that nothing of it is left")


def test_who_is_stopped_over_a_healing_for_anothers_verdict_ends_with_that(ward: Ward) -> None:
    state = ward.folder / "state"
    run = hanging(ward, "--state-dir", str(state))
    content = {"schema": 1, "verdict": "node-fault", "exit_code": 197, "node": "n8", "device": None, "why": "it is ill"}
    content |= {"schedule_cnt": 1, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    (state / "verdict.json").write_text(json.dumps(content))
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 197, run.told()
    assert ward.runs.verdict["node"] == "n8"
    wait_for(lambda: not ward.runs.living(), "that nothing of it is left")


def test_a_killed_healer_ends_with_197_and_leaves_nothing(ward: Ward) -> None:
    run = hanging(ward)
    kill_helper(run, "heal")
    assert run.wait() == 197, run.told()
    assert "the healer died" in ward.runs.verdict["message"]
    wait_for(lambda: not ward.runs.living(), "that nothing of it is left")


def test_a_killed_healer_leaves_nothing_beside_the_training_that_goes_on(runs: Runs) -> None:
    ward = Ward(runs, 2)
    run = hanging(ward, "--min-devices", "1")
    kill_helper(run, "heal")
    run.until("spawned", 2)
    wait_for(lambda: len(ward.starts) == 2, "the training")
    sleeping = [pid for pid in ward.runs.living() if words(pid).startswith("sleep ")]
    assert not sleeping
    ward.end()
    assert run.wait() == 0, run.told()


def test_a_device_that_is_lost_over_its_healing_is_not_healed_any_more(runs: Runs) -> None:
    """The probe is away while a command heals: that it is lost is found by it when it comes back."""
    ward = Ward(runs, 2)
    run = ward.start("--heal", "true", "--min-devices", "1")
    ward.gpus.set(0, lost=True)
    ward.gpus.xid(0, 46)
    run.until("spawned", 2)
    ward.end()
    assert run.wait() == 0, run.told()
    assert run.named("removed")


def test_a_killed_ftrun_leaves_no_healing(ward: Ward) -> None:
    run = hanging(ward)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    wait_for(lambda: not ward.runs.living(), "that nothing of it is left")


def test_a_probe_that_is_killed_while_it_is_waited_for_answers_in_its_next_life(ward: Ward) -> None:
    run = ward.start("--heal-timeout", "60s")
    ward.gpus.set(0, **RESET)
    run.until("healing")
    kill_helper(run, "probe")
    ward.gpus.set(0, **NONE)
    run.until("restart")
    ward.end()
    assert run.wait() == 0, run.told()


def test_a_fault_that_came_while_there_was_no_probe_is_found_by_the_next(ward: Ward) -> None:
    run = ward.start()
    kill_helper(run, "probe")
    ward.gpus.set(0, **RESET)
    run.until("healing")
    ward.gpus.set(0, **NONE)
    run.until("restart")
    ward.end()
    assert run.wait() == 0, run.told()


def test_what_the_driver_asked_for_before_us_is_no_fault_of_ours(ward: Ward) -> None:
    ward.gpus.set(0, **RESET)
    run = ward.start()
    assert told(run, "recovery:reset")[0]["severity"] == "warning"
    ward.end()
    assert run.wait() == 0, run.told()
    assert len(run.named("spawned")) == 1


def test_what_the_driver_says_of_a_fault_is_healed_with_it(ward: Ward) -> None:
    heal = "echo >>healed; sed -i 's/field:230 1/field:230 0/' nvml.state"
    run = ward.start("--heal", heal)
    ward.gpus.set(0, **RESET)
    ward.gpus.xid(0, 46)
    run.until("restart")
    ward.end()
    assert run.wait() == 0, run.told()
    assert (ward.folder / "healed").read_text() == "\n"


def test_a_reboot_that_is_asked_for_over_the_healing_ends_with_197(ward: Ward) -> None:
    run = ward.start()
    ward.gpus.set(0, **RESET)
    run.until("healing")
    ward.gpus.set(0, **REBOOT)
    assert run.wait() == 197, run.told()
    assert "recovery:reboot" in ward.runs.verdict["message"]
