"""The probe as PID 1 sees it: lines out, requests in."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from support.device.nvml import GIB, NO_PERMISSION, NOT_LOADED, UNKNOWN, FakeNvml, uuid
from support.device.prober import Prober

BEFORE = {uuid(0): 600 << 20}


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path)


@pytest.fixture
def probe(fake: FakeNvml) -> Iterator[Prober]:
    with Prober(fake.environment()) as probe:
        probe.event("ready")
        yield probe


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that lives."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_it_says_what_it_probes_and_then_how_it_is(fake: FakeNvml) -> None:
    with Prober(fake.environment(), kind="auto") as probe:
        before = time.monotonic()
        assert probe.event("ready") == {"event": "ready", "vendors": ["nvidia"]}
        line = probe.event("devices")
        assert [device["id"] for device in line["devices"]] == [uuid(0)]
        assert before < line["mono"] < time.monotonic()


def test_nothing_to_probe(tmp_path: Path) -> None:
    with Prober({"CUDA_VISIBLE_DEVICES": "", "PATH": str(tmp_path)}, kind="auto") as probe:
        line = probe.event("absent")
        assert "NVIDIA" in line["why"]
        assert "npu-smi" in line["why"]
        assert probe.process.wait(20) == 0


@pytest.mark.parametrize(("code", "why"), [(NOT_LOADED, "Driver Not Loaded"), (NO_PERMISSION, "Insufficient Perm")])
def test_a_library_without_a_driver_is_nothing_to_probe(fake: FakeNvml, code: int, why: str) -> None:
    fake.set("-", **{"error:nvmlInitWithFlags": code})
    with Prober(fake.environment()) as probe:
        assert why in probe.event("absent")["why"]
        assert probe.process.wait(20) == 0


def test_it_looks_every_period(probe: Prober) -> None:
    times = [probe.event("devices")["mono"] for _ in range(6)]
    assert all(after - before >= 0.049 for before, after in pairwise(times))


def test_it_looks_at_once_when_asked(fake: FakeNvml) -> None:
    with Prober(fake.environment(), period=3600) as probe:
        probe.devices()
        fake.set(0, util=33)
        probe.ask(ask="look")
        assert probe.devices()[0]["util"] == 33


def test_it_ends_with_its_stdin(fake: FakeNvml) -> None:
    with Prober(fake.environment(), period=3600) as probe:
        probe.devices()
        assert probe.end() == 0


def test_it_ends_when_nobody_reads(probe: Prober) -> None:
    assert probe.process.stdout is not None
    probe.process.stdout.close()
    assert probe.process.wait(20) == 0


def test_ctrl_c_is_not_for_it(probe: Prober) -> None:
    probe.process.send_signal(signal.SIGINT)
    probe.devices()
    probe.devices()


def test_a_driver_that_does_not_answer_silences_it(probe: Prober, fake: FakeNvml) -> None:
    before = probe.event("devices")["mono"]
    fake.later(0.6, "-", blocks=None)
    fake.set("-", blocks="nvmlDeviceGetMemoryInfo")
    last = before
    while not fake.blocked or probe.event("devices")["mono"] - last < 0.3:
        last = probe.lines[-1]["mono"]
    assert probe.lines[-1]["mono"] - last > 0.3


def test_a_bad_request_is_told_once_and_changes_nothing(probe: Prober) -> None:
    assert probe.process.stdin is not None
    bad = [b"nonsense", b"[]", b'{"ask": "tea"}', b'{"ask": "free", "pids": 1, "used": {}, "timeout": 1}', b"nonsense"]
    probe.process.stdin.write(b"\n".join(bad) + b"\n")
    probe.ask(ask="free", pids=[], used={}, timeout=9)
    assert probe.event("freed")["ok"]
    problems = [line["what"] for line in probe.lines if line["event"] == "problem"]
    assert len(problems) == 4
    assert all("request" in what for what in problems)


def test_free_at_once(fake: FakeNvml) -> None:
    with Prober(fake.environment(), period=3600) as probe:
        probe.ask(ask="free", pids=[1, 2], used=BEFORE, timeout=60)
        assert probe.event("freed") == {"event": "freed", "ok": True, "held": [], "silent": [], "well": []}
        probe.ask(ask="look")
        probe.devices()
        probe.ask(ask="look")
        probe.devices()
        assert sum(line["event"] == "freed" for line in probe.lines) == 1


def test_free_once_the_process_has_ended(probe: Prober, fake: FakeNvml, process: subprocess.Popen[bytes]) -> None:
    fake.set(0, holders={process.pid: 20 * GIB})
    probe.ask(ask="free", pids=[process.pid], used=BEFORE, timeout=60)
    probe.devices(lambda devices: devices[0]["pids"] == [process.pid])
    probe.devices()
    assert not any(line["event"] == "freed" for line in probe.lines)
    process.kill()
    process.wait()
    assert probe.event("freed")["ok"]


def test_free_once_memory_has_come_back(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, memory_used=20 * GIB)
    fake.later(0.5, 0, memory_used=700 << 20)
    since = time.monotonic()
    probe.ask(ask="free", pids=[], used=BEFORE, timeout=60)
    assert probe.event("freed")["ok"]
    assert time.monotonic() - since > 0.4


def test_not_free_in_time(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, pids=[4_000_000], memory_used=20 * GIB)
    since = time.monotonic()
    probe.ask(ask="free", pids=[4_000_000], used=BEFORE, timeout=0.4)
    held = [{"device": uuid(0), "pids": [4_000_000], "memory_used": 20 * GIB, "health": "ok"}]
    assert probe.event("freed") == {"event": "freed", "ok": False, "held": held, "silent": [], "well": []}
    assert time.monotonic() - since > 0.35


def test_a_dead_process_that_was_seen_holds_it_unasked(
    probe: Prober, fake: FakeNvml, process: subprocess.Popen[bytes]
) -> None:
    fake.set(0, pids=[process.pid])
    probe.devices(lambda devices: devices[0]["pids"] == [process.pid])
    process.kill()
    process.wait()
    probe.ask(ask="free", pids=[], used=BEFORE, timeout=0)
    assert probe.event("freed")["held"][0]["pids"] == [process.pid]
    fake.set(0, pids=[])
    probe.ask(ask="free", pids=[], used=BEFORE, timeout=60)
    assert probe.event("freed")["ok"]


def test_a_lost_device_is_not_free(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, lost=True)
    probe.ask(ask="free", pids=[], used=BEFORE, timeout=0)
    held = probe.event("freed")["held"]
    assert held == [{"device": uuid(0), "pids": [], "memory_used": None, "health": "GPU is lost"}]
    probe.devices()
    probe.devices()
    assert not any(line["event"] == "problem" for line in probe.lines)


@pytest.mark.parametrize("error", [UNKNOWN, NOT_LOADED])
def test_a_driver_that_does_not_answer_is_no_device_that_is_held(probe: Prober, fake: FakeNvml, error: int) -> None:
    probe.devices(lambda devices: devices[0]["health"] == "ok")
    fake.set("-", **{"error:*": error})
    fake.set(0, **{"error:*": error})
    probe.devices(lambda devices: devices[0]["health"] != "ok")
    probe.ask(ask="free", pids=[], used=BEFORE, timeout=0)
    answer = probe.event("freed")
    assert (answer["ok"], answer["held"], [one["device"] for one in answer["silent"]]) == (True, [], [uuid(0)])


def test_a_later_request_takes_the_place_of_one_that_waits(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, memory_used=20 * GIB)
    probe.ask(ask="free", pids=[], used=BEFORE, timeout=3600)
    probe.devices()
    probe.ask(ask="free", pids=[], used={uuid(0): 20 * GIB}, timeout=3600)
    assert probe.event("freed")["ok"]


def test_it_looks_on_while_it_waits_for_devices_to_be_free(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, memory_used=20 * GIB)
    probe.ask(ask="free", pids=[], used=BEFORE, timeout=3600)
    fake.xid(0, 31)
    assert probe.event("fault")["code"] == "31"
    probe.devices(lambda devices: devices[0]["memory_used"] == 20 * GIB)
    assert probe.end() == 0


def test_an_unknown_kind_is_a_problem_of_ours() -> None:
    with Prober({}, kind="abacus") as probe:
        assert "abacus" in probe.event("problem")["what"]
        assert probe.process.wait(20) == 1


def test_it_keeps_to_one_thread(probe: Prober) -> None:
    probe.devices()
    assert len(os.listdir(f"/proc/{probe.process.pid}/task")) == 1
