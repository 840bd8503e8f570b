"""Ascend chips, read through an `npu-smi` that is a program on PATH, whatever it does."""

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
DEADLINE = 60.0  # s
SOON = 2.0  # s for a tool that never answers
ECC, LOST = ("80E01801", "HBM multi-bit ECC error"), ("8C084E00", "Heartbeat Lost")
UNANSWERED = Device("ascend", "0-0", 0, "Ascend 910B3", health="no answer", visible="0", answers=False, examined=False)
Fake = Callable[..., FakeNpuSmi]
Open = Callable[..., ascend.Ascend]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return lambda kind="910B", cards=1: FakeNpuSmi(tmp_path / "tool", kind, cards)


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens vendors; at the end no tool is left running."""
    yield lambda tool, **more: ascend.open(tool.environment() | more)
    wait_for_tools()


def tools() -> list[psutil.Process]:
    """The running tools of this process, without the processes that multiprocessing keeps for other tests."""
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "multiprocessing" not in " ".join(child.cmdline())]


def wait_for_tools() -> None:
    _, alive = psutil.wait_procs(tools(), DEADLINE)
    assert alive == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_smi_runs, "TIMEOUT", SOON)


def recover(tool: FakeNpuSmi) -> None:
    """The tool lists its chips again."""
    tool.say("info -m", *FakeNpuSmi(tool.folder / "well", tool.kind).answers()["info -m"])


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "second"),
    [
        ("910A", "Ascend 910A", "1-0"),
        ("910B", "Ascend 910B3", "1-0"),
        ("A3", "Ascend910", "0-1"),
        ("950", "Ascend950PR", "1-0"),
    ],
)
def test_values_of_a_busy_and_of_an_idle_chip(kind: str, name: str, second: str, fake: Fake, opened: Open) -> None:
    tool = fake(kind, 1 if kind == "A3" else 2)
    tool.set(util=97, memory_util=41, used=50, power=310.2, clock=1650, processes=[(os.getpid(), "python", 31000)])
    busy, idle = opened(tool).devices()
    total = 65536 * MIB
    assert busy == Device(
        "ascend", "0-0", 0, name, 97, 41, 310.2, 1650, total // 2, total, None, (os.getpid(),), None, "ok", "0"
    )
    assert idle == Device(
        "ascend", second, 1, name, 0, 0, 92.4, 800, idle.memory_used, total, None, (), None, "ok", "1"
    )
    assert idle.memory_used == round(total * 0.05)


def test_processes_are_those_of_this_namespace_until_the_driver_releases_them(fake: Fake, opened: Open) -> None:
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


# --- faults -----------------------------------------------------------------------------------------------------------


def changes(vendor: ascend.Ascend) -> list[DeviceFault]:
    """The faults that a sample with the codes adds."""
    vendor.devices("faults")
    return vendor.faults()


def test_codes_of_the_first_answer_are_old(fake: Fake, opened: Open) -> None:
    tool = fake("A3")
    tool.set(lost=True, codes=[ECC])
    tool.set(chip=1, codes=[ECC], health="Alarm")
    recover(tool)
    vendor = opened(tool)
    assert changes(vendor) == [DeviceFault("0-1", ECC[0], old=True)]
    tool.set(lost=False)
    tool.set(chip=1, codes=[])
    assert changes(vendor) == [DeviceFault("0-0", ECC[0], old=True), DeviceFault("0-1", ECC[0], gone=True)]
    tool.set(chip=1, codes=[ECC])
    assert changes(vendor) == [DeviceFault("0-1", ECC[0])]


@pytest.mark.parametrize("kind", ["910A", "A3", "950"])
def test_codes_appear_and_end_once_each(kind: str, fake: Fake, opened: Open) -> None:
    tool = fake(kind)
    vendor = opened(tool)
    assert changes(vendor) == []
    tool.set(health="Alarm", codes=[ECC, LOST])
    assert changes(vendor) == [DeviceFault("0-0", ECC[0]), DeviceFault("0-0", LOST[0])]
    assert vendor.present("0-0") == {ECC[0], LOST[0]}
    assert vendor.devices()[0].health == "Alarm"
    tool.set(lost=True)
    assert changes(vendor) == [], "a chip that does not answer keeps its codes"
    tool.set(lost=False, codes=[LOST])
    assert changes(vendor) == [DeviceFault("0-0", ECC[0], gone=True)]
    tool.set(codes=[], health="OK")
    assert changes(vendor) == [DeviceFault("0-0", LOST[0], gone=True)]
    tool.set(codes=[ECC])
    assert changes(vendor) == [DeviceFault("0-0", ECC[0])]


def test_information_that_cannot_be_missed_is_queried_rarely(fake: Fake, opened: Open) -> None:
    tool = fake("A3", 2)
    vendor = opened(tool)
    samples = 2 * ascend.HEALTH_EVERY + 1
    for _ in range(samples):
        vendor.devices()
    kinds = [call.split()[2] for call in tool.calls if call != "info -m"]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "usages": 2 * samples,
        "common": 2 * samples,
        "proc-mem": 2 * samples,
        "health": 4 * 3,
    }
    assert tool.calls.count("info -m") == 1


# --- which chips ------------------------------------------------------------------------------------------------------


def test_only_visible_chips_are_queried(fake: Fake, opened: Open) -> None:
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
        ({"ASCEND_RT_VISIBLE_DEVICES": "1, 2"}, [1]),  # CANN: a blank ends the list
        ({"ASCEND_RT_VISIBLE_DEVICES": "1,8,2"}, [1]),  # and so does a device that does not exist
        ({"ASCEND_RT_VISIBLE_DEVICES": ""}, []),
        ({"ASCEND_RT_VISIBLE_DEVICES": "-1"}, []),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0", "ASCEND_VISIBLE_DEVICES": "6"}, [0]),
        ({"ASCEND_VISIBLE_DEVICES": "5-6"}, [1, 2]),  # a privileged container has more devices than were assigned
        ({"ASCEND_VISIBLE_DEVICES": "8-11"}, [0, 1, 2, 3]),  # renumbered
        ({"ASCEND_VISIBLE_DEVICES": "9"}, [0, 1, 2, 3]),
    ],
)
def test_allowed_chips(environment: dict[str, str], expected: list[int]) -> None:
    chips = [Chip(logic // 2, logic % 2, logic, logic + 4, "x", False) for logic in range(4)]
    assert [chip.logic for chip in ascend.allowed(chips, environment)] == expected


def test_renumbered_chips_do_not_have_the_numbers_of_the_host() -> None:
    chips = [Chip(logic, 0, logic, None, "x", False) for logic in range(4)]
    assert ascend.allowed(chips, {"ASCEND_VISIBLE_DEVICES": "2-5"}) == chips
    assert ascend.allowed(chips, {"ASCEND_VISIBLE_DEVICES": "2-3"}) == chips[2:]


def test_environment_of_the_tool(tmp_path: Path) -> None:
    """One language, the driver's libraries, and not the variable that these do not support."""
    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\nenv >{tmp_path}/env\necho 'NPU ID\tChip ID\tChip Logic ID\tChip Name'\necho 0 0 0 X\n")
    tool.chmod(0o755)
    more = {"LANG": "zh_CN.UTF-8", "LC_ALL": "zh_CN.UTF-8", "LD_LIBRARY_PATH": "/own", "ASCEND_RT_VISIBLE_DEVICES": "0"}
    ascend.open({"PATH": f"{tmp_path}:{os.environ['PATH']}"} | more)
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert seen["LC_ALL"] == "C"
    assert seen["LD_LIBRARY_PATH"] == f"/own:{npu_smi_runs.LIBRARIES}"
    assert "ASCEND_RT_VISIBLE_DEVICES" not in seen


# --- failures ---------------------------------------------------------------------------------------------------------


def test_tool_is_found_on_path_or_in_its_usual_folder(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ascend, "USUAL", str(tmp_path / "usual"))
    with pytest.raises(Unavailable, match="no npu-smi on PATH"):
        ascend.open({"PATH": str(tmp_path)})
    monkeypatch.setattr(ascend, "USUAL", str(fake().folder))
    ascend.open({"PATH": "/usr/bin:/bin"})


def test_list_without_a_chip_is_queried_again_after_ever_longer_pauses(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    tool = fake()
    tool.say("info -m", "There is no NPU card on this server.\n", 204)
    vendor = opened(tool)
    for pause in (5, 10, 20, 40, 80, 160, 300, 300):
        queries = len(tool.calls)
        now += pause - 1
        assert vendor.devices() == []
        assert len(tool.calls) == queries
        now += 1
        assert vendor.devices() == []
        assert len(tool.calls) == queries + 1
    (problem,) = vendor.problems
    assert "There is no NPU card on this server." in problem
    recover(tool)
    now += ascend.LONGEST_PAUSE
    assert [(device.id, device.health) for device in vendor.devices()] == [("0-0", "ok")]


def test_variable_that_names_no_chip_also_of_a_late_list(fake: Fake, opened: Open) -> None:
    tool = fake()
    with pytest.raises(Unavailable, match="ASCEND_RT_VISIBLE_DEVICES=7 names no chip"):
        opened(tool, ASCEND_RT_VISIBLE_DEVICES="7")
    tool.say("info -m", "ret is -8020\n", 204)
    vendor = opened(tool, ASCEND_RT_VISIBLE_DEVICES="7")
    recover(tool)
    vendor._list_at = 0.0
    for _ in range(2):
        assert vendor.devices() == []
    assert vendor.problems == ["ASCEND_RT_VISIBLE_DEVICES=7 names no chip of this node"]
    assert tool.calls.count("info -m") == 3


def test_first_list_may_take_longer_than_other_answers(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npu_smi_runs, "TIMEOUT", 0.05)
    tool = fake()
    script = tool.folder / "npu-smi"
    script.write_text(script.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nsleep 0.5\n"))
    vendor = opened(tool)
    assert vendor.problems == []
    assert [device.health for device in vendor.devices()] == ["no answer"]
    wait_for_tools()


def test_slow_tool_is_queried_for_everything_in_turn(fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each answer took 4 s, of the 10 s that a sample has."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    start = npu_smi_runs.ToolRunner._start

    def slowly(self: npu_smi_runs.ToolRunner, *arguments: Any) -> Any:
        now[0] += 4.0
        return start(self, *arguments)

    monkeypatch.setattr(npu_smi_runs.ToolRunner, "_start", slowly)
    tool = fake("A3")
    vendor = opened(tool)
    samples: list[list[str]] = []
    for number in range(12):
        before = len(tool.calls)
        vendor.devices()
        samples.append([call.split()[2] for call in tool.calls[before:]])
        assert len(samples[-1]) <= 3
        if number == 5:
            tool.set(chip=1, codes=[("80E01801", "bad")])
    for kind in ("health", "usages", "common", "proc-mem"):
        assert all(any(kind in sample for sample in samples[n : n + 4]) for n in range(9)), (kind, samples)
    assert [fault.device for fault in vendor.faults()] == ["0-1"]


def test_unparsed_output_is_one_problem_for_each_kind_of_query(fake: Fake, opened: Open) -> None:
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


@pytest.mark.usefixtures("impatient")
def test_card_that_never_answers_does_not_delay_the_others(fake: Fake, opened: Open) -> None:
    tool = fake(cards=3)
    vendor = opened(tool)
    vendor.devices()
    tool.set(card=1, never=True)
    queries = len(tool.calls)
    first, second, third = vendor.devices()
    assert [call for call in tool.calls[queries:] if call.endswith("-i 1")] == ["info -t usages -i 1"]
    assert second == UNANSWERED._replace(id="1-0", index=1, visible="1")
    assert (first.health, third.health) == ("ok", "ok")
    assert vendor.problems == ["npu-smi does not answer for card 1 within 2 s"]
    wait_for_tools()  # it ignores SIGTERM
    tool.set(card=1, never=False)
    assert [device.util for device in vendor.devices()] == [0, 0, 0]
    assert vendor.problems == []


@pytest.mark.usefixtures("impatient")
def test_cards_that_never_answer_cost_one_timeout(fake: Fake, opened: Open) -> None:
    tool = fake(cards=npu_smi_runs.AT_ONCE)
    vendor = opened(tool)
    for card in range(npu_smi_runs.AT_ONCE):
        tool.set(card=card, never=True)
    before = time.monotonic()
    assert [device.health for device in vendor.devices()] == ["no answer"] * npu_smi_runs.AT_ONCE
    assert time.monotonic() - before < npu_smi_runs.AT_ONCE * SOON, "what it takes one after the other"
    wait_for_tools()


@pytest.mark.usefixtures("impatient")
def test_tool_that_cannot_be_killed_is_not_started_again(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in state D: SIGKILL takes effect when the driver returns."""
    tool = fake(cards=2)
    vendor = opened(tool)
    tool.set(never=True)
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen.kill", lambda _: None)
        vendor.devices()
        (held,) = tools()
        queries = len([call for call in tool.calls if call.endswith("-i 0")])
        for _ in range(3):
            assert [device.health for device in vendor.devices()] == ["no answer", "ok"]
        assert len([call for call in tool.calls if call.endswith("-i 0")]) == queries
        assert tools() == [held]
    held.kill()
    wait_for_tools()
    tool.set(never=False)
    assert [device.util for device in vendor.devices()] == [0, 0]


def test_card_that_is_not_listed_is_lost_and_may_come_back(fake: Fake, opened: Open) -> None:
    tool = fake(cards=2)
    vendor = opened(tool)
    vendor.devices()
    tool.set(card=1, lost=True)
    text, _ = tool.answers()["info -m"]
    tool.say("info -m", text, 139)  # a tool that dies proves nothing
    assert vendor.devices()[1].broken is False
    tool.say("info -m", text, 0)
    lost = UNANSWERED._replace(id="1-0", index=1, visible="1", health=ascend.LOST, broken=True)
    assert vendor.devices()[1] == lost
    tool.set(card=1, lost=False)
    assert vendor.devices("faults")[1].health == "ok"


def test_chip_that_is_lost_leaves_the_other_chip_of_its_card(fake: Fake, opened: Open) -> None:
    tool = fake("A3")
    tool.set(chip=1, util=33, power=200.5)
    vendor = opened(tool)
    vendor.devices()
    tool.set(chip=0, lost=True)
    first, second = vendor.devices()
    assert first == UNANSWERED._replace(name="Ascend910", health=ascend.LOST, broken=True)
    assert vendor.problems == ["npu-smi prints nothing about chip 0-0"]
    assert (second.util, second.power, second.health) == (33, 200.5, "ok")


def test_chip_is_not_lost_if_the_tool_vanishes(fake: Fake, opened: Open) -> None:
    tool = fake()
    vendor = opened(tool)
    (tool.folder / "npu-smi").unlink()
    assert vendor.devices() == [UNANSWERED]


@pytest.mark.parametrize("text", [b"\xff\0\xfe" * 1000, b"x" * (3 * MIB)])
def test_garbage_is_no_answer(text: bytes, fake: Fake, opened: Open) -> None:
    tool = fake(cards=2)
    vendor = opened(tool)
    for question in [question for question in tool.answers() if "-i 0" in question]:
        tool.say(question, text, 139)
    first, second = vendor.devices()
    assert (first, second.health) == (UNANSWERED, "ok")


def test_tool_that_prints_without_end_is_killed(fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_smi_runs, "TIMEOUT", DEADLINE)
    tool = fake()
    vendor = opened(tool)
    (tool.folder / "npu-smi").write_text("#!/bin/sh\nexec yes\n")
    before = time.monotonic()
    assert [device.health for device in vendor.devices()] == ["no answer"]
    assert time.monotonic() - before < DEADLINE
    wait_for_tools()


def test_exit_status_of_the_tool_is_ignored(fake: Fake, opened: Open) -> None:
    tool = fake()
    text, _ = tool.answers()["info -t usages -i 0"]
    tool.say("info -t usages -i 0", text, 255)
    tool.say("info -t proc-mem -i 0", 'Failed to query "proc-mem" info.\n', 0)
    (device,) = opened(tool).devices()
    assert (device.util, device.pids, device.health) == (0, (), "ok")


def test_type_that_is_refused_is_replaced_or_not_queried_again(fake: Fake, opened: Open) -> None:
    tool = fake(cards=2)
    tool.set(power=70.5)
    tool.say("info -t common -i 0", "Error parameter of -t\nUsage: npu-smi info\n")
    tool.say("info -t proc-mem -i 0", "This device does not support querying proc-mem.\n")
    vendor = opened(tool)
    samples = [vendor.devices() for _ in range(3)]
    first = [(device.power, device.clock, device.util) for device, _ in samples]
    assert first == [(None, None, 0), (70.5, None, 0), (70.5, None, 0)]
    assert [(device.power, device.clock) for _, device in samples] == [(92.4, 800)] * 3
    assert tool.calls.count("info -t common -i 0") == tool.calls.count("info -t proc-mem -i 0") == 1


def test_type_that_was_refused_is_queried_again_later(
    fake: Fake, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ascend, "REFUSED_FOR", 3)
    tool = fake()
    tool.say("info -t usages -i 0", "This device does not support querying usages.\n")
    vendor = opened(tool)
    for _ in range(4):
        vendor.devices()
    assert tool.calls.count("info -t usages -i 0") == 2
