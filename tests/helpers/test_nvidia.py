"""NVIDIA devices, read by the real pynvml from a fake driver library."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.device.nvml import BUSY, GIB, LOST, MISMATCH, NO_PERMISSION, RECOVERY, SPINNING, UNKNOWN, FakeNvml, uuid
from support.device.prober import SELDOM, Prober
from support.helper_process import Line
from support.runs import wait_for

Start = Callable[..., Prober]


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, devices=2)


@pytest.fixture
def start(fake: FakeNvml) -> Iterator[Start]:
    """Starts probes, which have to run until the end of the test."""
    started: list[Prober] = []

    def call(fake: FakeNvml = fake, **environment: str) -> Prober:
        started.append(Prober(fake.environment() | environment))
        return started[-1]

    yield call
    for probe in started:
        with probe:
            assert probe.end() == 0


def ids(devices: list[Line]) -> list[str]:
    return [device["id"] for device in devices]


def health(devices: list[Line]) -> list[str]:
    return [device["health"] for device in devices]


def test_every_value(fake: FakeNvml, start: Start) -> None:
    fake.set(0, **SPINNING)
    fake.set(1, **BUSY, pids=[8, 7], memory_used=3 * GIB)
    spinning, busy = start().devices()
    assert busy == {
        "vendor": "nvidia",
        "id": uuid(1),
        "index": 1,
        "name": "NVIDIA H100 80GB HBM3",
        "util": 97,
        "memory_util": 43,
        "power": 650.25,
        "clock": 1755,
        "memory_used": 3 * GIB,
        "memory_total": 80 * GIB,
        "traffic": 430_000_000,
        "pids": [7, 8],
        "recovery": "none",
        "health": "ok",
        "visible": uuid(1),
        "answers": True,
        "broken": False,
        "examined": True,
    }
    values = [spinning[key] for key in ("util", "power", "memory_util", "traffic")]
    assert values == [100, 118, 0, 0]  # a collective that waits is busy at low power


def test_unsupported_value_is_none(fake: FakeNvml, start: Start) -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("power", "util", "clock", "sent", "rows_corrected", "memory_total", RECOVERY)
    )
    fake.set(0, **nothing, **{"error:nvmlDeviceGetTotalEccErrors": NO_PERMISSION})
    fake.set(1, **{"error:nvmlDeviceGetPcieThroughput": UNKNOWN})
    device, other = start().devices()
    left = {key for key, value in device.items() if value is not None}
    assert left == {"vendor", "id", "index", "name", "pids", "health", "visible", "answers", "broken", "examined"}
    assert device["health"] == "ok"
    assert (other["traffic"], other["util"], other["health"]) == (None, 0, "ok")


def test_device_without_any_answer_does_not_answer(fake: FakeNvml, start: Start) -> None:
    probe = start()
    probe.devices(lambda devices: health(devices) == ["ok", "ok"])
    fake.set(0, **{"error:*": UNKNOWN})
    device = probe.devices(lambda devices: health(devices) == ["Unknown Error", "ok"])[0]
    assert (device["id"], device["memory_used"]) == (uuid(0), None)
    assert (device["answers"], device["broken"]) == (False, False)
    fake.set(0, **{"error:*": None})
    probe.devices(lambda devices: health(devices) == ["ok", "ok"])


def test_lost_gpu_comes_back_and_xids_of_others_are_reported_meanwhile(fake: FakeNvml, start: Start) -> None:
    probe = start()
    probe.devices()
    fake.set(1, lost=True)
    devices = probe.devices(lambda devices: health(devices) == ["ok", "GPU is lost"])
    assert ids(devices) == [uuid(0), uuid(1)]

    def reported() -> list[str]:
        fake.xid(0, 31)  # again and again: NVML is restarted all the time here, which loses Xids
        probe.devices()
        return [line["device"] for line in probe.named("fault_changed") if line["code"] == "31"]

    assert set(wait_for(reported, "Xid 31 is reported")) == {uuid(0)}
    fake.set(1, lost=False)
    devices = probe.devices(lambda devices: health(devices) == ["ok", "ok"])
    assert ids(devices) == [uuid(0), uuid(1)]


def test_gpu_that_is_lost_from_the_start_has_a_number_until_its_uuid_is_known(fake: FakeNvml, start: Start) -> None:
    fake.set(1, lost=True)
    probe, numbered = start(), start(CUDA_VISIBLE_DEVICES="1,0")
    devices = probe.devices()
    assert [(device["id"], device["visible"]) for device in devices] == [(uuid(0), uuid(0)), ("gpu1", None)]
    assert {device["visible"] for device in numbered.devices()} == {"1", "0"}  # in any order: NVML may be restarted
    fake.set(1, lost=False)
    assert ids(probe.devices(lambda devices: health(devices) == ["ok", "ok"])) == [uuid(0), uuid(1)]
    devices = numbered.devices(lambda devices: health(devices) == ["ok", "ok"])
    assert {(device["id"], device["visible"]) for device in devices} == {(uuid(1), "1"), (uuid(0), "0")}


def test_gpu_that_vanishes_is_identified_by_its_uuid(fake: FakeNvml, start: Start) -> None:
    probe = start(CUDA_VISIBLE_DEVICES="1")
    assert ids(probe.devices()) == [uuid(1)]
    fake.set("-", devices=1)
    fake.reload()
    devices = probe.devices(lambda devices: health(devices) == ["not listed any more"])
    assert ids(devices) == [uuid(1)]
    fake.set(0, uuid=uuid(1))
    devices = probe.devices(lambda devices: health(devices) == ["ok"])
    assert [(device["id"], device["index"]) for device in devices] == [(uuid(1), 0)]


def test_driver_that_was_reloaded(fake: FakeNvml, start: Start) -> None:
    probe = start()
    probe.devices()
    fake.set("-", **{"error:nvmlInitWithFlags": LOST})
    fake.reload()
    probe.devices(lambda devices: health(devices) == ["GPU is lost"] * 2)
    fake.set("-", **{"error:nvmlInitWithFlags": None})
    probe.devices(lambda devices: health(devices) == ["ok", "ok"])
    fake.xid(1, 13)
    assert probe.event("fault_changed")["device"] == uuid(1)


def test_driver_that_does_not_match_its_library(fake: FakeNvml, start: Start) -> None:
    fake.set("-", **{"error:nvmlInitWithFlags": MISMATCH})
    probe = start()
    assert probe.event("ready")
    device = probe.devices()[0]
    assert (device["id"], device["health"]) == ("nvidia", "RM has detected an NVML/RM version mismatch.")
    fake.set("-", **{"error:nvmlInitWithFlags": None})
    probe.devices(lambda devices: ids(devices) == [uuid(0), uuid(1)])


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {uuid(0): uuid(0), uuid(1): uuid(1)}),  # CUDA may number them differently
        ({"CUDA_VISIBLE_DEVICES": "1, 0"}, {uuid(1): "1", uuid(0): "0"}),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, {uuid(0): uuid(0), uuid(1): uuid(1)}),  # in containers with CDI
    ],
)
def test_job_uses_the_visible_devices(start: Start, environment: dict[str, str], expected: dict[str, str]) -> None:
    devices = start(**environment).devices()
    assert [(device["id"], device["visible"]) for device in devices] == [*expected.items()]


def test_job_without_visible_devices(fake: FakeNvml) -> None:
    with Prober(fake.environment() | {"CUDA_VISIBLE_DEVICES": "7"}) as probe:
        assert probe.event("absent")["why"] == "no NVIDIA device is visible (CUDA_VISIBLE_DEVICES=7)"
        assert probe.ended() == 0


def test_device_without_permission_is_not_counted(fake: FakeNvml, start: Start) -> None:
    fake.set(0, **{"error:nvmlDeviceGetHandleByIndex_v2": NO_PERMISSION})
    device = start(CUDA_VISIBLE_DEVICES="0").devices()[0]
    assert (device["id"], device["index"]) == (uuid(1), 1)


def test_numbers_of_different_gpus_are_a_problem(fake: FakeNvml, start: Start) -> None:
    fake.set(1, name="NVIDIA T400")
    assert "PCI_BUS_ID" in start(CUDA_VISIBLE_DEVICES="0").event("problem")["what"]
    for environment in ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}, {}):
        probe = start(**environment)
        probe.devices()
        assert probe.problems == []


def test_xid_of_a_visible_gpu_is_reported_once(fake: FakeNvml) -> None:
    fake.xid(0, 45)  # before the probe
    with Prober(fake.environment() | {"CUDA_VISIBLE_DEVICES": "1"}, period=SELDOM) as probe:
        probe.devices()
        fake.xid(0, 79)
        fake.xid(1, 79)
        expected = {"device": uuid(1), "code": "79", "gone": False, "old": False}
        expected |= {"event": "fault_changed", "severity": "critical", "why": "fell off the bus", "retry": ""}
        assert probe.event("fault_changed") == expected
        fake.xid(1, 31)
        assert probe.event("fault_changed")["code"] == "31"
        assert len(probe.named("fault_changed")) == 2


def test_mig_devices_are_devices(fake: FakeNvml, start: Start) -> None:
    first, second = fake.divide(0, 2)
    fake.set("0.1", pids=[7], memory_used=2 * GIB)
    fake.set(0, **{RECOVERY: 1})
    one, two, gpu = start(CUDA_VISIBLE_DEVICES="0,1").devices()
    assert [one["id"], two["id"], gpu["id"]] == [first, second, uuid(1)]
    assert [one["visible"], two["visible"], gpu["visible"]] == [first, second, "1"]  # 0 names two devices
    assert (two["name"], two["index"]) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0)
    assert (two["memory_used"], two["memory_total"], two["pids"]) == (2 * GIB, 10 * GIB, [7])
    assert (two["util"], two["power"], two["health"]) == (None, None, "ok")
    assert one["recovery"] == "reset"


def test_xid_of_a_mig_device_is_reported_for_that_device(fake: FakeNvml, start: Start) -> None:
    _, second = fake.divide(0, 2)
    probe = start(CUDA_VISIBLE_DEVICES=second)
    assert [(device["id"], device["visible"]) for device in probe.devices()] == [(second, second)]
    fake.xid(0, 31, instance=1)
    for code, instance in ((43, {"instance": 2}), (79, {})):
        fake.xid(0, code, **instance)
        fault = probe.event("fault_changed")
        assert (fault["code"], fault["device"]) == (str(code), second)


def test_mig_device_that_is_destroyed(fake: FakeNvml, start: Start) -> None:
    first, second = fake.divide(0, 2)
    probe = start(CUDA_VISIBLE_DEVICES=f"{first},{second}")
    probe.devices()
    fake.set("0.1", **{"error:*": 2})  # its handle is no longer valid
    fake.set(0, migs=1)
    devices = probe.devices(lambda devices: health(devices) == ["ok", "not listed any more"])
    assert ids(devices) == [first, second]


def test_old_driver_without_xids_is_one_problem(tmp_path: Path, start: Start) -> None:
    old = FakeNvml(tmp_path, old=True)
    old.set(0, **BUSY, pids=[7])
    probe = start(old)
    assert probe.event("problem")["what"] == "Xids cannot be read: Function Not Found"
    device = probe.devices()[0]
    assert (device["util"], device["pids"], device["health"]) == (97, [7], "ok")
