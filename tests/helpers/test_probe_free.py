"""When a device is free."""

from typing import Any

import pytest

from ftrun.helpers.probe.device_release import SHARE, TOLERANCE, DeviceHeld, devices_held
from ftrun.messages.probe import Device

MIB = 1 << 20
BEFORE = {"a": 500 * MIB}
LIVING = {1, 2}


def device(name: str = "a", used: int | None = 500 * MIB, pids: tuple[int, ...] = (), **more: Any) -> Device:
    return Device("nvidia", name, 0, "", memory_used=used, memory_total=10_000 * MIB, pids=pids)._replace(**more)


def judge(*devices: Device, pids: tuple[int, ...] = (), ours: tuple[int, ...] = ()) -> list[DeviceHeld]:
    return devices_held(devices, pids, BEFORE, ours, LIVING.__contains__)


def test_free_when_nobody_is_there_and_its_memory_is_back() -> None:
    assert judge(device()) == []
    assert judge(device(used=0)) == []


def test_a_process_of_the_tree_holds_it_also_when_it_is_dead() -> None:
    assert judge(device(pids=(1, 7, 8)), pids=(1, 7)) == [DeviceHeld("a", (1, 7), 500 * MIB, None)]


def test_one_of_ours_holds_it_when_it_is_dead() -> None:
    assert judge(device(pids=(2, 9)), ours=(2, 9)) == [DeviceHeld("a", (9,), 500 * MIB, None)]


def test_a_number_that_never_lived_here_is_of_another_namespace() -> None:
    assert judge(device(pids=(40_000,))) == []


def test_memory_that_did_not_come_back_holds_it() -> None:
    assert judge(device(used=9_000 * MIB)) == [DeviceHeld("a", (), 9_000 * MIB, None)]
    assert judge(device(used=9_000 * MIB, pids=(40_000,))) == [DeviceHeld("a", (), 9_000 * MIB, None)]


@pytest.mark.parametrize("total", [1_000 * MIB, 80_000 * MIB])
def test_a_little_memory_is_nobodys(total: int) -> None:
    least = 500 * MIB + max(TOLERANCE, int(SHARE * total))
    assert judge(device(used=least, memory_total=total)) == []
    assert judge(device(used=least + 2, memory_total=total)) != []


def test_memory_may_be_that_of_somebody_else_who_lives() -> None:
    assert judge(device(used=9_000 * MIB, pids=(1,))) == []
    assert judge(device(used=9_000 * MIB, pids=(1,)), pids=(1,)) != []


def test_one_that_its_driver_calls_broken_is_not_free() -> None:
    lost = device(used=None, health="GPU is lost", answers=False, broken=True)
    assert judge(lost) == [DeviceHeld("a", (), None, "GPU is lost")]
    assert judge(device(health="Warning")) == []


@pytest.mark.parametrize("answers", [True, False])
def test_where_nobody_tells_its_memory_nothing_is_certain(answers: bool) -> None:
    silent = device(used=None, health="Unknown Error", answers=answers)
    assert judge(silent) == [DeviceHeld("a", (), None, "Unknown Error", certain=False)]
    assert judge(silent._replace(pids=(7,)), pids=(7,)) == [DeviceHeld("a", (7,), None, "Unknown Error")]


def test_one_that_is_left_out_of_a_list_is_not_free() -> None:
    assert judge(device("b")) == [DeviceHeld("a", (), None, "not listed any more")]


@pytest.mark.parametrize("devices", [[], [device("nvidia", None, answers=False, health="Unknown Error")]])
def test_where_nothing_is_listed_nothing_is_certain(devices: list[Device]) -> None:
    assert judge(*devices) == [DeviceHeld("a", (), None, "not listed any more", certain=False)]


def test_one_that_was_not_known_before_is_judged_by_processes_alone() -> None:
    new = device("b", used=9_000 * MIB)
    assert judge(device(), new, device("c", used=None, health="lost", broken=True, answers=False)) == []
    assert judge(device(), new._replace(pids=(7,)), pids=(7,)) == [DeviceHeld("b", (7,), 9_000 * MIB, None)]


def test_no_devices_are_free() -> None:
    assert devices_held([], [1], {}, [], LIVING.__contains__) == []
