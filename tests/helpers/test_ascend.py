"""Ascend chips are watched through an `npu-smi` that is a program on PATH, whatever it does."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ftrun.helpers.probe import ascend, npu_smi_runs
from ftrun.helpers.probe.device import DeviceFault, Unavailable
from ftrun.helpers.probe.npu_smi import Chip
from ftrun.messages.probe import Device
from support.device.npu_smi import FakeNpuSmi

MIB = 1 << 20
DEADLINE = 60.0  # s: only a broken one takes so long
SOON = 2.0  # s that a tool is given here, where it never answers
Fake = Callable[..., FakeNpuSmi]
Open = Callable[..., ascend.Ascend]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return lambda kind="910B", cards=1: FakeNpuSmi(tmp_path / "tool", kind, cards)


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens; at the end no tool is left running."""
    vendors: list[ascend.Ascend] = []

    def open(tool: FakeNpuSmi, **more: str) -> ascend.Ascend:
        vendors.append(ascend.open(tool.environment() | more))
        return vendors[-1]

    yield open
    for vendor in vendors:
        vendor.close()
    assert tools() == []


def tools() -> list[psutil.Process]:
    """Those of this process; what multiprocessing keeps for other tests is none."""
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "multiprocessing" not in " ".join(child.cmdline())]


def ended() -> None:
    """Wait until no tool runs."""
    _, alive = psutil.wait_procs(tools(), DEADLINE)
    assert alive == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_smi_runs, "TIMEOUT", SOON)


# What is said


@pytest.mark.parametrize(
    ("kind", "name", "second"),
    [
        ("910A", "Ascend 910A", "1-0"),
        ("910B", "Ascend 910B3", "1-0"),
        ("A3", "Ascend910", "0-1"),
        ("950", "Ascend950PR", "1-0"),
    ],
)
def test_a_busy_chip_and_an_idle_one(kind: str, name: str, second: str, fake: Fake, opened: Open) -> None:
    tool = fake(kind, 1 if kind == "A3" else 2)
    tool.set(util=97, memory_util=41, used=50, power=310.2, clock=1650, processes=[(os.getpid(), "python", 31000)])
    tool.set(ecc=2, isolated=4)
    busy, idle = opened(tool).devices()
    total = 65536 * MIB
    assert busy == Device(
        "ascend", "0-0", 0, name, 97, 41, 310.2, 1650, total // 2, total, None, (os.getpid(),), None, 4, 2, "ok", "0"
    )
    assert idle == Device(
        "ascend", second, 1, name, 0, 0, 92.4, 800, idle.memory_used, total, None, (), None, 0, 0, "ok", "1"
    )
    assert idle.memory_used == round(total * 0.05)


def test_a_chip_that_spins_is_busy_at_low_power(fake: Fake, opened: Open) -> None:
    tool = fake()
    tool.set(util=100, memory_util=0, power=105.0)
    (device,) = opened(tool).devices()
    assert (device.util, device.memory_util, device.power) == (100, 0, 105)


def test_what_is_not_told_is_none(fake: Fake, opened: Open) -> None:
    tool = fake()
    tool.set(util=None, memory_util=None, used=None, power=None, clock=None, ecc=None, isolated=None, health="NA")
    (device,) = opened(tool).devices()
    assert device == Device(
        "ascend", "0-0", 0, "Ascend 910B3", memory_total=65536 * MIB, remapped_rows=0, visible="0", examined=False
    )


def test_only_processes_of_this_namespace_are_told_and_until_the_driver_lets_go(fake: Fake, opened: Open) -> None:
    tool = fake()
    vendor = opened(tool)
    seen = []
    for names in (("train", ""), ("", ""), ("", "")):
        tool.set(processes=[(4711, names[0], 10), (1234567, names[1], 10)])
        seen += [device.pids for device in vendor.devices()]
    tool.say("info -t proc-mem -i 0", "Failed to query npu chip: 0 info.\n")
    seen += [device.pids for device in vendor.devices()]
    tool.say("info -t proc-mem -i 0", "No process in device.\n")
    seen += [device.pids for device in vendor.devices()]
    tool.say("info -t proc-mem -i 0", "Process id:4711 Process name: Process memory(MB):10\n")
    assert [*seen, vendor.devices()[0].pids] == [(4711,), (4711,), (4711,), (), (), ()]


# Faults


def look(vendor: ascend.Ascend) -> list[DeviceFault]:
    """The news of one look at everything."""
    for _ in range(ascend.HEALTH_EVERY):
        vendor.devices()
    return vendor.faults()


def test_what_is_there_from_the_start_is_old(fake: Fake, opened: Open) -> None:
    tool = fake("A3")
    first, second = ("80E01801", "HBM multi-bit ECC error"), ("8C084E00", "Heartbeat Lost")
    tool.set(codes=[first], health="Alarm")
    tool.set(chip=1, codes=[first], health="Alarm")
    vendor = opened(tool)
    assert look(vendor) == [DeviceFault("0-0", 0, *first, old=True), DeviceFault("0-1", 1, *first, old=True)]
    tool.set(codes=[first, second])
    tool.set(chip=1, codes=[])
    assert look(vendor) == [DeviceFault("0-0", 0, *second), DeviceFault("0-1", 1, *first, gone=True)]
    tool.set(chip=1, codes=[first])
    assert look(vendor) == [DeviceFault("0-1", 1, *first)]


def test_what_a_chip_has_that_says_nothing_at_first_is_old(fake: Fake, opened: Open) -> None:
    tool = fake()
    tool.set(lost=True, codes=[("80E01801", "bad")])
    tool.say("info -m", FakeNpuSmi(tool.folder / "well").answers()["info -m"][0])
    vendor = opened(tool)
    assert look(vendor) == []
    tool.set(lost=False)
    assert [(fault.code, fault.old) for fault in look(vendor)] == [("80E01801", True)]


def test_a_close_look_asks_for_codes_at_once(fake: Fake, opened: Open) -> None:
    tool = fake()
    vendor = opened(tool)
    vendor.devices()
    tool.set(codes=[("80E01801", "bad")])
    vendor.devices()
    assert (vendor.faults(), vendor.present("0-0")) == ([], set())
    vendor.devices("faults")
    assert vendor.present("0-0") == {"80E01801"}
    assert [fault.code for fault in vendor.faults()] == ["80E01801"]


@pytest.mark.parametrize("kind", ["910A", "A3", "950"])
def test_codes_come_and_go_each_once(kind: str, fake: Fake, opened: Open) -> None:
    tool = fake(kind)
    vendor = opened(tool)
    assert look(vendor) == []
    first, second = ("80E01801", "HBM multi-bit ECC error"), ("8C084E00", "Heartbeat Lost")
    tool.set(health="Alarm", codes=[first, second])
    assert look(vendor) == [DeviceFault("0-0", 0, *first), DeviceFault("0-0", 0, *second)]
    assert vendor.devices()[0].health == "Alarm"
    assert look(vendor) == []
    tool.set(codes=[second])
    assert look(vendor) == [DeviceFault("0-0", 0, *first, gone=True)]
    tool.set(codes=[], health="OK")
    assert look(vendor) == [DeviceFault("0-0", 0, *second, gone=True)]
    tool.set(codes=[first])
    assert look(vendor) == [DeviceFault("0-0", 0, *first)]


def test_a_chip_that_says_nothing_has_lost_no_code(fake: Fake, opened: Open) -> None:
    tool = fake()
    tool.set(codes=[("80E01801", "bad")], health="Critical")
    vendor = opened(tool)
    assert len(look(vendor)) == 1
    tool.set(lost=True)
    assert look(vendor) == []
    tool.set(lost=False)
    assert look(vendor) == []
    tool.set(codes=[])
    assert [fault.gone for fault in look(vendor)] == [True]


def test_what_is_seldom_needed_is_seldom_asked(fake: Fake, opened: Open) -> None:
    tool = fake("A3", 2)
    vendor = opened(tool)
    looks = 2 * ascend.HEALTH_EVERY + 1
    for _ in range(looks):
        vendor.devices()
    kinds = [call.split()[2] for call in tool.calls if call != "info -m"]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "usages": 2 * looks,
        "common": 2 * looks,
        "proc-mem": 2 * looks,
        "health": 4 * 3,
        "ecc": 2,
    }
    assert tool.calls.count("info -m") == 1


# Which chips


def test_only_chips_that_the_job_may_use(fake: Fake, opened: Open) -> None:
    tool = fake("A3", 2)
    vendor = opened(tool, ASCEND_RT_VISIBLE_DEVICES="3,1")
    assert [(device.id, device.index) for device in vendor.devices()] == [("1-1", 3), ("0-1", 1)]
    assert not [call for call in tool.calls if call.startswith("info -t health") and call.endswith("-c 0")]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1-2"}, [1, 2]),
        ({"ASCEND_RT_VISIBLE_DEVICES": "2,2,0"}, [2, 0]),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1, 2"}, [1]),  # CANN: a blank ends it
        ({"ASCEND_RT_VISIBLE_DEVICES": "1,8,2"}, [1]),  # and so does a device that is not there
        ({"ASCEND_RT_VISIBLE_DEVICES": ""}, []),
        ({"ASCEND_RT_VISIBLE_DEVICES": "-1"}, []),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0", "ASCEND_VISIBLE_DEVICES": "6"}, [0]),
        ({"ASCEND_VISIBLE_DEVICES": "5-6"}, [1, 2]),  # a privileged container sees more than was given to it
        ({"ASCEND_VISIBLE_DEVICES": "8-11"}, [0, 1, 2, 3]),  # numbered anew
        ({"ASCEND_VISIBLE_DEVICES": "9"}, [0, 1, 2, 3]),
    ],
)
def test_which_chips_an_environment_lets_it_use(environment: dict[str, str], expected: list[int]) -> None:
    chips = [Chip(logic // 2, logic % 2, logic, logic + 4, "x", False) for logic in range(4)]
    assert [chip.logic for chip in ascend.allowed(chips, environment)] == expected


def test_numbers_that_were_given_anew_are_not_those_of_the_host() -> None:
    chips = [Chip(logic, 0, logic, None, "x", False) for logic in range(4)]
    assert ascend.allowed(chips, {"ASCEND_VISIBLE_DEVICES": "2-5"}) == chips
    assert ascend.allowed(chips, {"ASCEND_VISIBLE_DEVICES": "2-3"}) == chips[2:]


def test_the_tool_is_run_in_its_own_way(tmp_path: Path) -> None:
    """In one language, with its libraries, and without the variable that those do not support."""
    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\nenv >{tmp_path}/env\necho 'NPU ID\tChip ID\tChip Logic ID\tChip Name'\necho 0 0 0 X\n")
    tool.chmod(0o755)
    more = {"LANG": "zh_CN.UTF-8", "LC_ALL": "zh_CN.UTF-8", "LD_LIBRARY_PATH": "/own", "ASCEND_RT_VISIBLE_DEVICES": "0"}
    ascend.open({"PATH": f"{tmp_path}:{os.environ['PATH']}"} | more).close()
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert seen["LC_ALL"] == "C"
    assert seen["LD_LIBRARY_PATH"] == f"/own:{npu_smi_runs.LIBRARIES}"
    assert "ASCEND_RT_VISIBLE_DEVICES" not in seen


# Trouble


def test_where_there_is_no_tool_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend, "USUAL", str(tmp_path / "usual"))
    with pytest.raises(Unavailable, match="no npu-smi on PATH"):
        ascend.open({"PATH": str(tmp_path)})


def test_a_tool_at_its_usual_place_is_found(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake()
    monkeypatch.setattr(ascend, "USUAL", str(tool.folder))
    ascend.open({"PATH": "/usr/bin:/bin"}).close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("There is no NPU card on this server.\n", "(There is no NPU card on this server.)"),
        ("\ndcmi model initialized failed, because the device is used. ret is -8020\n", "ret is -8020)"),
        (b"\xff\xfe\0" * 100, "\N{REPLACEMENT CHARACTER}"),
        ("设备编号 芯片编号\n0 0\n", "设备编号 芯片编号"),
        ("", "(it prints nothing)"),
    ],
)
def test_a_list_that_names_no_chip_is_asked_for_again_after_ever_longer_pauses(
    text: str | bytes, why: str, fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    tool = fake()
    tool.say("info -m", text, 204)
    vendor = opened(tool)
    (problem,) = vendor.problems
    assert why in problem
    assert "\n" not in problem
    asked: list[float] = []
    for _ in range(2000):
        now[0] += 1
        assert vendor.devices() == []
        asked += [now[0]] * (tool.calls.count("info -m") - 1 - len(asked))
        if len(asked) == 8:
            break
    pauses = [later - earlier for earlier, later in zip([1000.0, *asked], asked, strict=False)]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    assert vendor.problems == [problem]
    tool.say("info -m", *FakeNpuSmi(tool.folder / "well").answers()["info -m"])
    now[0] += ascend.LONGEST_PAUSE
    assert [(device.id, device.health) for device in vendor.devices()] == [("0-0", "ok")]


def test_a_variable_that_names_no_chip(fake: Fake, opened: Open) -> None:
    with pytest.raises(Unavailable, match="ASCEND_RT_VISIBLE_DEVICES=7 names no chip"):
        opened(fake(), ASCEND_RT_VISIBLE_DEVICES="7")


def test_a_variable_that_names_no_chip_of_a_list_that_came_late(fake: Fake, opened: Open) -> None:
    tool = fake()
    tool.say("info -m", "ret is -8020\n", 204)
    vendor = opened(tool, ASCEND_RT_VISIBLE_DEVICES="7")
    tool.say("info -m", *FakeNpuSmi(tool.folder / "well").answers()["info -m"])
    vendor._list_at = 0.0  # its time has come
    for _ in range(2):
        assert vendor.devices() == []
    assert vendor.problems == ["ASCEND_RT_VISIBLE_DEVICES=7 names no chip of this node"]
    assert tool.calls.count("info -m") == 2


def test_a_tool_that_never_answers_is_not_waited_for(fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend, "LISTING", SOON)
    tool = fake()
    (tool.folder / "now" / "info -m.never").touch()
    vendor = opened(tool)
    assert "(no answer)" in vendor.problems[0]
    ended()


def test_a_first_list_may_take_longer_than_other_answers(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npu_smi_runs, "TIMEOUT", 0.05)
    tool = fake()
    script = tool.folder / "npu-smi"
    script.write_text(script.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nsleep 0.5\n"))
    vendor = opened(tool)
    assert vendor.problems == []
    assert [device.health for device in vendor.devices()] == ["no answer"]
    ended()


def test_a_slow_tool_is_asked_for_everything_in_its_turn(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each answer took 4 s, of the 10 s that a look has."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    start = npu_smi_runs.ToolRunner._start

    def slowly(self: npu_smi_runs.ToolRunner, *arguments: Any) -> Any:
        now[0] += 4.0
        return start(self, *arguments)

    monkeypatch.setattr(npu_smi_runs.ToolRunner, "_start", slowly)
    tool = fake("A3")
    vendor = opened(tool)
    looks: list[list[str]] = []
    for number in range(12):
        before = len(tool.calls)
        vendor.devices()
        looks.append([call.split()[2] for call in tool.calls[before:]])
        assert len(looks[-1]) <= 3
        if number == 5:
            tool.set(chip=1, codes=[("80E01801", "bad")])
    for kind in ("health", "usages", "common", "proc-mem"):
        assert all(any(kind in look for look in looks[n : n + 4]) for n in range(9)), (kind, looks)
    assert any("ecc" in look for look in looks[:4])
    assert [fault.device for fault in vendor.faults()] == ["0-1"]


def test_what_is_not_understood_is_told_once_for_each_kind_of_question(fake: Fake, opened: Open) -> None:
    tool = fake(cards=2)
    tool.say("info -t health -i 0 -c 0", "健康状态 : 正常\n", 0)
    tool.say("info -t usages -i 0", b"\xff\0\xfe" * 300, 0)
    tool.say("info -t usages -i 1", "", 139)
    vendor = opened(tool)
    for _ in range(4):
        vendor.devices()
    health, usages = vendor.problems
    assert health == "the answer of npu-smi info -t health -i 0 -c 0 is not understood: 健康状态 : 正常"
    assert usages.startswith("the answer of npu-smi info -t usages -i ")
    assert "\0" not in usages


@pytest.mark.parametrize("word", ["正常", "Sta\u0301t", "0x7"])
def test_a_health_in_a_word_of_another_language_is_a_problem(word: str, fake: Fake, opened: Open) -> None:
    tool = fake()
    tool.set(health=word)
    vendor = opened(tool)
    assert vendor.devices()[0].health is None
    assert word in vendor.problems[0]


@pytest.mark.usefixtures("impatient")
def test_a_card_that_never_answers_is_killed_and_holds_nobody_up(fake: Fake, opened: Open) -> None:
    tool = fake(cards=3)
    vendor = opened(tool)
    vendor.devices()
    tool.set(card=1, never=True)
    asked = len(tool.calls)
    first, second, third = vendor.devices()
    assert [call for call in tool.calls[asked:] if call.endswith("-i 1")] == ["info -t usages -i 1"]
    assert second == Device(
        "ascend", "1-0", 1, "Ascend 910B3", health="no answer", visible="1", answers=False, examined=False
    )
    assert (first.health, third.health) == ("ok", "ok")
    assert vendor.problems == ["npu-smi does not answer for card 1 within 2 s"]
    ended()  # SIGTERM does nothing to it
    tool.set(card=1, never=False)
    assert [device.util for device in vendor.devices()] == [0, 0, 0]
    assert vendor.problems == []


@pytest.mark.usefixtures("impatient")
def test_cards_that_never_answer_are_waited_for_together(fake: Fake, opened: Open) -> None:
    tool = fake(cards=npu_smi_runs.AT_ONCE)
    vendor = opened(tool)
    for card in range(npu_smi_runs.AT_ONCE):
        tool.set(card=card, never=True)
    before = time.monotonic()
    assert [device.health for device in vendor.devices()] == ["no answer"] * npu_smi_runs.AT_ONCE
    assert time.monotonic() - before < npu_smi_runs.AT_ONCE * SOON / 2
    ended()


@pytest.mark.usefixtures("impatient")
def test_a_tool_that_cannot_be_killed_is_not_started_again(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in state D: SIGKILL does nothing before the driver lets go."""
    tool = fake(cards=2)
    vendor = opened(tool)
    tool.set(never=True)
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen.kill", lambda _: None)
        vendor.devices()
        (held,) = tools()
        asked = len([call for call in tool.calls if call.endswith("-i 0")])
        for _ in range(3):
            assert [device.health for device in vendor.devices()] == ["no answer", "ok"]
        assert len([call for call in tool.calls if call.endswith("-i 0")]) == asked
        assert tools() == [held]
    held.kill()
    ended()
    tool.set(never=False)
    assert [device.util for device in vendor.devices()] == [0, 0]


def test_after_a_look_has_taken_its_time_no_more_is_asked(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = opened(fake())
    monkeypatch.setattr(npu_smi_runs, "LOOK", 0.0)
    assert [device.health for device in vendor.devices()] == ["no answer"]


def test_a_card_that_vanishes_is_lost_and_may_come_back(fake: Fake, opened: Open) -> None:
    tool = fake(cards=2)
    vendor = opened(tool)
    vendor.devices()
    tool.set(card=1, lost=True)
    lost = Device(
        "ascend", "1-0", 1, "Ascend 910B3", health=ascend.LOST, visible="1", answers=False, broken=True, examined=False
    )
    assert vendor.devices()[1] == lost
    tool.set(card=1, lost=False)
    back = vendor.devices()[1]
    assert (back.util, back.health) == (0, None)  # not asked yet


def test_a_chip_that_vanishes_from_its_card_leaves_the_other(fake: Fake, opened: Open) -> None:
    tool = fake("A3")
    tool.set(chip=1, util=33, power=200.5)
    vendor = opened(tool)
    vendor.devices()
    tool.set(chip=0, lost=True)
    first, second = vendor.devices()
    assert first == Device(
        "ascend", "0-0", 0, "Ascend910", health=ascend.LOST, visible="0", answers=False, broken=True, examined=False
    )
    assert vendor.problems == ["npu-smi prints nothing about chip 0-0"]
    assert (second.util, second.power, second.health) == (33, 200.5, "ok")


def test_a_list_of_a_tool_that_dies_over_it_loses_no_chip(fake: Fake, opened: Open) -> None:
    tool = fake(cards=2)
    vendor = opened(tool)
    vendor.devices()
    tool.set(card=1, lost=True)
    text, _ = tool.answers()["info -m"]
    tool.say("info -m", text, 139)
    device = vendor.devices()[1]
    assert (device.health, device.broken) == ("no answer", False)


def test_a_tool_that_vanishes_is_no_lost_chip(fake: Fake, opened: Open) -> None:
    tool = fake()
    vendor = opened(tool)
    (tool.folder / "npu-smi").unlink()
    assert [device.health for device in vendor.devices()] == ["no answer"]


@pytest.mark.parametrize("text", [b"\xff\0\xfe" * 1000, b"segmentation fault", b"", b":\n" * 5000, b"x" * (3 * MIB)])
def test_garbage_of_one_card_is_nothing_of_it(text: bytes, fake: Fake, opened: Open) -> None:
    tool = fake(cards=2)
    vendor = opened(tool)
    for question in [question for question in tool.answers() if "-i 0" in question]:
        tool.say(question, text, 139)
    first, second = vendor.devices()
    assert first == Device(
        "ascend", "0-0", 0, "Ascend 910B3", health="no answer", visible="0", answers=False, examined=False
    )
    assert second.health == "ok"


def test_a_tool_that_prints_for_ever_is_cut_off(fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_smi_runs, "TIMEOUT", DEADLINE)
    tool = fake()
    vendor = opened(tool)
    (tool.folder / "npu-smi").write_text("#!/bin/sh\nexec yes\n")
    before = time.monotonic()
    assert [device.health for device in vendor.devices()] == ["no answer"]
    assert time.monotonic() - before < DEADLINE
    ended()


@pytest.mark.parametrize("visible", ["0", "0,1"])
def test_what_is_said_of_no_chip_is_of_neither(visible: str, fake: Fake, opened: Open) -> None:
    tool = fake("A3")
    for kind in ("usages", "common"):
        tool.say(f"info -t {kind} -i 0", "NPU ID : 0\n\nAicore Usage Rate(%) : 7\n")
    assert {device.util for device in opened(tool, ASCEND_RT_VISIBLE_DEVICES=visible).devices()} == {None}


def test_only_the_text_counts_not_the_exit_status(fake: Fake, opened: Open) -> None:
    tool = fake()
    text, _ = tool.answers()["info -t usages -i 0"]
    tool.say("info -t usages -i 0", text, 255)
    tool.say("info -t proc-mem -i 0", 'Failed to query "proc-mem" info.\n', 0)
    (device,) = opened(tool).devices()
    assert (device.util, device.pids, device.health) == (0, (), "ok")


def test_a_tool_without_a_type_is_asked_for_another_or_not_again(fake: Fake, opened: Open) -> None:
    tool = fake(cards=2)
    tool.set(power=70.5)
    tool.say("info -t common -i 0", "Error parameter of -t\nUsage: npu-smi info\n")
    tool.say("info -t proc-mem -i 0", "This device does not support querying proc-mem.\n")
    vendor = opened(tool)
    looks = [vendor.devices() for _ in range(3)]
    assert [(one.power, one.clock, one.util) for one, _ in looks] == [(None, None, 0), (70.5, None, 0), (70.5, None, 0)]
    assert [(two.power, two.clock) for _, two in looks] == [(92.4, 800)] * 3
    assert tool.calls.count("info -t common -i 0") == tool.calls.count("info -t proc-mem -i 0") == 1


def test_a_type_that_was_refused_is_asked_for_again_some_day(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ascend, "ECC_EVERY", 3)
    tool = fake()
    tool.say("info -t usages -i 0", "This device does not support querying usages.\n")
    vendor = opened(tool)
    for _ in range(4):
        vendor.devices()
    assert tool.calls.count("info -t usages -i 0") == 2
