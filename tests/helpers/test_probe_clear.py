"""When a fault is over."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.rules.fault_codes import parse
from ftrun.helpers.probe.device_health import is_healthy, reason_not_cleared
from ftrun.messages.probe import Device
from support.device.npu_smi import FakeNpuSmi
from support.device.nvml import RECOVERY, UNKNOWN, FakeNvml, uuid
from support.device.prober import Line, Prober

SOON = "import ftrun.helpers.probe.nvidia as n; n.AGAIN = n.LONGEST_AGAIN = 0.02; n.TRAFFIC = 0.0"
SELDOM = 3600.0  # s: it looks when it is asked to
LONG = 60  # s: only a broken one takes so long
CODE = ("80E38008", "LPM")
MILD = ("80C98002", "input")


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, devices=2)


@pytest.fixture
def probe(fake: FakeNvml) -> Iterator[Prober]:
    with Prober(fake.environment(), period=SELDOM, before=SOON) as probe:
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


def ask(probe: Prober, device: str, code: str, timeout: float = LONG) -> Line:
    probe.ask(ask="clear", device=device, code=code, timeout=timeout)
    return probe.event("cleared")


def test_an_xid_is_over_where_nothing_is_asked_for(probe: Prober, fake: FakeNvml) -> None:
    fake.xid(0, 48)
    probe.event("fault")
    assert ask(probe, uuid(0), "48") == {"event": "cleared", "ok": True, "why": None}


def test_a_driver_that_knows_no_recovery_actions(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, **{RECOVERY: None})
    assert ask(probe, uuid(0), "48")["ok"]


def test_what_the_driver_asks_for_has_to_be_done(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, **{RECOVERY: 1})
    since = time.monotonic()
    fake.later(0.7, 0, **{RECOVERY: 0})
    assert ask(probe, uuid(0), "48")["ok"]
    assert time.monotonic() - since > 0.6
    # what it asked for was reported since, and is over
    assert [line["gone"] for line in probe.lines if line.get("code") == "recovery:reset"] == [False, True]


@pytest.mark.parametrize("action", [1, 9])
def test_not_over_in_time(probe: Prober, fake: FakeNvml, action: int) -> None:
    fake.set(0, **{RECOVERY: action})
    since = time.monotonic()
    word = {1: "reset", 9: "9"}[action]
    code = "48" if action == 9 else "recovery:reboot"
    assert ask(probe, uuid(0), code, 0.6) == {
        "event": "cleared",
        "ok": False,
        "why": f"the driver asks for: {word}",
    }
    assert time.monotonic() - since >= 0.6
    assert ask(probe, uuid(1), "48")["ok"]  # of another


def test_a_lost_device_is_over_when_it_is_back(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, lost=True)
    assert ask(probe, uuid(0), "79", 0) == {"event": "cleared", "ok": False, "why": "GPU is lost"}
    fake.later(0.7, 0, lost=False)
    assert ask(probe, uuid(0), "lost")["ok"]


def test_a_device_that_is_not_there_is_not_over(probe: Prober, fake: FakeNvml) -> None:
    assert ask(probe, "GPU-x", "79", 0)["why"] == "not listed any more"
    fake.set("-", devices=1)
    fake.reload()
    assert not ask(probe, uuid(1), "79", 0.6)["ok"]


def test_what_comes_meanwhile_is_against_it_if_it_is_grave(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, **{RECOVERY: 1})
    probe.ask(ask="clear", device=uuid(0), code="94", timeout=LONG)
    probe.event("fault")
    fake.xid(0, 31)
    assert probe.event("fault")["severity"] == "user"
    fake.xid(1, 79)
    probe.event("fault")
    fake.set(0, **{RECOVERY: 0})
    assert probe.event("cleared")["ok"]
    fake.set(0, **{RECOVERY: 1})
    probe.ask(ask="clear", device=uuid(0), code="94", timeout=3)
    probe.event("fault")
    fake.xid(0, 95)
    assert probe.event("fault")["code"] == "95"
    fake.set(0, **{RECOVERY: 0})
    assert probe.event("cleared")["why"] == "95 was reported since"


def healthy(probe: Prober, *removed: str) -> list[str]:
    probe.ask(ask="free", pids=[], used={}, timeout=0, removed=removed)
    found: list[str] = probe.event("freed")["well"]
    return found


def test_of_gpus_that_were_taken_out_those_are_well_that_answer_and_have_no_fault(
    probe: Prober, fake: FakeNvml
) -> None:
    assert healthy(probe, uuid(0)) == [uuid(0)]
    assert healthy(probe, uuid(0), uuid(1), "GPU-x") == [uuid(0), uuid(1)]
    fake.set(0, **{RECOVERY: 1})
    fake.set(1, **{"error:*": UNKNOWN})
    assert healthy(probe, uuid(0), uuid(1)) == []
    fake.set(0, **{RECOVERY: 0})
    assert healthy(probe, uuid(0), uuid(1)) == [uuid(0)]


def test_of_chips_that_were_taken_out_those_are_well_that_say_so_now(chips: Prober, tool: FakeNpuSmi) -> None:
    assert healthy(chips, "0-0", "0-1") == ["0-0", "0-1"]
    tool.set(codes=[MILD])
    assert healthy(chips, "0-0", "0-1") == ["0-1"]
    tool.set(codes=[])
    tool.say("info -t health -i 0 -c 1", "dcmi model initialized failed, because the device is used. ret is -8020\n", 1)
    assert healthy(chips, "0-0", "0-1") == ["0-0"]


@pytest.mark.parametrize(
    ("seen", "present", "answer"),
    [
        ({}, (), True),
        ({"health": "Alarm"}, (), False),
        ({"health": None}, (), False),
        ({}, ("80C98002",), False),
        ({"examined": False}, (), False),  # the health of an earlier look
        ({"answers": False}, (), False),
        ({"recovery": "none"}, (), True),
        ({"recovery": "drain"}, (), False),
    ],
)
def test_well(seen: dict[str, Any], present: tuple[str, ...], answer: bool) -> None:
    assert is_healthy(Device("ascend", "0-0", 0, "910B", health="ok")._replace(**seen), present) is answer


def test_xids_are_told_while_it_waits(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, **{RECOVERY: 1})
    probe.ask(ask="clear", device=uuid(0), code="48", timeout=3600)
    probe.event("fault")
    fake.xid(1, 31)
    assert probe.event("fault")["code"] == "31"
    assert probe.end() == 0


def test_over_and_free_are_asked_for_together(probe: Prober, fake: FakeNvml) -> None:
    fake.set(0, **{RECOVERY: 1})
    probe.ask(ask="clear", device=uuid(0), code="48", timeout=LONG)
    probe.ask(ask="free", pids=[], used={}, timeout=LONG)
    assert probe.event("freed")["ok"]
    fake.set(0, **{RECOVERY: 0})
    assert probe.event("cleared")["ok"]


@pytest.mark.parametrize("more", [{"device": "a", "code": "1"}, {"code": "1", "timeout": 1}, {"timeout": "x"}])
def test_a_bad_request_is_told(probe: Prober, more: dict[str, object]) -> None:
    probe.ask(ask="clear", **more)
    assert "request" in probe.event("problem")["what"]
    assert ask(probe, uuid(0), "48")["ok"]


def test_an_ascend_code_is_over_when_the_chip_does_not_tell_it(chips: Prober, tool: FakeNpuSmi) -> None:
    tool.set(codes=[CODE, MILD], health="Alarm")
    assert ask(chips, "0-0", "0x80e38008", 0)["why"] == "0x80e38008 is still reported"
    assert ask(chips, "0-1", CODE[0], 0)["ok"]
    chips.ask(ask="clear", device="0-0", code=CODE[0], timeout=LONG)
    chips.ask(ask="look")
    chips.devices()
    tool.set(codes=[MILD])
    assert chips.event("cleared")["ok"]


def test_a_chip_that_says_nothing_is_not_over(chips: Prober, tool: FakeNpuSmi) -> None:
    tool.set(chip=1, lost=True)
    assert ask(chips, "0-1", CODE[0], 0)["why"] == "not listed any more"
    chips.ask(ask="clear", device="0-1", code=CODE[0], timeout=LONG)
    tool.set(chip=1, lost=False)
    assert chips.event("cleared")["ok"]


def test_a_heavy_tool_is_asked_once_a_second_at_most(chips: Prober, tool: FakeNpuSmi) -> None:
    tool.set(codes=[CODE])
    before = tool.calls.count("info -t usages -i 0")
    since = time.monotonic()
    chips.ask(ask="free", pids=[], used={"9-9": 1}, timeout=2.5)
    assert not ask(chips, "0-0", CODE[0], 2.5)["ok"]
    spent = time.monotonic() - since
    looks = tool.calls.count("info -t usages -i 0") - before
    assert 2 <= looks <= spent + 2


# The rule


@pytest.mark.parametrize(
    ("device", "present", "new", "why"),
    [
        (Device("nvidia", "a", 0, "", health="ok"), {"1"}, {"13"}, ""),
        (Device("nvidia", "a", 0, "", memory_used=1, health="Alarm"), {"1"}, (), ""),
        (Device("nvidia", "a", 0, "", health="Alarm", answers=False), (), (), "Alarm"),
        (Device("nvidia", "a", 0, "", memory_used=1, health="GPU is lost"), {"lost"}, (), "lost"),
        (Device("nvidia", "a", 0, "", health="ok"), {"48"}, (), "048 is still reported"),
        (Device("nvidia", "a", 0, "", health="ok"), (), {"95", "13"}, "95 was reported since"),
        (Device("nvidia", "a", 0, "", health="ok"), {"95"}, {"95"}, ""),
        (Device("nvidia", "a", 0, "", health="ok", recovery="none"), (), (), ""),
        (Device("nvidia", "a", 0, "", health="ok", recovery="imex"), (), (), ""),
        (
            Device("nvidia", "a", 0, "", health="ok", recovery="drain"),
            (),
            (),
            "the driver asks for: drain",
        ),
        (
            Device("nvidia", "a", 0, "", health="ok", recovery="what"),
            (),
            (),
            "the driver asks for: what",
        ),
        (None, (), (), "not listed any more"),
    ],
)
def test_the_rule(device: Device | None, present: set[str], new: set[str], why: str) -> None:
    table = parse("13 user\n48 major\n95 critical\nrecovery:imex ignore\nrecovery:drain minor")
    assert reason_not_cleared(device, "048", present, new, table) == why
