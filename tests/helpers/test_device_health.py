"""When a device is free and healthy, when a fault is over, and which states are faults."""

from typing import Any

import pytest

from ftrun.core.rules.fault_codes import parse
from ftrun.helpers.probe.device import (
    SHARE,
    TOLERANCE,
    DeviceFault,
    LastingStates,
    devices_held,
    is_healthy,
    reason_not_cleared,
)
from ftrun.messages.probe import Device, Occupied

MIB = 1 << 20
BEFORE = {"a": 500 * MIB}
LIVING = {1, 2}


def device(name: str = "a", used: int | None = 500 * MIB, pids: tuple[int, ...] = (), **more: Any) -> Device:
    found = Device("nvidia", name, 0, "", memory_used=used, memory_total=10_000 * MIB, pids=pids, health="ok")
    return found._replace(**more)


def held(name: str = "a", used: int | None = 500 * MIB, pids: tuple[int, ...] = (), health: str = "ok") -> Occupied:
    return Occupied(name, pids, used, health)


FULL = 9_000 * MIB
LOST = device(used=None, health="GPU is lost", answers=False, broken=True)
SILENT = device(used=None, health="Unknown Error", answers=False)
UNLISTED = held(used=None, health="not listed any more")


@pytest.mark.parametrize(
    ("devices", "pids", "device_pids", "expected"),
    [
        ([device()], (), (), []),
        ([device(used=0)], (), (), []),
        ([device(pids=(1, 7, 8))], (1, 7), (), [held(pids=(1, 7))]),  # also a process that is dead
        ([device(pids=(2, 9))], (), (2, 9), [held(pids=(9,))]),  # a dead process that was on a device
        ([device(pids=(40_000,))], (), (), []),  # a pid of another namespace
        ([device(used=FULL)], (), (), [held(used=FULL)]),
        ([device(used=FULL, pids=(40_000,))], (), (), [held(used=FULL)]),
        ([device(used=FULL, pids=(1,))], (), (), []),  # the memory may be that of another living process
        ([device(used=FULL, pids=(1,))], (1,), (), [held(used=FULL, pids=(1,))]),
        ([LOST], (), (), [held(used=None, health="GPU is lost")]),
        ([device(health="Warning")], (), (), []),
        ([SILENT._replace(pids=(7,))], (7,), (), [held(used=None, pids=(7,), health="Unknown Error")]),
        ([device("b")], (), (), [UNLISTED]),
        # A device that was not known before is checked by its processes alone.
        ([device(), device("b", FULL), LOST._replace(id="c")], (), (), []),
        ([device(), device("b", FULL, (7,))], (7,), (), [held("b", FULL, (7,))]),
    ],
)
def test_devices_held(
    devices: list[Device], pids: tuple[int, ...], device_pids: tuple[int, ...], expected: list[Occupied]
) -> None:
    assert devices_held(devices, pids, BEFORE, device_pids, LIVING.__contains__) == (expected, [])


@pytest.mark.parametrize(
    ("devices", "silent"),
    [
        ([SILENT], held(used=None, health="Unknown Error")),
        ([SILENT._replace(answers=True)], held(used=None, health="Unknown Error")),
        ([], UNLISTED),
        ([SILENT._replace(id="nvidia")], UNLISTED),
    ],
)
def test_device_that_does_not_answer_is_silent(devices: list[Device], silent: Occupied) -> None:
    assert devices_held(devices, (), BEFORE, (), LIVING.__contains__) == ([], [silent])


@pytest.mark.parametrize("total", [1_000 * MIB, 80_000 * MIB])
def test_small_growth_of_memory_is_ignored(total: int) -> None:
    least = 500 * MIB + max(TOLERANCE, int(SHARE * total))
    for used, expected in ((least, []), (least + 2, [held(used=least + 2)])):
        found = devices_held([device(used=used, memory_total=total)], (), BEFORE, (), LIVING.__contains__)
        assert found == (expected, [])


@pytest.mark.parametrize(
    ("state", "present", "expected"),
    [
        ({}, (), True),
        ({"health": "Alarm"}, (), False),
        ({"health": None}, (), False),
        ({}, ("80C98002",), False),
        ({"examined": False}, (), False),  # the health of an earlier sample
        ({"answers": False}, (), False),
        ({"recovery": "none"}, (), True),
        ({"recovery": "drain"}, (), False),
    ],
)
def test_is_healthy(state: dict[str, Any], present: tuple[str, ...], expected: bool) -> None:
    assert is_healthy(device(**state), present) is expected


@pytest.mark.parametrize(
    ("one", "present", "new", "why"),
    [
        (device(), {"1"}, {"13"}, ""),
        (device(health="Alarm"), {"1"}, (), ""),
        (device(health="Alarm", answers=False), (), (), "Alarm"),
        (device(health="GPU is lost"), {"lost"}, (), "lost"),
        (device(), {"48"}, (), "048 is still reported"),
        (device(), (), {"95", "13"}, "95 was reported since"),
        (device(), {"95"}, {"95"}, ""),
        (device(recovery="none"), (), (), ""),
        (device(recovery="imex"), (), (), ""),
        (device(recovery="drain"), (), (), "the driver asks for: drain"),
        (device(recovery="what"), (), (), "the driver asks for: what"),
        (None, (), (), "not listed any more"),
    ],
)
def test_reason_not_cleared(one: Device | None, present: set[str], new: set[str], why: str) -> None:
    table = parse("13 user\n48 major\n95 critical\nrecovery:imex ignore\nrecovery:drain minor")
    assert reason_not_cleared(one, "048", present, new, table) == why


def test_lasting_states_are_faults_from_their_begin_to_their_end() -> None:
    states = LastingStates("lost it", "reset it")

    def changes(**state: Any) -> list[tuple[str, bool, bool]]:
        return [(fault.code, fault.gone, fault.old) for fault in states.update([device(**state)])]

    assert changes() == []
    assert changes(health="reset it") == [("recovery:reset", False, False)]
    assert changes(health="no answer") == []
    assert set(states.of("a")) == {"recovery:reset"}
    assert changes(health="lost it") == [("lost", False, False)]
    ends = [("lost", True, False), ("recovery:reset", True, False)]
    assert changes(recovery="drain") == [("recovery:drain", False, False), *ends]
    assert changes(health="lost it", name="b") == [("recovery:drain", True, False), ("lost", False, True)]
    assert states.update([device(name="b")]) == [DeviceFault("b", "lost", gone=True)]
    assert not states.of("a")
