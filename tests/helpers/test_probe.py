"""The probe as PID 1 uses it: its messages on fake devices, and its answers to requests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.device.npu_smi import FakeNpuSmi
from support.device.nvml import GIB, RECOVERY, UNKNOWN, FakeNvml, uuid
from support.device.prober import LONG, SELDOM, Prober

BEFORE = {uuid(0): 600 << 20}
RESET, REBOOT = 1, 2
HEARTBEAT = ("80E38008", "LPM")
INPUT = ("80C98002", "input")


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, devices=2)


@pytest.fixture
def probe(fake: FakeNvml) -> Iterator[Prober]:
    """It samples all the time."""
    with Prober(fake.environment()) as probe:
        probe.devices()
        yield probe


@pytest.fixture
def quiet(fake: FakeNvml) -> Iterator[Prober]:
    """It samples on request only."""
    with Prober(fake.environment(), period=SELDOM) as probe:
        probe.devices()
        yield probe


@pytest.fixture
def tool(tmp_path: Path) -> FakeNpuSmi:
    return FakeNpuSmi(tmp_path / "tool", "A3")


@pytest.fixture
def chips(tool: FakeNpuSmi) -> Iterator[Prober]:
    with Prober(tool.environment(), kind="ascend", period=SELDOM) as probe:
        probe.devices()
        yield probe


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def fault(probe: Prober) -> tuple[Any, ...]:
    """The next fault, in short."""
    line = probe.event("fault_changed")
    return line["device"], line["code"], line["severity"], line["gone"], line["old"]


# --- its begin and its end --------------------------------------------------------------------------------------------


def test_probe_reports_its_vendors_and_samples_every_period_in_one_thread(fake: FakeNvml) -> None:
    with Prober(fake.environment(), kind="auto") as probe:
        before = time.monotonic()
        assert probe.event("ready") == {"event": "ready"}
        line = probe.event("devices")
        assert [device["id"] for device in line["devices"]] == [uuid(0), uuid(1)]
        assert before < line["mono"] < time.monotonic()
        probe.process.send_signal(signal.SIGINT)  # Ctrl-C is for the command
        times = [probe.event("devices")["mono"] for _ in range(6)]
        assert all(later - earlier >= 0.049 for earlier, later in pairwise(times))
        assert len(os.listdir(f"/proc/{probe.process.pid}/task")) == 1
        assert probe.end() == 0


def test_probe_without_devices_reports_why_and_ends(tmp_path: Path) -> None:
    with Prober({"CUDA_VISIBLE_DEVICES": "", "PATH": str(tmp_path)}, kind="auto") as probe:
        why = probe.event("absent")["why"]
        assert "NVIDIA" in why
        assert "npu-smi" in why
        assert probe.ended() == 0


# --- free -------------------------------------------------------------------------------------------------------------


def test_free_devices_are_reported_once(quiet: Prober) -> None:
    answer = {"event": "freed", "ok": True, "held": [], "silent": [], "well": []}
    assert quiet.free(pids=[1, 2], used=BEFORE) == answer
    for _ in range(2):
        assert quiet.clear(uuid(0), "48")["ok"]
    assert len(quiet.named("freed")) == 1


def test_dead_process_that_was_on_a_device_holds_it_without_being_named(
    probe: Prober, fake: FakeNvml, process: subprocess.Popen[bytes]
) -> None:
    fake.set(0, pids=[process.pid])
    probe.devices(lambda devices: devices[0]["pids"] == [process.pid])
    kill(process)
    assert probe.free(0, used=BEFORE)["held"][0]["pids"] == [process.pid]
    fake.set(0, pids=[])
    assert probe.free(used=BEFORE)["ok"]


def test_probe_continues_while_a_request_waits_and_a_later_request_replaces_it(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, memory_used=20 * GIB)
    probe.ask(ask="free", pids=[], used=BEFORE, timeout=SELDOM)
    fake.xid(0, 31)
    assert probe.event("fault_changed")["code"] == "31"
    probe.devices(lambda devices: devices[0]["memory_used"] == 20 * GIB)
    assert probe.free(SELDOM, used={uuid(0): 20 * GIB})["ok"]
    assert probe.end() == 0


def healthy(probe: Prober, *removed: str) -> list[str]:
    return list(probe.free(0, removed=removed)["well"])


def test_removed_gpu_is_healthy_if_it_answers_and_has_no_fault(quiet: Prober, fake: FakeNvml) -> None:
    assert healthy(quiet, uuid(0)) == [uuid(0)]
    assert healthy(quiet, uuid(0), uuid(1), "GPU-x") == [uuid(0), uuid(1)]
    fake.set(0, **{RECOVERY: RESET})
    fake.set(1, **{"error:*": UNKNOWN})
    assert healthy(quiet, uuid(0), uuid(1)) == []
    fake.set(0, **{RECOVERY: 0})
    assert healthy(quiet, uuid(0), uuid(1)) == [uuid(0)]


def test_removed_chip_is_healthy_only_by_its_present_answer(chips: Prober, tool: FakeNpuSmi) -> None:
    assert healthy(chips, "0-0", "0-1") == ["0-0", "0-1"]
    tool.set(codes=[INPUT])
    assert healthy(chips, "0-0", "0-1") == ["0-1"]
    tool.set(codes=[])
    tool.say("info -t health -i 0 -c 1", "dcmi model initialized failed, because the device is used. ret is -8020\n", 1)
    assert healthy(chips, "0-0", "0-1") == ["0-0"]


# --- clear ------------------------------------------------------------------------------------------------------------


def test_fault_is_over_after_the_requested_action(quiet: Prober, fake: FakeNvml) -> None:
    fake.set(0, **{RECOVERY: RESET})
    since = time.monotonic()
    fake.later(0.7, 0, **{RECOVERY: 0})
    assert quiet.clear(uuid(0), "48")["ok"]
    assert time.monotonic() - since > 0.6
    actions = [line["gone"] for line in quiet.named("fault_changed") if line["code"] == "recovery:reset"]
    assert actions == [False, True]  # which was reported since the request, and is over


def test_lost_device_is_cleared_when_it_is_back(quiet: Prober, fake: FakeNvml) -> None:
    fake.set(0, lost=True)
    assert quiet.clear(uuid(0), "79", 0) == {"event": "cleared", "ok": False, "why": "GPU is lost"}
    fake.later(0.7, 0, lost=False)
    assert quiet.clear(uuid(0), "lost")["ok"]
    assert quiet.clear("GPU-x", "79", 0)["why"] == "not listed any more"
    fake.set("-", devices=1)
    fake.reload()
    assert not quiet.clear(uuid(1), "79", 0.6)["ok"]


def test_severe_fault_during_the_wait_prevents_the_clearing(quiet: Prober, fake: FakeNvml) -> None:
    fake.set(0, **{RECOVERY: RESET})
    quiet.ask(ask="clear", device=uuid(0), code="94", timeout=SELDOM)
    quiet.ask(ask="free", pids=[], used={}, timeout=LONG)  # both at the same time
    assert quiet.event("freed")["ok"]
    fake.xid(0, 31)  # which is not severe
    fake.xid(1, 79)  # which is of another device
    quiet.event("fault_changed", lambda line: line["code"] == "79")
    fake.set(0, **{RECOVERY: 0})
    assert quiet.event("cleared")["ok"]
    fake.set(0, **{RECOVERY: RESET})
    quiet.ask(ask="clear", device=uuid(0), code="94", timeout=10)
    fake.xid(0, 95)
    quiet.event("fault_changed", lambda line: line["code"] == "95")
    fake.set(0, **{RECOVERY: 0})
    assert quiet.event("cleared")["why"] == "95 was reported since"


def test_fault_that_lasts_is_reported_at_the_timeout(quiet: Prober, fake: FakeNvml) -> None:
    fake.set(0, **{RECOVERY: REBOOT})
    since = time.monotonic()
    expected = {"event": "cleared", "ok": False, "why": "the driver asks for: reboot"}
    assert quiet.clear(uuid(0), "48", 0.6) == expected
    assert time.monotonic() - since >= 0.6
    assert quiet.clear(uuid(1), "48")["ok"]


def test_ascend_code_is_over_when_the_chip_does_not_report_it(chips: Prober, tool: FakeNpuSmi) -> None:
    tool.set(codes=[HEARTBEAT, INPUT], health="Alarm")
    assert chips.clear("0-0", "0x80e38008", 0)["why"] == "0x80e38008 is still reported"
    assert chips.clear("0-1", HEARTBEAT[0], 0)["ok"]
    chips.ask(ask="clear", device="0-0", code=HEARTBEAT[0], timeout=LONG)
    tool.set(codes=[INPUT])
    assert chips.event("cleared")["ok"]
    tool.set(chip=1, lost=True)
    assert chips.clear("0-1", HEARTBEAT[0], 0)["why"] == "not listed any more"
    chips.ask(ask="clear", device="0-1", code=HEARTBEAT[0], timeout=LONG)
    tool.set(chip=1, lost=False)
    assert chips.event("cleared")["ok"]


def test_slow_tool_is_run_once_a_second_at_most(chips: Prober, tool: FakeNpuSmi) -> None:
    tool.set(codes=[HEARTBEAT])
    before = tool.calls.count("info -t usages -i 0")
    since = time.monotonic()
    chips.ask(ask="free", pids=[], used={"9-9": 1}, timeout=2.5)
    assert not chips.clear("0-0", HEARTBEAT[0], 2.5)["ok"]
    spent = time.monotonic() - since
    assert 2 <= tool.calls.count("info -t usages -i 0") - before <= spent + 2


# --- faults -----------------------------------------------------------------------------------------------------------


def test_recovery_action_is_a_fault_while_it_lasts(probe: Prober, fake: FakeNvml) -> None:
    fake.set(1, **{RECOVERY: RESET})
    assert probe.event("fault_changed") == {
        "event": "fault_changed",
        "device": uuid(1),
        "code": "recovery:reset",
        "gone": False,
        "old": False,
        "severity": "major",
        "why": "the driver asks for a reset of the GPU",
        "retry": "",
    }
    fake.set(1, **{RECOVERY: REBOOT})
    assert fault(probe) == (uuid(1), "recovery:reboot", "critical", False, False)
    assert fault(probe) == (uuid(1), "recovery:reset", "major", True, False)
    fake.set(1, lost=True)
    assert fault(probe) == (uuid(1), "lost", "critical", False, False)
    probe.devices(lambda devices: devices[1]["health"] == "GPU is lost")
    fake.set(1, lost=False)
    assert fault(probe) == (uuid(1), "lost", "critical", True, False)  # the recovery action is as before
    fake.set(1, **{RECOVERY: 0})
    assert fault(probe) == (uuid(1), "recovery:reboot", "critical", True, False)
    for _ in range(4):
        probe.devices()
    assert len(probe.named("fault_changed")) == 6


def test_xid_causes_a_sample_of_the_recovery_action(quiet: Prober, fake: FakeNvml) -> None:
    fake.set(1, **{RECOVERY: RESET})
    fake.xid(1, 154)
    assert fault(quiet) == (uuid(1), "154", "warning", False, False)
    assert fault(quiet) == (uuid(1), "recovery:reset", "major", False, False)
    assert len(quiet.named("devices")) == 1


def test_ascend_codes_are_reported_with_their_severity(tool: FakeNpuSmi) -> None:
    tool.set(chip=1, codes=[HEARTBEAT], health="Alarm")
    with Prober(tool.environment(), kind="ascend") as probe:
        assert fault(probe) == ("0-1", HEARTBEAT[0], "major", False, True)
        tool.set(codes=[INPUT, ("FFFF0000", "what")], health="Alarm")
        assert fault(probe) == ("0-0", INPUT[0], "minor+user", False, False)
        line = probe.event("fault_changed")
        assert (line["code"], line["severity"], line["why"]) == ("FFFF0000", "unknown", "not in the table")
        tool.set(codes=[])
        assert fault(probe) == ("0-0", INPUT[0], "minor+user", True, False)
        assert [device["visible"] for device in probe.devices()] == ["0", "1"]


@pytest.mark.parametrize("kind", ["pipe", "endless", "no table"])
def test_malformed_table_of_a_site_is_a_problem_and_is_not_used(kind: str, fake: FakeNvml, tmp_path: Path) -> None:
    table = tmp_path / "site.txt"
    if kind == "pipe":
        os.mkfifo(table)
    elif kind == "endless":
        table.symlink_to("/dev/zero")
    else:
        table.write_text("79 ignore\n79 quite")
    with Prober(fake.environment(), table=table) as probe:
        what = probe.event("problem")["what"]
        assert str(table) in what
        assert kind != "no table" or "line 2: 'quite' is not one of" in what
        probe.devices()
        fake.xid(0, 79)
        assert probe.event("fault_changed")["severity"] == "critical"
