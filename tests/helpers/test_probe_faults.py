"""What the probe tells of faults: how grave they are, when they come and when they go."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.probe.device import DeviceFault
from ftrun.helpers.probe.lasting_states import LastingStates, StateTexts
from ftrun.messages.probe import Device
from support.device.npu_smi import FakeNpuSmi
from support.device.nvml import RECOVERY, FakeNvml, uuid
from support.device.prober import Line, Prober

SOON = "import ftrun.helpers.probe.nvidia as n; n.AGAIN = n.LONGEST_AGAIN = 0.02; n.TRAFFIC = 0.0"
SELDOM = 3600.0  # s: nothing is told but what comes by itself
RESET, REBOOT, DRAIN_RESET = 1, 2, 4


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, devices=2)


@pytest.fixture
def probe(fake: FakeNvml) -> Iterator[Prober]:
    with Prober(fake.environment(), before=SOON) as probe:
        probe.devices()
        yield probe


def faults(probe: Prober) -> list[Line]:
    return [line for line in probe.lines if line["event"] == "fault"]


def short(line: Line) -> tuple[Any, ...]:
    return line["index"], line["code"], line["severity"], line["gone"], line.get("old", False)


def test_a_recovery_action_is_a_fault_until_it_is_none(probe: Prober, fake: FakeNvml) -> None:
    fake.set(1, **{RECOVERY: RESET})
    assert probe.event("fault") == {
        "event": "fault",
        "device": uuid(1),
        "index": 1,
        "code": "recovery:reset",
        "text": "GPU recovery action: reset",
        "gone": False,
        "old": False,
        "severity": "major",
        "why": "the driver asks for a reset of the GPU",
    }
    fake.set(1, **{RECOVERY: REBOOT})
    assert short(probe.event("fault")) == (1, "recovery:reboot", "critical", False, False)
    assert short(probe.event("fault")) == (1, "recovery:reset", "major", True, False)
    fake.set(1, **{RECOVERY: 0})
    assert short(probe.event("fault")) == (1, "recovery:reboot", "critical", True, False)
    for _ in range(4):
        probe.devices()
    assert len(faults(probe)) == 4


def test_a_recovery_action_from_before_is_old(fake: FakeNvml) -> None:
    fake.set(0, **{RECOVERY: DRAIN_RESET})
    with Prober(fake.environment()) as probe:
        assert short(probe.event("fault")) == (0, "recovery:drain_reset", "major", False, True)
        fake.set(0, **{RECOVERY: 0})
        assert short(probe.event("fault")) == (0, "recovery:drain_reset", "major", True, False)
        fake.set(0, **{RECOVERY: DRAIN_RESET})
        assert short(probe.event("fault")) == (0, "recovery:drain_reset", "major", False, False)


def test_after_an_xid_the_recovery_action_is_looked_at_at_once(fake: FakeNvml) -> None:
    with Prober(fake.environment(), period=SELDOM) as probe:
        probe.devices()
        fake.set(1, **{RECOVERY: RESET})
        fake.xid(1, 154)
        assert short(probe.event("fault")) == (1, "154", "warning", False, False)
        assert short(probe.event("fault")) == (1, "recovery:reset", "major", False, False)
        assert sum(line["event"] == "devices" for line in probe.lines) == 1


def test_a_lost_device_is_a_fault_until_it_is_back(probe: Prober, fake: FakeNvml) -> None:
    fake.set(1, **{RECOVERY: RESET})
    probe.event("fault")
    fake.set(1, lost=True)
    assert short(probe.event("fault")) == (1, "lost", "critical", False, False)
    probe.devices(lambda devices: devices[1]["health"] == "GPU is lost")
    probe.devices()
    fake.set(1, lost=False)
    assert short(probe.event("fault")) == (1, "lost", "critical", True, False)
    assert len(faults(probe)) == 3  # what it would have done for it is as before


def test_ascend_codes_come_and_go_with_their_severity(tmp_path: Path) -> None:
    tool = FakeNpuSmi(tmp_path / "tool", "A3")
    tool.set(chip=1, codes=[("80E38008", "there before")], health="Alarm")
    with Prober(tool.environment(), kind="ascend") as probe:
        assert short(probe.event("fault")) == (1, "80E38008", "major", False, True)
        tool.set(codes=[("80C98002", "input"), ("FFFF0000", "what")], health="Alarm")
        assert short(probe.event("fault")) == (0, "80C98002", "minor+user", False, False)
        assert short(probe.event("fault")) == (0, "FFFF0000", "unknown", False, False)
        assert probe.lines[-1]["why"] == "not in the table"
        tool.set(codes=[])
        assert short(probe.event("fault")) == (0, "80C98002", "minor+user", True, False)
        assert [device["visible"] for device in probe.devices()] == ["0", "1"]


# A site's own table


def test_the_table_of_a_site_wins(fake: FakeNvml, tmp_path: Path) -> None:
    table = tmp_path / "site.txt"
    table.write_text("# ours\n094 critical we sort these out\n0031 ignore\n999 minor new\n31 ignore\n")
    with Prober(fake.environment(), table=table) as probe:
        probe.devices()
        told = []
        for code in (94, 31, 999, 13):
            fake.xid(0, code)
            line = probe.event("fault")
            told.append((line["severity"], line["why"]))
        assert told[:3] == [("critical", "we sort these out"), ("warning", f"as {table} says"), ("minor", "new")]
        assert told[3][0] == "user"
        assert not any(line["event"] == "problem" for line in probe.lines)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "endless", "no text", "no table", "long"])
def test_a_table_that_is_none_is_told_and_ours_holds(kind: str, fake: FakeNvml, tmp_path: Path) -> None:
    table = tmp_path / "site.txt"
    if kind == "folder":
        table.mkdir()
    elif kind == "pipe":
        os.mkfifo(table)
    elif kind == "endless":
        table.symlink_to("/dev/zero")
    elif kind != "missing":
        table.write_bytes({"no text": b"\xff\xfe", "no table": b"79 ignore\n79 quite", "long": b"#" * (2 << 20)}[kind])
    with Prober(fake.environment(), table=table) as probe:
        what = probe.event("problem")["what"]
        assert str(table) in what
        assert kind != "no table" or "line 2: 'quite' is not one of" in what
        probe.devices()
        fake.xid(0, 79)
        assert probe.event("fault")["severity"] == "critical"


# States that last


def device(health: str = "ok", recovery: str | None = "none", name: str = "a") -> Device:
    return Device("nvidia", name, 3, "", recovery=recovery, health=health)


def test_states_that_last() -> None:
    states = LastingStates(StateTexts("lost it", "reset it"))

    def news(*devices: Device) -> list[tuple[str, bool, bool]]:
        return [(fault.code, fault.gone, fault.old) for fault in states.update(devices)]

    assert news(device(recovery=None)) == []
    assert news(device(health="reset it", recovery=None)) == [("recovery:reset", False, False)]
    assert news(device(health="no answer", recovery=None)) == []
    assert set(states.of("a")) == {"recovery:reset"}
    assert news(device(health="lost it", recovery=None)) == [("lost", False, False)]
    assert news(device(recovery="drain")) == [
        ("recovery:drain", False, False),
        ("lost", True, False),
        ("recovery:reset", True, False),
    ]
    assert news(device(health="lost it", name="b")) == [("recovery:drain", True, False), ("lost", False, True)]
    assert states.update([device(name="b")]) == [DeviceFault("b", 3, "lost", "GPU is lost", gone=True)]
    assert not states.of("a")
