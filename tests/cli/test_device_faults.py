"""Device faults, end to end: what kills and what does not, what is counted, and what the job can do without."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.device.npu_smi import FakeNpuSmi
from support.device.nvml import NOT_LOADED, UNKNOWN, uuid
from support.device.rig import (
    JOB,
    NODE,
    NONE,
    QUICK,
    REBOOT,
    SOON,
    TRAINS,
    Rig,
    faulted,
    history,
    kill_helper,
    rank,
    reasons,
    remembers,
    told,
)
from support.runs import Run, Runs, python, wait_for, words

AICORE = ("80C98002", "node type=AI Core, sensor type=RAS State, event state=Software Error")
FATAL = ("80E0020B", "node type=HBM, event state=too hot")
RESETS = ("40F84E00", "node type=L2BUFF, event state=bus")
ALL = [uuid(index) for index in range(4)]


@pytest.fixture
def rig(runs: Runs) -> Rig:
    return Rig(runs)


@pytest.fixture
def four(runs: Runs) -> Rig:
    return Rig(runs, 4)


@pytest.fixture
def state(runs: Runs) -> Path:
    return runs.folder / "state"


def kept(state: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / "verdict.json").read_bytes())
    return found


# --- what kills nothing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "severity"), [("31", "user"), ("13", "user"), ("63", "warning"), ("999", "unknown")])
def test_a_fault_that_is_no_reason_to_kill_is_only_written_down(rig: Rig, code: str, severity: str) -> None:
    run = rig.start()
    rig.gpus.xid(0, int(code))
    assert faulted(run, code)["severity"] == severity
    rig.hears(run)  # it still trains
    rig.end()
    assert run.wait() == 0, run.log()
    assert len(rig.starts) == 1
    assert not run.named("hang", "healing", "restart")


def test_a_command_that_fails_of_a_users_fault_is_started_again_and_the_third_time_given_up_with_196(
    rig: Rig,
) -> None:
    run = rig.start()
    for start in (1, 2, 3):
        if start > 1:
            rig.hears(run)
        rig.gpus.xid(0, 13)
        faulted(run, "13", start)
        rig.end(1, start=start)
        if start < 3:
            run.until("spawned", start + 1)
    assert run.wait() == 196, run.log()
    assert reasons(run) == ["fault", "fault"]
    assert not run.named("healing"), "there is nothing to heal"
    assert rig.runs.verdict["verdict"] == "user-fault-limit"
    assert uuid(0) in rig.runs.verdict["message"]


def test_a_hang_after_a_users_fault_is_its_fault(rig: Rig) -> None:
    run = rig.start("--hang-timeout", "1s")
    rig.gpus.xid(0, 31)
    faulted(run, "31")
    rig.put("still-1")
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()
    assert reasons(run) == ["fault"]
    assert run.named("hang")


def test_a_failure_without_a_fault_is_none_of_a_device(rig: Rig) -> None:
    run = rig.start()
    rig.end(7)
    assert run.wait() == 7, run.log()
    assert not run.named("restart")


# --- three times in a day ---------------------------------------------------------------------------------------------


def fires(rig: Rig, run: Run, *codes: int) -> None:
    """One after another, each in an attempt of its own that has got further than all before."""
    for code in codes:
        number = len(run.named("spawned"))
        rig.gpus.xid(0, code)
        run.until("spawned", number + 1)
        rig.hears(run)


def test_the_same_fault_a_third_time_ends_with_197_though_training_got_on_in_between(rig: Rig, state: Path) -> None:
    rig.put("on")
    run = rig.start("--state-dir", str(state))
    fires(rig, run, 46, 109, 46, 46)  # another code in between ends the row
    rig.gpus.xid(0, 46)
    assert run.wait() == 197, run.log()
    assert reasons(run) == ["fault"] * 4
    assert {r["consecutive"] for r in run.named("restart")} == {1}
    assert "time in 24 hours" in rig.runs.verdict["message"]
    verdict = kept(state)
    assert (verdict["verdict"], verdict["exit_code"]) == ("node-fault", 197)
    assert (verdict["node"], verdict["device"], verdict["schedule_cnt"]) == (NODE, uuid(0), 1)


def test_one_fault_that_fires_again_and_again_is_one(rig: Rig) -> None:
    run = rig.start("--heal", "sleep 0.3")
    for _ in range(5):
        rig.gpus.xid(0, 46)
    run.until("spawned", 2)
    rig.hears(run)
    rig.end()
    assert run.wait() == 0, run.log()
    assert len(run.named("healing")) == 1


@pytest.mark.parametrize("again", ["the container", "ftrun"])
def test_faults_are_counted_over_restarts_of(rig: Rig, state: Path, again: str) -> None:
    for number in (1, 2, 3):
        folder = rig.folder / (f"run-{number}" if again == "the container" else "run")
        run = rig.start("--state-dir", str(state), "--group-job", JOB, run_dir=folder, heard=False)
        remembers(run, state)
        rig.hears(run)
        before, heard = len(run.named("spawned")), len(told(run, "46"))
        rig.gpus.xid(0, 46)
        if number == 3:
            assert run.wait() == 197, run.log()
            assert "time in 24 hours" in rig.runs.verdict["message"]
            return
        faulted(run, "46", heard + 1)
        run.until("spawned", before + 1)  # what is decided is on disk then
        os.kill(run.pid, signal.SIGTERM if number == 1 else signal.SIGKILL)
        assert run.wait() in (143, 137), run.log()


@pytest.mark.parametrize(
    ("ages", "code"),
    [
        ((3600.0, 3500.0), 197),
        ((90000.0, 3500.0), 0),
        ((-1800.0, -1700.0), 197),
        ((-36 * 3600.0, -35 * 3600.0), 197),
    ],
    ids=["an hour ago", "one 25 hours ago", "in the future", "a day and a half in the future"],
)
def test_faults_of_an_earlier_boot_count_by_the_clock(
    rig: Rig, state: Path, ages: tuple[float, ...], code: int
) -> None:
    history(state, *ages)
    run = rig.start("--state-dir", str(state), "--group-job", JOB, heard=False)
    remembers(run, state)
    rig.hears(run)
    rig.gpus.xid(0, 46)
    wait_for(lambda: run.named("escalated", "restart"), "what it comes to")
    rig.end()
    assert run.wait() == code, run.log()


def test_within_a_boot_no_clock_makes_a_fault_undone(rig: Rig, state: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    history(state, 30 * 86400.0, -30 * 86400.0, boot=boot)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    content = json.loads((state / "history.json").read_bytes())
    for number, fault in enumerate(content["faults"]):
        fault["mono"] = now - 5 - number
    (state / "history.json").write_text(json.dumps(content))
    run = rig.start("--state-dir", str(state), "--group-job", JOB, heard=False)
    remembers(run, state)
    rig.hears(run)
    rig.gpus.xid(0, 46)
    assert run.wait() == 197, run.log()


@pytest.mark.parametrize(
    ("node", "name"),
    [(NODE, ("--group-job", "other")), (NODE, ()), ("n8", ("--group-job", JOB))],
    ids=["another job", "a first schedule of a job without a name", "another node"],
)
def test_faults_of_others_in_the_same_folder_are_none_of_ours(
    rig: Rig, state: Path, node: str, name: tuple[str, ...]
) -> None:
    history(state, 60.0, 50.0, node=node)
    run = rig.start("--state-dir", str(state), *name, heard=False)
    remembers(run, state)
    rig.hears(run)
    rig.gpus.xid(0, 46)
    run.until("spawned", 2)
    rig.end()
    assert run.wait() == 0, run.log()


def test_a_verdict_names_the_device_that_it_is_about_and_none_of_another_node(four: Rig, state: Path) -> None:
    history(state, -60.0, node="n8", code="109")
    run = four.start("--state-dir", str(state), heard=False)
    remembers(run, state)
    four.hears(run)
    four.gpus.xid(2, 79)
    assert run.wait() == 197, run.log()
    assert (kept(state)["node"], kept(state)["device"]) == (NODE, uuid(2))


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 9}', '{"schema": 1, "faults": 3, "schedules": []}'])
def test_a_history_that_is_none_is_kept_aside_and_the_job_goes_on(rig: Rig, state: Path, content: str) -> None:
    state.mkdir()
    (state / "history.json").write_text(content)
    run = rig.start("--state-dir", str(state), heard=False)
    remembers(run, state)
    rig.hears(run)
    rig.end()
    assert run.wait() == 0, run.log()
    assert (state / "history.json.corrupt-1").read_text() == content
    assert any(record["helper"] == "state_store" for record in run.named("problem"))


def test_a_killed_state_store_loses_no_fault(rig: Rig, state: Path) -> None:
    run = rig.start("--state-dir", str(state), heard=False)
    remembers(run, state)
    rig.hears(run)
    kill_helper(run, "state_store")
    fires(rig, run, 46)
    wait_for(lambda: run.helper("state_store"), "the state store again")
    rig.end()
    assert run.wait() == 0, run.log()
    assert [fault["code"] for fault in json.loads((state / "history.json").read_bytes())["faults"]] == ["46"]


# --- what does not heal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["79", "recovery:reboot", "lost"])
def test_a_critical_fault_ends_with_197_at_once(rig: Rig, state: Path, what: str) -> None:
    run = rig.start("--state-dir", str(state), "--heal", "touch healed")
    if what == "79":
        rig.gpus.xid(0, 79)
    else:
        rig.gpus.set(0, **(REBOOT if what == "recovery:reboot" else {"lost": True}))
    assert run.wait() == 197, run.log()
    assert faulted(run, what)["severity"] == "critical"
    assert not run.named("healing", "restart")
    assert not (rig.folder / "healed").exists()
    verdict = rig.runs.verdict
    assert (verdict["verdict"], verdict["exit_code"], verdict["node"]) == ("node-fault", 197, NODE)
    assert uuid(0) in verdict["message"]
    assert what in verdict["message"]
    assert (kept(state)["node"], kept(state)["device"], kept(state)["exit_code"]) == (NODE, uuid(0), 197)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (None, ",".join(ALL[:1] + ALL[2:])),
        ("0,1,2,3", "0,2,3"),
        ("3,1,0", "3,0"),
        (",".join(ALL[:3]), ",".join([ALL[0], ALL[2]])),
        ("GPU-1,GPU-3,GPU-0", "GPU-3,GPU-0"),
    ],
    ids=["unset", "numbers", "some", "names", "short names"],
)
def test_a_job_that_can_do_without_goes_on_without_the_device(four: Rig, given: str | None, left: str) -> None:
    four.runs.environment.pop("CUDA_VISIBLE_DEVICES", None)
    more: dict[str, Any] = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    run = four.start("--min-devices", "2", words=("--workers={devices}",), **more)
    four.gpus.xid(1, 79)
    run.until("spawned", 2)
    wait_for(lambda: len(four.starts) == 2, "the second start")
    four.end()
    assert run.wait() == 0, run.log()
    first, second = four.starts
    assert first["env"].get("CUDA_VISIBLE_DEVICES") == given
    assert second["env"]["CUDA_VISIBLE_DEVICES"] == left
    assert second["argv"] == [f"--workers={left.count(',') + 1}"]
    assert second["reason"] == "fault"
    (removed,) = run.named("removed")
    assert (removed["device"], removed["left"]) == (uuid(1), left.count(",") + 1)


def test_a_device_that_nobody_could_name_is_not_among_those_left(four: Rig) -> None:
    four.gpus.set(3, lost=True)
    run = four.start("--min-devices", "2", words=("{devices}",))
    four.gpus.xid(1, 79)
    run.until("spawned", 2)
    wait_for(lambda: len(four.starts) == 2, "the second start")
    four.end()
    assert run.wait() == 0, run.log()
    left = four.starts[1]["env"]["CUDA_VISIBLE_DEVICES"].split(",")
    assert set(left) <= set(ALL)
    assert four.starts[1]["argv"] == [str(len(left))]


def test_below_the_floor_it_ends_with_197(four: Rig) -> None:
    run = four.start("--min-devices", "3")
    four.gpus.xid(1, 79)
    run.until("spawned", 2)
    four.hears(run)
    four.gpus.xid(2, 79)
    assert run.wait() == 197, run.log()
    assert len(run.named("spawned")) == 2
    assert uuid(2) in four.runs.verdict["message"]


def test_a_device_that_does_not_heal_is_done_without(four: Rig) -> None:
    run = four.start("--min-devices", "3", "--heal", "exit 1")
    four.gpus.xid(1, 46)
    run.until("spawned", 2)
    wait_for(lambda: len(four.starts) == 2, "the second start")
    four.end()
    assert run.wait() == 0, run.log()
    assert uuid(1) not in four.starts[1]["env"]["CUDA_VISIBLE_DEVICES"]


def test_what_a_removed_device_reports_disturbs_nobody_any_more(four: Rig) -> None:
    run = four.start("--min-devices", "2")
    four.gpus.xid(1, 79)
    run.until("spawned", 2)
    four.hears(run)
    four.gpus.set(1, lost=True)
    faulted(run, "lost")
    four.gpus.xid(1, 46)
    four.hears(run)
    four.end()
    assert run.wait() == 0, run.log()
    assert len(run.named("spawned")) == 2
    assert len(run.named("removed")) == 1


def test_a_device_that_falls_off_and_says_it_in_many_ways_is_removed_once(four: Rig) -> None:
    run = four.start("--min-devices", "2")
    four.gpus.set(1, lost=True)
    four.gpus.xid(1, 79)
    four.gpus.xid(1, 46)
    run.until("spawned", 2)
    four.hears(run)
    four.end()
    assert run.wait() == 0, run.log()
    assert len(run.named("removed")) == 1
    assert len(run.named("spawned")) == 2


def test_memory_of_a_removed_device_is_not_waited_for(four: Rig) -> None:
    run = four.start("--min-devices", "2", "--device-timeout", "3s")
    four.gpus.set(1, memory_used=40 << 30)
    four.gpus.xid(1, 79)
    run.until("spawned", 2)
    four.end()
    assert run.wait() == 0, run.log()


def test_a_killed_ftrun_still_knows_what_it_has_removed(four: Rig) -> None:
    options: dict[str, Any] = {"words": ("{devices}",), "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    run = four.start("--min-devices", "2", **options)
    four.gpus.set(1, **REBOOT)
    run.until("spawned", 2)
    for life, visible in ((2, "0,2,3"), (3, "0,1,2,3")):  # the last finds that it is well again
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        if life == 3:
            four.gpus.set(1, **NONE)
        before = len(four.starts)
        run = four.start("--min-devices", "2", heard=False, **options)
        wait_for(lambda before=before: len(four.starts) > before, "the next start")  # type: ignore[misc]
        assert four.starts[-1]["env"]["CUDA_VISIBLE_DEVICES"] == visible
        assert four.starts[-1]["argv"] == [str(visible.count(",") + 1)]
    four.end()
    assert run.wait() == 0, run.log()
    assert [record["device"] for record in run.named("returned")] == [uuid(1)]


# --- the site's own table ---------------------------------------------------------------------------------------------


def test_a_sites_table_wins_over_ours(rig: Rig) -> None:
    table = rig.put("table.txt", "79 ignore as it is here\n999 major ours\n")
    run = rig.start("--fault-table", str(table), "--heal", "touch healed")
    rig.gpus.xid(0, 79)
    assert faulted(run, "79")["severity"] == "warning"
    rig.hears(run)
    rig.gpus.xid(0, 999)
    run.until("spawned", 2)
    rig.end()
    assert run.wait() == 0, run.log()
    assert [record["code"] for record in run.named("healing")] == ["999"]


@pytest.mark.parametrize("content", ["79 ignored\n", "\0\xff", None], ids=["a wrong word", "no text", "no file"])
def test_with_a_table_that_is_none_nothing_is_started(runs: Runs, content: str | None) -> None:
    path = runs.folder / "table.txt"
    if content is not None:
        path.write_text(content)
    run = runs.run("--fault-table", str(path), "touch", "started")
    assert run.wait() == 2
    assert run.stderr.startswith(f"ftrun: --fault-table {path}: ")
    assert run.stderr.count("\n") == 1
    assert not (runs.folder / "started").exists()


# --- Ascend -----------------------------------------------------------------------------------------------------------


class Ascend(Rig):
    """Chips, asked by npu-smi."""

    def __init__(self, runs: Runs, cards: int = 1) -> None:
        self.runs, self.folder = runs, runs.folder
        self.chips = FakeNpuSmi(runs.folder / "smi", cards=cards)
        runs.environment |= self.chips.environment()
        runs.environment.pop("ASCEND_RT_VISIBLE_DEVICES", None)

    def start(self, *options: str, words: tuple[str, ...] = (), heard: bool = True, **more: Any) -> Run:
        options = ("--probe", "ascend", *QUICK, *options)
        run = self.runs.start(*options, *python(TRAINS, *words), program=SOON, **more)
        if heard:
            run.until("first_beat")
            card = max(card for card, _ in self.chips.chips)
            wait_for(lambda: self.chips.calls.count(f"info -t usages -i {card}") > 1, "two looks at the last card")
        return run


def test_a_fault_of_a_chip_that_the_user_induced_is_recovered_in_place_and_the_third_time_is_196(runs: Runs) -> None:
    rig = Ascend(runs)
    run = rig.start()
    for number in (1, 2, 3):
        rig.chips.set(codes=[AICORE], health="Warning")
        assert faulted(run, "80C98002", number)["severity"] == "minor+user"
        if number == 3:
            break
        run.until("healing", number)
        rig.chips.set(codes=[], health="OK")
        run.until("spawned", number + 1)
    assert run.wait() == 196, run.log()
    assert reasons(run) == ["fault"] * 2


def test_a_chip_that_heals_is_waited_for_until_its_code_is_gone(runs: Runs) -> None:
    rig = Ascend(runs)
    run = rig.start()
    rig.chips.set(codes=[RESETS], health="Alarm")
    faulted(run, RESETS[0])
    run.until("healing")
    calls = len(rig.chips.calls)
    wait_for(lambda: len(rig.chips.calls) > calls + 6, "that it is looked at")
    assert not run.named("restart")
    rig.chips.set(codes=[], health="OK")
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()


def test_a_chip_that_does_not_heal_is_done_without(runs: Runs) -> None:
    rig = Ascend(runs, 2)
    run = rig.start("--min-devices", "1", words=("{devices}",), ASCEND_RT_VISIBLE_DEVICES="0,1")
    rig.chips.set(0, codes=[FATAL], health="Critical")
    run.until("spawned", 2)
    wait_for(lambda: len(rig.starts) == 2, "the second start")
    rig.end()
    assert run.wait() == 0, run.log()
    assert rig.starts[1]["env"]["ASCEND_RT_VISIBLE_DEVICES"] == "1"
    assert rig.starts[1]["argv"] == ["1"]


@pytest.mark.parametrize("vendor", ["ascend", "nvidia"])
def test_a_device_that_was_taken_out_comes_back_when_it_is_well(runs: Runs, vendor: str) -> None:
    """With the next start, whatever that is for; none is made for it alone."""
    rig = Ascend(runs, 2) if vendor == "ascend" else Rig(runs, 2)
    variable = "ASCEND_RT_VISIBLE_DEVICES" if vendor == "ascend" else "CUDA_VISIBLE_DEVICES"

    def falls(ill: bool) -> None:
        if isinstance(rig, Ascend):
            rig.chips.set(0, codes=[FATAL] if ill else [], health="Critical" if ill else "OK")
        else:
            rig.gpus.set(0, **(REBOOT if ill else NONE))

    options = ("--min-devices", "1", "--restart-on", "fault,failure")
    given: dict[str, Any] = {variable: "0,1"}
    run = rig.start(*options, words=("{devices}",), **given)
    falls(ill=True)
    run.until("spawned", 2)
    rig.end(1, start=2)
    run.until("spawned", 3)
    wait_for(lambda: len(rig.starts) == 3, "the third start, while it still reports the fault")
    falls(ill=False)
    looks = len(run.named("spawned"))
    rig.end(1, start=3)
    wait_for(lambda: len(rig.starts) == 4, "the fourth start")
    rig.end()
    assert run.wait() == 0, run.log()
    assert looks == 3
    assert reasons(run) == ["fault", "failure", "failure"]
    assert [start["env"][variable] for start in rig.starts] == ["0,1", "1", "1", "0,1"]
    assert [start["argv"] for start in rig.starts] == [["2"], ["1"], ["1"], ["2"]]
    (returned,) = run.named("returned")
    assert returned["device"] == run.named("removed")[0]["device"]
    assert returned["devices"] == 2
    assert run.order.index("returned") == len(run.order) - 1 - run.order[::-1].index("restart") - 1
    assert f"[ftrun] device {returned['device']} is used again: {returned['why']}\n" in run.stderr


# --- a broken tool is no broken node ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [UNKNOWN, NOT_LOADED])
def test_a_driver_that_fails_after_a_hang_isolates_no_node(rig: Rig, error: int) -> None:
    run = rig.start("--hang-timeout", "1s", "--device-timeout", "1s")
    for scope in ("-", 0):
        rig.gpus.set(scope, **{"error:*": error})
    rig.put("still-1")
    run.until("spawned", 2)
    rig.end()
    assert run.wait() == 0, run.log()
    assert reasons(run) == ["hang"]
    assert any(uuid(0) in record["what"] and "it is not known" in record["what"] for record in run.named("problem"))


def test_a_lost_device_after_a_hang_isolates_the_node(rig: Rig) -> None:
    table = rig.put("table.txt", "lost ignore so that it is the hang that ends it\n")
    run = rig.start("--hang-timeout", "1s", "--device-timeout", "1s", "--fault-table", str(table))
    rig.gpus.set(0, lost=True)
    rig.put("still-1")
    assert run.wait() == 197, run.log()
    assert f"{uuid(0)} (GPU is lost)" in rig.runs.verdict["message"]


@pytest.mark.parametrize(
    "script",
    ["printf '\\377\\0\\376%s' garbage", "true", "kill -SEGV $$", "exec sleep 100000"],
    ids=lambda s: s.split()[0],
)
def test_a_tool_that_fails_after_a_hang_isolates_no_node(runs: Runs, script: str) -> None:
    rig = Ascend(runs)
    run = rig.start("--hang-timeout", "1s", "--device-timeout", "1s")
    tool = rig.chips.folder / "npu-smi"
    beside = tool.with_name("broken")
    beside.write_text(f"#!/bin/sh\n{script}\n")
    beside.chmod(0o755)
    beside.replace(tool)
    rig.put("still-1")
    run.until("spawned", 2)
    rig.end()
    assert run.wait() == 0, run.log()
    assert reasons(run) == ["hang"]
    assert any("it is not known" in record["what"] for record in run.named("problem"))


def test_a_tool_that_lists_no_chip_at_first_is_asked_again_and_that_is_told_once(runs: Runs) -> None:
    rig = Ascend(runs)
    rig.chips.say("info -m", "dcmi model initialized failed, because the device is used. ret is -8020\n", 255)
    run = rig.start(heard=False)
    what = run.until("problem")["what"]
    assert "ret is -8020" in what
    rig.chips.say("info -m", *FakeNpuSmi(runs.folder / "well").answers()["info -m"])
    wait_for(lambda: (runs.folder / "run" / "devices.json").read_text().count("0-0"), "that the chip is seen")
    rig.chips.set(0, codes=[FATAL], health="Critical")
    wait_for(lambda: told(run, FATAL[0]), "that its fault is seen")
    rig.end()
    run.wait()
    assert len(run.named("problem")) == 1


# --- MindCluster ------------------------------------------------------------------------------------------------------


def platform(runs: Runs, *options: str, heard: bool = True, **more: Any) -> tuple[Rig, Run]:
    """Without a probe: only the platform speaks."""
    rig = Rig.__new__(Rig)
    rig.runs, rig.folder = runs, runs.folder
    rig.reset()
    words = ("--probe", "off", *QUICK, "--reset-file", str(runs.folder / "reset.json"), *options)
    run = runs.start(*words, *python(TRAINS), program=SOON, **more)
    if heard:
        run.until("first_beat")
        wait_for(lambda: run.helper("platform"), "the platform's helper")
    return rig, run


def test_a_fault_that_the_platform_reports_ends_the_tree_and_its_permission_starts_it(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(rank(codes="DEADBEEF"), FaultFlushing=True)
    fault = run.until("fault")
    run.until("healing")
    killed = [r["mono"] for r in run.named("exited", "killed")]
    assert max(killed) - fault["mono"] < 1
    rig.reset(rank(status="recovered"), FaultFlushing=True)
    run.until("healing", 2)
    assert run.named("healing")[1]["why"] == "it flushes faults"
    assert not run.named("restart")
    rig.reset(rank(status="recovered"))
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()
    assert reasons(run) == ["fault"]


def test_a_rank_without_a_code_ends_the_tree_as_well(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(rank(3, "fault"))
    run.until("healing")
    rig.reset()
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()
    assert told(run, "reset.json")[0]["device"] == "rank3"


def test_ranks_of_other_containers_are_none_of_ours(runs: Runs) -> None:
    rig, run = platform(runs, RANK="0", LOCAL_RANK="0")
    rig.reset(rank(5, "fault"), rank(0, "fault", "DEADBEEF"))
    assert run.until("fault")["code"] == "DEADBEEF"
    run.until("healing")
    rig.reset(rank(5, "fault"), rank(0, "recovered"))
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()


@pytest.mark.parametrize("codes", ["80C98002", "80818200"], ids=["user", "warning"])
def test_a_hot_reset_ends_the_processes_whatever_the_table_says_of_the_code(runs: Runs, codes: str) -> None:
    """The chip is reset when they are gone, and not before."""
    rig, run = platform(runs)
    rig.reset(rank(codes=codes))
    run.until("healing")
    assert run.named("killed")
    rig.reset(rank(codes=codes, status="recovered"))
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()


def test_a_hot_reset_of_a_chip_beside_the_one_at_fault_ends_the_processes_too(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(rank(codes="", status="unrecovered"))
    run.until("healing")
    rig.reset(rank(status="recovered"))
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()


def test_a_torn_file_changes_nothing(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(rank(codes="DEADBEEF"))
    run.until("healing")
    rig.put("reset.json", '{"RankList": [{"RankId": 0, "Sta')
    wait_for(lambda: any("remains in force" in r["what"] for r in run.named("problem")), "a problem")
    assert not run.named("restart")
    rig.reset()
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()


def test_a_file_that_vanishes_is_a_permission(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(rank(codes="DEADBEEF"))
    run.until("healing")
    (rig.folder / "reset.json").unlink()
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()


@pytest.mark.parametrize("flushing", [False, True])
def test_a_platform_that_never_permits_a_start_ends_with_197(runs: Runs, flushing: bool) -> None:
    rig, run = platform(runs, "--heal-timeout", "2s")
    rig.reset(rank(codes="DEADBEEF"), FaultFlushing=flushing)
    run.until("healing")
    if flushing:
        rig.reset(FaultFlushing=True)
    assert run.wait() == 197, run.log()
    assert runs.verdict["verdict"] == "node-fault"
    assert len(run.named("spawned")) == 1


def test_flushing_alone_kills_nothing(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(FaultFlushing=True)
    rig.put("on")
    rig.end()
    assert run.wait() == 0, run.log()
    assert len(run.named("spawned")) == 1


def test_the_platform_s_word_to_end_is_obeyed_and_ftrun_stays(runs: Runs) -> None:
    rig, run = platform(runs, "--grace", "1s")
    rig.reset(GracefulExit=1)
    assert run.until("platform")["what"] == "end"
    run.until("exited")
    run.until("healing")
    assert not run.named("restart", "ended")
    assert run.order.index("platform") < run.order.index("exited")
    rig.reset()
    assert run.until("restart")["reason"] == "peer"
    rig.end()
    assert run.wait() == 0, run.log()
    assert len(run.named("spawned")) == 2


def test_where_another_pod_was_scheduled_again_the_command_starts_with_it(runs: Runs) -> None:
    """What the file said before ftrun came is no news, nor is a file that comes back with the same number."""
    rig = Ascend(runs)
    reset = rig.reset(RetryTime=5)
    options = ("--probe", "off", *QUICK, "--reset-file", str(reset), "--max-restarts", "0")
    run = runs.start(*options, *python(TRAINS), program=SOON)
    run.until("first_beat")
    rig.reset(RetryTime=6)
    run.until("first_beat", 2)
    reset.unlink()
    kill_helper(run, "platform")
    wait_for(lambda: any(r["helper"] == "platform" for r in run.named("problem")), "that it ended")
    wait_for(lambda: run.helper("platform"), "the helper again")
    rig.reset(RetryTime=6)
    rig.reset(RetryTime=6, FaultFlushing=True)
    rig.reset(RetryTime=7)
    run.until("first_beat", 3)
    rig.end()
    assert run.wait() == 0, run.log()
    assert [r["why"].partition("(")[2] for r in run.named("platform")] == ["RetryTime 6)", "RetryTime 7)"]
    assert reasons(run) == ["peer", "peer"]
    assert [start["n"] for start in rig.starts] == [1, 2, 3]


def test_a_killed_platform_helper_knows_in_its_next_life_what_has_changed(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(rank(codes="DEADBEEF"), FaultFlushing=True)
    run.until("healing")
    kill_helper(run, "platform")
    (rig.folder / "reset.json").unlink()
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()


def test_a_killed_platform_helper_tells_no_fault_twice(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(rank(codes="DEADBEEF"))
    run.until("healing")
    kill_helper(run, "platform")
    wait_for(lambda: any(r["helper"] == "platform" for r in run.named("problem")), "that it ended")
    wait_for(lambda: run.helper("platform"), "the helper again")
    rig.reset()
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()
    assert len(told(run, "DEADBEEF")) == 1


def test_a_chip_that_the_platform_gives_up_is_not_healed_any_longer(runs: Runs) -> None:
    rig = Ascend(runs, 2)
    rig.reset()
    reset = ("--reset-file", str(runs.folder / "reset.json"))
    run = rig.start(*reset, "--min-devices", "1", "--heal", "touch healing; sleep 3600; true")
    rig.chips.set(0, codes=[RESETS], health="Alarm")
    wait_for((runs.folder / "healing").exists, f"the healing: {run.order}")
    rig.reset(rank(codes=FATAL[0]), rank(1, "recovered"))
    run.until("removed")
    wait_for(lambda: not run.helper("heal"), "the healer's end", 20)
    rig.reset()
    run.until("spawned", 2)
    wait_for(lambda: run.helper("probe"), "the probe")
    assert not [pid for pid in runs.living() if words(pid).startswith("sleep ")]
    wait_for(lambda: len(rig.starts) == 2, "the second start")
    rig.end()
    assert run.wait() == 0, run.log()
    assert rig.starts[1]["env"]["ASCEND_RT_VISIBLE_DEVICES"] == "1"


def test_a_driver_that_is_gone_over_a_healing_is_no_cure(rig: Rig) -> None:
    run = rig.start("--heal", "true", "--heal-timeout", "4s")
    rig.gpus.set("-", **{"error:nvmlInitWithFlags": NOT_LOADED})
    rig.gpus.xid(0, 46)
    assert run.wait() == 197, run.log()
    assert len(run.named("spawned")) == 1


def test_the_first_start_waits_for_the_platform_too(runs: Runs) -> None:
    rig = Ascend(runs)
    reset = rig.reset(rank(status="recovered"), FaultFlushing=True)
    run = runs.start("--reset-file", str(reset), "--probe", "off", "touch", "started")
    run.until("healing")
    assert not (runs.folder / "started").exists()
    rig.reset()
    assert run.wait() == 0, run.log()
    assert run.order[:3] == ["healing", "started", "spawned"]


def test_without_a_probe_the_platform_s_fault_takes_a_device_out(runs: Runs) -> None:
    rig = Ascend(runs)
    reset = rig.reset()
    words = ("sh", "-c", "echo $ASCEND_RT_VISIBLE_DEVICES {devices} >>seen; test $MA_PROC_START_CNT = 2 || sleep 3600")
    options = ("--reset-file", str(reset), "--probe", "off", "--min-devices", "2", "--grace", "off")
    run = runs.start(*options, *words, ASCEND_RT_VISIBLE_DEVICES="0,1,2")
    run.until("spawned")
    rig.reset(rank(codes="80818C00", logic=1))
    assert run.wait() == 0, run.log()
    assert (runs.folder / "seen").read_text() == "0,1,2 3\n0,2 2\n"
