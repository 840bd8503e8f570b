"""Device faults, end to end: what kills and what does not, what is counted, and what the job can do without."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.device.npu_smi import FakeNpuSmi
from support.device.nvml import NOT_LOADED, UNKNOWN, uuid
from support.device.rig import (
    FAST,
    JOB,
    NODE,
    NONE,
    QUICK,
    REBOOT,
    SOON,
    TRAINS,
    Rig,
    faulted,
    faults,
    history,
    kill_helper,
    rank,
    reasons,
    remembers,
)
from support.refusals import refusal
from support.runs import Run, Runs, patched, python, wait_for, words

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


def test_fault_that_is_no_reason_to_kill_is_only_recorded(rig: Rig) -> None:
    run = rig.start()
    for code, severity in ((31, "user"), (13, "user"), (63, "warning"), (999, "unknown")):
        rig.gpus.xid(0, code)
        assert faulted(run, str(code))["severity"] == severity
    rig.until_heard(run)  # it still trains
    rig.end()
    assert run.wait() == 0, run.log()
    assert len(rig.starts) == 1
    assert not run.named("hang", "healing", "restart")


def test_third_failure_after_a_user_fault_ends_with_196(
    rig: Rig,
) -> None:
    run = rig.start()
    for start in (1, 2, 3):
        if start > 1:
            rig.until_heard(run)
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


# --- three times in a day ---------------------------------------------------------------------------------------------


def fires(rig: Rig, run: Run, *codes: int) -> None:
    """One after another, each in an attempt of its own that has got further than all before."""
    for code in codes:
        number = len(run.named("spawned"))
        rig.gpus.xid(0, code)
        run.until("spawned", number + 1)
        rig.until_heard(run)


def test_third_time_of_the_same_fault_ends_with_197_despite_progress(rig: Rig, state: Path) -> None:
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


def test_faults_are_counted_over_restarts_of_the_container_and_of_ftrun(rig: Rig, state: Path) -> None:
    for folder, end in (("run-1", signal.SIGTERM), ("run-2", signal.SIGKILL), ("run-2", None)):
        run = rig.start("--state-dir", str(state), "--group-job", JOB, run_dir=rig.folder / folder, listening=False)
        remembers(run, state)
        rig.until_heard(run)
        before, recorded = len(run.named("spawned")), len(faults(run, "46"))
        rig.gpus.xid(0, 46)
        if end is None:
            assert run.wait() == 197, run.log()
            assert "time in 24 hours" in rig.runs.verdict["message"]
            return
        faulted(run, "46", recorded + 1)
        run.until("spawned", before + 1)  # what is decided is on disk then
        os.kill(run.pid, end)
        assert run.wait() == 128 + end, run.log()


@pytest.mark.parametrize(
    ("ages", "code"),
    [((-36 * 3600.0, 3500.0), 197), ((90000.0, 3500.0), 0)],
    ids=["one in the future", "one 25 hours ago"],
)
def test_faults_of_an_earlier_boot_count_by_the_wall_clock(
    rig: Rig, state: Path, ages: tuple[float, ...], code: int
) -> None:
    history(state, *ages)
    run = rig.start("--state-dir", str(state), "--group-job", JOB, listening=False)
    remembers(run, state)
    rig.until_heard(run)
    rig.gpus.xid(0, 46)
    wait_for(lambda: run.named("escalated", "restart"), "what it comes to")
    rig.end()
    assert run.wait() == code, run.log()


@pytest.mark.parametrize(
    ("node", "name"),
    [(NODE, ()), ("n8", ("--group-job", JOB))],
    ids=["a job without a name", "another node"],
)
def test_faults_of_other_jobs_and_nodes_do_not_count(rig: Rig, state: Path, node: str, name: tuple[str, ...]) -> None:
    history(state, 60.0, 50.0, node=node)
    run = rig.start("--state-dir", str(state), *name, listening=False)
    remembers(run, state)
    rig.until_heard(run)
    rig.gpus.xid(0, 46)
    run.until("spawned", 2)
    rig.end()
    assert run.wait() == 0, run.log()


def test_verdict_names_the_faulty_device_of_this_node(four: Rig, state: Path) -> None:
    history(state, -60.0, node="n8", code="109")
    run = four.start("--state-dir", str(state), listening=False)
    remembers(run, state)
    four.until_heard(run)
    four.gpus.xid(2, 79)
    assert run.wait() == 197, run.log()
    assert (kept(state)["node"], kept(state)["device"]) == (NODE, uuid(2))


def test_killed_state_store_loses_no_fault(rig: Rig, state: Path) -> None:
    run = rig.start("--state-dir", str(state), listening=False)
    remembers(run, state)
    rig.until_heard(run)
    kill_helper(run, "state_store")
    fires(rig, run, 46)
    wait_for(lambda: run.helper("state_store"), "the state store again")
    rig.end()
    assert run.wait() == 0, run.log()
    assert [fault["code"] for fault in json.loads((state / "history.json").read_bytes())["faults"]] == ["46"]


# --- what does not heal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["79", "lost"])
def test_critical_fault_ends_with_197_at_once(rig: Rig, state: Path, what: str) -> None:
    run = rig.start("--state-dir", str(state), "--heal", "touch healed")
    if what == "79":
        rig.gpus.xid(0, 79)
    else:
        rig.gpus.set(0, lost=True)
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
        ("3,1,0", "3,0"),
        ("GPU-1,GPU-3,GPU-0", "GPU-3,GPU-0"),
    ],
    ids=["unset", "numbers", "short names"],
)
def test_job_continues_without_a_faulty_device(four: Rig, given: str | None, left: str) -> None:
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


def test_fewer_devices_than_the_minimum_end_with_197(four: Rig) -> None:
    run = four.start("--min-devices", "3")
    four.gpus.xid(1, 79)
    run.until("spawned", 2)
    four.until_heard(run)
    four.gpus.xid(2, 79)
    assert run.wait() == 197, run.log()
    assert len(run.named("spawned")) == 2
    assert uuid(2) in four.runs.verdict["message"]


def test_lost_device_is_removed_once_and_ignored_from_then_on(four: Rig) -> None:
    """Neither its other faults nor its memory matter then."""
    run = four.start("--min-devices", "2", "--device-timeout", "3s")
    four.gpus.set(1, memory_used=40 << 30)
    four.gpus.xid(1, 79)
    run.until("spawned", 2)
    four.until_heard(run)
    four.gpus.set(1, lost=True)
    faulted(run, "lost")
    four.gpus.xid(1, 46)
    four.until_heard(run)
    four.end()
    assert run.wait() == 0, run.log()
    assert len(run.named("spawned")) == 2
    assert len(run.named("removed")) == 1


def test_removed_devices_survive_a_killed_ftrun(four: Rig) -> None:
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
        run = four.start("--min-devices", "2", listening=False, **options)
        wait_for(lambda before=before: len(four.starts) > before, "the next start")  # type: ignore[misc]
        assert four.starts[-1]["env"]["CUDA_VISIBLE_DEVICES"] == visible
        assert four.starts[-1]["argv"] == [str(visible.count(",") + 1)]
    four.end()
    assert run.wait() == 0, run.log()
    assert [record["device"] for record in run.named("returned")] == [uuid(1)]


# --- the site's own table ---------------------------------------------------------------------------------------------


def test_fault_table_of_the_site_takes_precedence(rig: Rig) -> None:
    table = rig.put("table.txt", "79 ignore as it is here\n999 major ours\n")
    run = rig.start("--fault-table", str(table), "--heal", "touch healed")
    rig.gpus.xid(0, 79)
    assert faulted(run, "79")["severity"] == "warning"
    rig.until_heard(run)
    rig.gpus.xid(0, 999)
    run.until("spawned", 2)
    rig.end()
    assert run.wait() == 0, run.log()
    assert [record["code"] for record in run.named("healing")] == ["999"]


@pytest.mark.parametrize("content", ["79 ignored\n", "\0\xff", None], ids=["a wrong word", "no text", "no file"])
def test_invalid_fault_table_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "table.txt"
    if content is not None:
        path.write_text(content)
    assert refusal(tmp_path, "--fault-table", str(path), "true").startswith(f"--fault-table {path}: ")


# --- Ascend -----------------------------------------------------------------------------------------------------------


class Ascend(Rig):
    """Chips, asked by npu-smi."""

    def __init__(self, runs: Runs, cards: int = 1) -> None:
        self.runs, self.folder = runs, runs.folder
        self.chips = FakeNpuSmi(runs.folder / "smi", cards=cards)
        runs.environment |= self.chips.environment()
        runs.environment.pop("ASCEND_RT_VISIBLE_DEVICES", None)

    def start(self, *options: str, words: tuple[str, ...] = (), listening: bool = True, **more: Any) -> Run:
        options = ("--probe", "ascend", *QUICK, *options)
        run = self.runs.start(*options, *python(TRAINS, *words), **{"program": SOON, **more})
        if listening:
            run.until("first_beat")
            card = max(card for card, _ in self.chips.chips)
            wait_for(lambda: self.chips.calls.count(f"info -t usages -i {card}") > 1, "two looks at the last card")
        return run


def test_third_user_fault_of_a_chip_ends_with_196(runs: Runs) -> None:
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


def test_restart_waits_until_the_code_of_a_chip_is_gone(runs: Runs) -> None:
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


def test_removed_device_is_used_again_at_a_start_when_it_is_healthy(runs: Runs) -> None:
    """With the next start, whatever that is for; none is made for it alone."""
    rig = Ascend(runs, 2)
    variable = "ASCEND_RT_VISIBLE_DEVICES"
    options = ("--min-devices", "1", "--restart-on", "fault,failure")
    run = rig.start(*options, words=("{devices}",), **{variable: "0,1"})  # type: ignore[arg-type]
    rig.chips.set(0, codes=[FATAL], health="Critical")
    run.until("spawned", 2)
    rig.end(1, start=2)
    run.until("spawned", 3)
    wait_for(lambda: len(rig.starts) == 3, "the third start, while it still reports the fault")
    rig.chips.set(0, codes=[], health="OK")
    spawned = len(run.named("spawned"))
    rig.end(1, start=3)
    wait_for(lambda: len(rig.starts) == 4, "the fourth start")
    rig.end()
    assert run.wait() == 0, run.log()
    assert spawned == 3
    assert reasons(run) == ["fault", "failure", "failure"]
    assert [start["env"][variable] for start in rig.starts] == ["0,1", "1", "1", "0,1"]
    assert [start["argv"] for start in rig.starts] == [["2"], ["1"], ["1"], ["2"]]
    (returned,) = run.named("returned")
    assert returned["device"] == run.named("removed")[0]["device"]
    assert returned["devices"] == 2
    assert run.order.index("returned") == len(run.order) - 1 - run.order[::-1].index("restart") - 1
    assert f"[ftrun] device {returned['device']} is used again: {returned['why']}\n" in run.stderr


def test_number_of_devices_is_that_of_the_probe_where_no_file_or_variable_shows_them(runs: Runs) -> None:
    rig = Ascend(runs, 2)
    run = rig.start("--min-devices", "1", words=("{devices}",))
    rig.end()
    assert run.wait() == 0, run.log()
    assert [start["argv"] for start in rig.starts] == [["2"]]


REGAINS = patched(f"{FAST}\nimport ftrun.core.rules.regain as r; r.STEADY = 0.5")


def test_removed_device_that_is_healthy_again_is_used_after_a_checkpoint_where_that_is_asked_for(runs: Runs) -> None:
    """One restart, which costs no budget; and none for the same device again.  Without a checkpoint there is none."""
    rig, variable = Ascend(runs, 2), "ASCEND_RT_VISIBLE_DEVICES"
    saved = rig.folder / "kept"
    saved.mkdir()
    options = ("--min-devices", "1", "--scale-out", "checkpoint", "--progress", f"{saved}/*", "--idle-timeout", "20s")
    run = rig.start(*options, words=("{devices}",), program=REGAINS, **{variable: "0,1"})  # type: ignore[arg-type]

    def looked(times: int = 6) -> None:
        before = rig.chips.calls.count("info -t usages -i 0")
        wait_for(lambda: rig.chips.calls.count("info -t usages -i 0") > before + times, "looks at the chip")

    def save(name: str) -> None:
        (saved / f"{name}.new").write_text("saved")
        (saved / f"{name}.new").rename(saved / name)

    def fail_and_recover(start: int) -> None:
        rig.chips.set(0, codes=[FATAL], health="Critical")
        run.until("spawned", start)
        wait_for(lambda: len(rig.starts) == start, "the start without the chip")
        rig.chips.set(0, codes=[], health="OK")
        looked()

    fail_and_recover(2)
    assert len(run.named("spawned")) == 2
    save("1")
    run.until("regaining")
    run.until("spawned", 3)
    wait_for(lambda: len(rig.starts) == 3, "the start with the chip")
    fail_and_recover(4)
    save("2")
    run.until("progress", 2)
    looked()
    rig.end()
    assert run.wait() == 0, run.log()
    assert [record["reason"] for record in run.named("restart")] == ["fault", "returned", "fault"]
    assert [start["env"][variable] for start in rig.starts] == ["0,1", "1", "0,1", "1"]
    assert [start["reason"] for start in rig.starts] == ["first", "fault", "returned", "fault"]
    (regaining,), (returned,) = run.named("regaining"), run.named("returned")
    assert regaining["devices"] == [returned["device"]] == [run.named("removed")[0]["device"]]
    assert run.order.index("regaining") < run.order.index("stopping", run.order.index("regaining"))
    assert "a checkpoint is saved, and device 0-0 can be used again; the command starts again" in run.stderr


# --- a failing tool is no node fault ----------------------------------------------------------------------------------


def test_driver_that_fails_after_a_hang_isolates_no_node(rig: Rig) -> None:
    run = rig.start("--hang-timeout", "1s", "--device-timeout", "1s")
    for scope in ("-", 0):
        rig.gpus.set(scope, **{"error:*": UNKNOWN})
    rig.put("still-1")
    run.until("spawned", 2)
    rig.end()
    assert run.wait() == 0, run.log()
    assert reasons(run) == ["hang"]
    assert any(uuid(0) in record["what"] and "it is not known" in record["what"] for record in run.named("problem"))


def test_lost_device_after_a_hang_isolates_the_node(rig: Rig) -> None:
    table = rig.put("table.txt", "lost ignore so that the hang ends it\n")
    run = rig.start("--hang-timeout", "1s", "--device-timeout", "1s", "--fault-table", str(table))
    rig.gpus.set(0, lost=True)
    rig.put("still-1")
    assert run.wait() == 197, run.log()
    assert f"{uuid(0)} (GPU is lost)" in rig.runs.verdict["message"]


@pytest.mark.parametrize(
    "script",
    ["printf '\\377\\0\\376%s' garbage", "exec sleep 100000"],
    ids=lambda s: s.split()[0],
)
def test_vendor_tool_that_fails_after_a_hang_isolates_no_node(runs: Runs, script: str) -> None:
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


def test_vendor_tool_that_lists_no_chip_at_first_is_one_problem(runs: Runs) -> None:
    rig = Ascend(runs)
    rig.chips.say("info -m", "dcmi model initialized failed, because the device is used. ret is -8020\n", 255)
    run = rig.start(listening=False)
    what = run.until("problem")["what"]
    assert "ret is -8020" in what
    rig.chips.say("info -m", *FakeNpuSmi(runs.folder / "well").answers()["info -m"])
    wait_for(lambda: (runs.folder / "run" / "devices.json").read_text().count("0-0"), "that the chip is seen")
    rig.chips.set(0, codes=[FATAL], health="Critical")
    wait_for(lambda: faults(run, FATAL[0]), "that its fault is seen")
    rig.end()
    run.wait()
    assert len(run.named("problem")) == 1


# --- MindCluster ------------------------------------------------------------------------------------------------------


def platform(runs: Runs, *options: str, listening: bool = True, **more: Any) -> tuple[Rig, Run]:
    """Without a probe: only the platform speaks."""
    rig = Rig.__new__(Rig)
    rig.runs, rig.folder = runs, runs.folder
    rig.reset()
    words = ("--probe", "off", *QUICK, "--reset-file", str(runs.folder / "reset.json"), *options)
    run = runs.start(*words, *python(TRAINS), program=SOON, **more)
    if listening:
        run.until("first_beat")
        wait_for(lambda: run.helper("reset_file"), "the platform's helper")
    return rig, run


def test_platform_fault_ends_the_tree_and_its_permission_starts_it(runs: Runs) -> None:
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


def test_faults_of_other_containers_are_ignored(runs: Runs) -> None:
    rig, run = platform(runs, RANK="0", LOCAL_RANK="0")
    rig.reset(rank(5, "fault"), rank(0, "fault", "DEADBEEF"))
    assert run.until("fault")["code"] == "DEADBEEF"
    run.until("healing")
    rig.reset(rank(5, "fault"), rank(0, "recovered"))
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()


def test_each_kind_of_reset_file_ends_the_tree_and_permits_the_next_start(runs: Runs) -> None:
    """A chip is reset when the processes are gone, and not before: whatever the fault table says of the code, also
    without a code (a chip beside the faulty one), and where the file is damaged meanwhile or vanishes."""
    rig, run = platform(runs)
    rig.put("on")  # each start makes progress, so that no budget matters
    recovered = rank(status="recovered")
    cases = [([rank(3, "fault")], []), ([rank()], [recovered])]  # without a code
    cases += [([rank(codes=code)], [recovered]) for code in ("80C98002", "80818200")]  # user, warning
    for number, (faulty, healthy) in enumerate(cases, 1):
        rig.reset(*faulty)
        run.until("healing", number)
        assert run.named("killed", "exited")[-1]["attempt"] == number
        assert len(run.named("restart")) == number - 1
        rig.reset(*healthy)
        run.until("first_beat", number + 1)
    assert faults(run, "reset.json")[0]["device"] == "rank3"
    rig.reset(rank(codes="DEADBEEF"))
    run.until("healing", 5)
    rig.put("reset.json", '{"RankList": [{"RankId": 0, "Sta')
    wait_for(lambda: any("remains in force" in r["what"] for r in run.named("problem")), "a problem")
    assert len(run.named("restart")) == 4
    (rig.folder / "reset.json").unlink()
    run.until("first_beat", 6)
    rig.end()
    assert run.wait() == 0, run.log()


def test_platform_that_never_permits_a_start_ends_with_197(runs: Runs) -> None:
    rig, run = platform(runs, "--heal-timeout", "2s")
    rig.reset(rank(codes="DEADBEEF"), FaultFlushing=True)
    run.until("healing")
    rig.reset(FaultFlushing=True)
    assert run.wait() == 197, run.log()
    assert runs.verdict["verdict"] == "node-fault"
    assert len(run.named("spawned")) == 1


@pytest.mark.parametrize("codes", ["DEADBEEF", "80C98002", ""])
def test_chip_that_the_platform_has_reset_in_vain_ends_with_197_at_once(runs: Runs, codes: str) -> None:
    """ModelArts: where the healing of a chip fails, the in-place recovery fails at once; also for a fault that the user
    caused, and for a chip that was only reset together with the faulty one."""
    rig, run = platform(runs, "--heal-timeout", "1h")
    rig.reset(rank(codes=codes))
    run.until("healing")
    rig.reset(rank(status="failed", codes=codes) | {"Policy": "isolate"})
    assert run.wait() == 197, run.log()
    assert runs.verdict["verdict"] == "node-fault"
    assert "the platform reports rank 0 as failed" in runs.verdict["message"]
    assert len(run.named("spawned")) == 1


def test_chip_that_the_platform_gives_up_while_the_command_runs_ends_with_197_at_once(runs: Runs) -> None:
    rig, run = platform(runs, "--heal-timeout", "1h", "--heal", "touch healing; true")
    rig.reset(rank(status="failed", codes="DEADBEEF") | {"Policy": "isolate"})
    assert run.wait() == 197, run.log()
    assert not (runs.folder / "healing").exists()


def test_graceful_exit_of_the_platform_ends_the_command_and_not_ftrun(runs: Runs) -> None:
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


def test_command_restarts_with_another_pod(runs: Runs) -> None:
    """What the file said before ftrun came is no news, nor is a file that comes back with the same number."""
    rig = Ascend(runs)
    reset = rig.reset(RetryTime=5)
    options = ("--probe", "off", *QUICK, "--reset-file", str(reset), "--max-restarts", "0")
    run = runs.start(*options, *python(TRAINS), program=SOON)
    run.until("first_beat")
    rig.reset(RetryTime=6)
    run.until("first_beat", 2)
    reset.unlink()
    kill_helper(run, "reset_file")
    wait_for(lambda: any(r["helper"] == "reset_file" for r in run.named("problem")), "that it ended")
    wait_for(lambda: run.helper("reset_file"), "the helper again")
    rig.reset(RetryTime=6)
    rig.reset(RetryTime=6, FaultFlushing=True)
    rig.reset(RetryTime=7)
    run.until("first_beat", 3)
    rig.end()
    assert run.wait() == 0, run.log()
    assert [r["why"].partition("(")[2] for r in run.named("platform")] == ["RetryTime 6)", "RetryTime 7)"]
    assert reasons(run) == ["peer", "peer"]
    assert [start["n"] for start in rig.starts] == [1, 2, 3]


def test_killed_platform_helper_repeats_no_fault_and_misses_no_change(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(rank(codes="DEADBEEF"))
    run.until("healing")
    kill_helper(run, "reset_file")
    wait_for(lambda: any(r["helper"] == "reset_file" for r in run.named("problem")), "that it ended")
    wait_for(lambda: run.helper("reset_file"), "the helper again")
    kill_helper(run, "reset_file")
    (rig.folder / "reset.json").unlink()
    run.until("restart")
    rig.end()
    assert run.wait() == 0, run.log()
    assert len(faults(run, "DEADBEEF")) == 1


def test_healing_stops_for_a_chip_that_the_platform_gives_up(runs: Runs) -> None:
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


def test_missing_driver_after_a_healing_is_no_cure(rig: Rig) -> None:
    run = rig.start("--heal", "true", "--heal-timeout", "4s")
    rig.gpus.set("-", **{"error:nvmlInitWithFlags": NOT_LOADED})
    rig.gpus.xid(0, 46)
    assert run.wait() == 197, run.log()
    assert len(run.named("spawned")) == 1


def test_first_start_waits_for_the_platform(runs: Runs) -> None:
    rig = Ascend(runs)
    reset = rig.reset(rank(status="recovered"), FaultFlushing=True)
    run = runs.start("--reset-file", str(reset), "--probe", "off", "touch", "started")
    run.until("healing")
    assert not (runs.folder / "started").exists()
    rig.reset()
    assert run.wait() == 0, run.log()
    assert run.order[:3] == ["healing", "started", "spawned"]


def test_platform_fault_removes_a_device_without_a_probe(runs: Runs) -> None:
    rig = Ascend(runs)
    reset = rig.reset()
    words = ("sh", "-c", "echo $ASCEND_RT_VISIBLE_DEVICES {devices} >>seen; test $MA_PROC_START_CNT = 2 || sleep 3600")
    options = ("--reset-file", str(reset), "--probe", "off", "--min-devices", "2", "--grace", "off")
    run = runs.start(*options, *words, ASCEND_RT_VISIBLE_DEVICES="0,1,2")
    run.until("spawned")
    rig.reset(rank(codes="80818C00", logic=1))
    assert run.wait() == 0, run.log()
    assert (runs.folder / "seen").read_text() == "0,1,2 3\n0,2 2\n"
