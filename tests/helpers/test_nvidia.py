"""NVIDIA devices, by the real pynvml on a fake driver library."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.device.nvml import (
    BUSY,
    GIB,
    IDLE,
    LOST,
    MISMATCH,
    NO_PERMISSION,
    RECOVERY,
    SPINNING,
    UNKNOWN,
    FakeNvml,
    uuid,
)
from support.device.prober import Line, Prober

SOON = "import ftrun.helpers.probe.nvidia as n; n.AGAIN = n.LONGEST_AGAIN = 0.02; n.TRAFFIC = 0.0"
Start = Callable[..., Prober]


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, devices=2)


@pytest.fixture
def start(fake: FakeNvml) -> Iterator[Start]:
    """What ends the probe is an assertion that fails."""
    started: list[Prober] = []

    def call(fake: FakeNvml = fake, **environment: str) -> Prober:
        started.append(Prober(fake.environment() | environment, before=SOON))
        return started[-1]

    yield call
    for probe in started:
        with probe:
            assert probe.process.stdin is None or probe.end() == 0


def ids(devices: list[Line]) -> list[str]:
    return [device["id"] for device in devices]


def health(devices: list[Line]) -> list[str]:
    return [device["health"] for device in devices]


def test_every_value(fake: FakeNvml, start: Start) -> None:
    fake.set(1, **BUSY, pids=[8, 7], rows_corrected=2, rows_uncorrected=1, ecc_errors=5, memory_used=3 * GIB)
    idle, busy = start().devices()
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
        "remapped_rows": 3,
        "ecc_errors": 5,
        "health": "ok",
        "visible": uuid(1),
        "answers": True,
        "broken": False,
        "examined": True,
    }
    assert (idle["util"], idle["power"], idle["traffic"]) == (IDLE["util"], IDLE["power"], 0)


def test_a_collective_that_waits_is_busy_at_low_power(fake: FakeNvml, start: Start) -> None:
    fake.set(0, **SPINNING)
    device = start().devices()[0]
    assert (device["util"], device["power"], device["memory_util"], device["traffic"]) == (100, 118, 0, 0)


@pytest.mark.parametrize(
    ("action", "word"), [(0, "none"), (1, "reset"), (2, "reboot"), (3, "drain"), (4, "drain_reset"), (9, "9")]
)
def test_what_would_cure_it(fake: FakeNvml, start: Start, action: int, word: str) -> None:
    fake.set(0, **{RECOVERY: action})
    assert start().devices()[0]["recovery"] == word


def test_what_is_not_supported_is_not_said(fake: FakeNvml, start: Start) -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("power", "util", "clock", "sent", "rows_corrected", "memory_total", RECOVERY)
    )
    fake.set(0, **nothing)
    fake.set(0, **{"error:nvmlDeviceGetTotalEccErrors": NO_PERMISSION})
    device = start().devices()[0]
    left = {key for key, value in device.items() if value is not None}
    assert left == {"vendor", "id", "index", "name", "pids", "health", "visible", "answers", "broken", "examined"}
    assert device["health"] == "ok"


def test_one_answer_that_is_unknown_says_nothing_of_the_device(fake: FakeNvml, start: Start) -> None:
    fake.set(0, **{"error:nvmlDeviceGetPcieThroughput": UNKNOWN})
    device = start().devices()[0]
    assert (device["traffic"], device["util"], device["health"]) == (None, 0, "ok")


def test_no_answer_at_all_does(fake: FakeNvml, start: Start) -> None:
    probe = start()
    probe.devices(lambda devices: health(devices) == ["ok", "ok"])
    fake.set(0, **{"error:*": UNKNOWN})
    device = probe.devices(lambda devices: health(devices) == ["Unknown Error", "ok"])[0]
    assert (device["id"], device["memory_used"]) == (uuid(0), None)
    assert (device["answers"], device["broken"]) == (False, False)
    fake.set(0, **{"error:*": None})
    probe.devices(lambda devices: health(devices) == ["ok", "ok"])


def test_traffic_is_not_measured_in_every_look(fake: FakeNvml) -> None:
    fake.set(0, **BUSY)
    with Prober(fake.environment(), period=3600) as probe:
        probe.devices()
        fake.set(0, **IDLE)
        probe.ask(ask="look")
        device = probe.devices()[0]
        assert (device["util"], device["traffic"]) == (0, 430_000_000)


def test_a_lost_gpu_is_told_and_comes_back(fake: FakeNvml, start: Start) -> None:
    probe = start()
    probe.devices()
    fake.set(1, lost=True)
    devices = probe.devices(lambda devices: health(devices) == ["ok", "GPU is lost"])
    assert ids(devices) == [uuid(0), uuid(1)]
    fake.set(1, lost=False)
    devices = probe.devices(lambda devices: health(devices) == ["ok", "ok"])
    assert ids(devices) == [uuid(0), uuid(1)]


def test_xids_of_the_others_are_seen_while_one_is_lost(fake: FakeNvml, start: Start) -> None:
    probe = start()
    probe.devices()
    fake.set(1, lost=True)
    probe.devices(lambda devices: health(devices) == ["ok", "GPU is lost"])
    for _ in range(100):  # here NVML is started anew all the time, and what comes meanwhile is lost
        fake.xid(0, 31)
        probe.devices()
        if any(line.get("code") == "31" for line in probe.lines):
            break
    assert next(line["device"] for line in probe.lines if line.get("code") == "31") == uuid(0)


def test_one_that_is_lost_from_the_start_has_a_number_until_it_has_a_name(fake: FakeNvml, start: Start) -> None:
    fake.set(1, lost=True)
    probe = start()
    assert ids(probe.devices()) == [uuid(0), "gpu1"]
    fake.set(1, lost=False)
    assert ids(probe.devices(lambda devices: health(devices) == ["ok", "ok"])) == [uuid(0), uuid(1)]


def test_one_that_vanishes_is_told_whatever_the_others_are_numbered(fake: FakeNvml, start: Start) -> None:
    probe = start(CUDA_VISIBLE_DEVICES="1")
    assert ids(probe.devices()) == [uuid(1)]
    fake.set("-", devices=1)
    fake.reload()
    devices = probe.devices(lambda devices: health(devices) == ["not listed any more"])
    assert ids(devices) == [uuid(1)]
    fake.set(0, uuid=uuid(1))
    devices = probe.devices(lambda devices: health(devices) == ["ok"])
    assert [(device["id"], device["index"]) for device in devices] == [(uuid(1), 0)]


def test_a_driver_that_was_loaded_anew(fake: FakeNvml, start: Start) -> None:
    probe = start()
    probe.devices()
    fake.set("-", **{"error:nvmlInitWithFlags": LOST})
    fake.reload()
    probe.devices(lambda devices: health(devices) == ["GPU is lost"] * 2)
    fake.set("-", **{"error:nvmlInitWithFlags": None})
    probe.devices(lambda devices: health(devices) == ["ok", "ok"])
    fake.xid(1, 13)
    assert probe.event("fault")["device"] == uuid(1)


def test_a_driver_that_does_not_match_its_library(fake: FakeNvml, start: Start) -> None:
    fake.set("-", **{"error:nvmlInitWithFlags": MISMATCH})
    probe = start()
    assert probe.event("ready")["vendors"] == ["nvidia"]
    device = probe.devices()[0]
    assert (device["id"], device["health"]) == ("nvidia", "RM has detected an NVML/RM version mismatch.")
    fake.set("-", **{"error:nvmlInitWithFlags": None})
    probe.devices(lambda devices: ids(devices) == [uuid(0), uuid(1)])


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, [uuid(1)]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [uuid(1), uuid(0)]),
        ({"CUDA_VISIBLE_DEVICES": uuid(1)[:6]}, [uuid(1)]),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, [uuid(0), uuid(1)]),  # so it is in containers whose GPUs came by CDI
    ],
)
def test_only_what_the_job_may_use(start: Start, environment: dict[str, str], expected: list[str]) -> None:
    assert ids(start(**environment).devices()) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, [uuid(0), uuid(1)]),  # CUDA may count otherwise
        ({"CUDA_VISIBLE_DEVICES": "1, 0"}, ["1", "0"]),
        ({"CUDA_VISIBLE_DEVICES": uuid(1)[:6]}, [uuid(1)[:6]]),
    ],
)
def test_each_device_says_what_names_it(start: Start, environment: dict[str, str], expected: list[str]) -> None:
    assert [device["visible"] for device in start(**environment).devices()] == expected


def test_an_entry_that_names_several_devices_names_none(fake: FakeNvml, start: Start) -> None:
    first, second = fake.divide(0, 2)
    assert [device["visible"] for device in start(CUDA_VISIBLE_DEVICES="0,1").devices()] == [first, second, "1"]
    assert [device["visible"] for device in start(CUDA_VISIBLE_DEVICES=second).devices()] == [second]


def test_one_that_was_never_seen_has_a_name_only_in_the_setting(fake: FakeNvml, start: Start) -> None:
    fake.set(1, lost=True)
    assert [device["visible"] for device in start().devices()] == [uuid(0), None]
    probe = start(CUDA_VISIBLE_DEVICES="1,0")
    assert {device["visible"] for device in probe.devices()} == {"1", "0"}  # in any order: NVML may have begun anew
    fake.set(1, lost=False)
    devices = probe.devices(lambda devices: health(devices) == ["ok", "ok"])
    assert {(device["id"], device["visible"]) for device in devices} == {(uuid(1), "1"), (uuid(0), "0")}


@pytest.mark.parametrize("setting", ["", "-1", "7"])
def test_a_job_that_may_use_none(fake: FakeNvml, setting: str) -> None:
    with Prober(fake.environment() | {"CUDA_VISIBLE_DEVICES": setting}) as probe:
        assert probe.event("absent")["why"] == f"no NVIDIA device is visible (CUDA_VISIBLE_DEVICES={setting})"
        assert probe.process.wait(20) == 0


def test_devices_that_are_not_permitted_are_not_counted(fake: FakeNvml, start: Start) -> None:
    fake.set(0, **{"error:nvmlDeviceGetHandleByIndex_v2": NO_PERMISSION})
    device = start(CUDA_VISIBLE_DEVICES="0").devices()[0]
    assert (device["id"], device["index"]) == (uuid(1), 1)


def test_numbers_of_different_gpus_may_mean_others(fake: FakeNvml, start: Start) -> None:
    fake.set(1, name="NVIDIA T400")
    assert "PCI_BUS_ID" in start(CUDA_VISIBLE_DEVICES="0").event("problem")["what"]
    for environment in ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}, {}):
        probe = start(**environment)
        probe.devices()
        probe.devices()
        assert not any(line["event"] == "problem" for line in probe.lines)


def test_an_xid_is_told_at_once_and_once(fake: FakeNvml) -> None:
    fake.xid(0, 45)  # before we were there
    with Prober(fake.environment(), period=3600) as probe:
        probe.devices()
        fake.xid(1, 79)
        told = {"device": uuid(1), "index": 1, "code": "79", "text": "Xid 79", "gone": False, "old": False}
        assert probe.event("fault") == {"event": "fault"} | told | {"severity": "critical", "why": "fell off the bus"}
        fake.xid(0, 31)
        assert probe.event("fault")["code"] == "31"


def test_an_xid_of_a_gpu_that_is_not_ours_is_not_told(fake: FakeNvml, start: Start) -> None:
    probe = start(CUDA_VISIBLE_DEVICES="0")
    probe.devices()
    fake.xid(1, 79)
    fake.xid(0, 31)
    assert probe.event("fault")["code"] == "31"


def test_mig_devices_count_by_themselves(fake: FakeNvml, start: Start) -> None:
    first, second = fake.divide(0, 2)
    fake.set("0.1", pids=[7], memory_used=2 * GIB)
    fake.set(0, **{RECOVERY: 1}, ecc_errors=3)
    one, two, whole = start().devices()
    assert [one["id"], two["id"], whole["id"]] == [first, second, uuid(1)]
    assert (two["name"], two["index"]) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0)
    assert (two["memory_used"], two["memory_total"], two["pids"]) == (2 * GIB, 10 * GIB, [7])
    assert (two["util"], two["power"], two["health"]) == (None, None, "ok")
    assert (one["recovery"], one["ecc_errors"]) == ("reset", 3)


def test_an_xid_of_a_mig_device_is_told_of_that_one(fake: FakeNvml, start: Start) -> None:
    _, second = fake.divide(0, 2)
    probe = start(CUDA_VISIBLE_DEVICES=second)
    assert ids(probe.devices()) == [second]
    fake.xid(0, 31, instance=1)
    fake.xid(0, 43, instance=2)
    assert (probe.event("fault")["code"], probe.lines[-1]["device"]) == ("43", second)
    fake.xid(0, 79)
    assert (probe.event("fault")["code"], probe.lines[-1]["device"]) == ("79", second)


def test_a_mig_device_that_is_destroyed_is_told(fake: FakeNvml, start: Start) -> None:
    first, second = fake.divide(0, 2)
    probe = start(CUDA_VISIBLE_DEVICES=f"{first},{second}")
    probe.devices()
    fake.set("0.1", **{"error:*": 2})  # its handle is no longer valid
    fake.set(0, migs=1)
    devices = probe.devices(lambda devices: health(devices) == ["ok", "not listed any more"])
    assert ids(devices) == [first, second]


def test_an_old_driver(tmp_path: Path, start: Start) -> None:
    old = FakeNvml(tmp_path, old=True)
    old.set(0, **BUSY, pids=[7])
    probe = start(old)
    assert probe.event("problem")["what"] == "Xids cannot be read: Function Not Found"
    device = probe.devices()[0]
    assert (device["util"], device["pids"], device["remapped_rows"], device["health"]) == (97, [7], None, "ok")
