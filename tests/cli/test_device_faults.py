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
    kill_helper,
    rank,
    reasons,
    remembers,
)
from support.refusals import refusal
from support.runs import Run, Runs, patched, python, wait_for

FATAL = ("80E0020B", "node type=HBM, event state=too hot")
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
        assert run.until("fault", code=str(code))["severity"] == severity
    rig.until_heard(run)  # it still trains
    rig.end_well(run)
    assert len(rig.starts) == 1
    assert not run.named("hang", "healing", "restart")


def test_faults_are_counted_over_restarts_of_the_container_and_of_ftrun(rig: Rig, state: Path) -> None:
    for folder, end in (("run-1", signal.SIGTERM), ("run-2", signal.SIGKILL), ("run-2", None)):
        run = rig.start("--state-dir", str(state), "--group-job", JOB, run_dir=rig.folder / folder, listening=False)
        remembers(run, state)
        rig.until_heard(run)
        before, recorded = len(run.named("spawned")), len(run.named("fault", code="46"))
        rig.gpus.xid(0, 46)
        if end is None:
            assert run.wait() == 197, run.log()
            assert "time in 24 hours" in rig.runs.verdict["message"]
            return
        run.until("fault", recorded + 1, code="46")
        run.until("spawned", before + 1)  # what is decided is on disk then
        os.kill(run.pid, end)
        assert run.wait() == 128 + end, run.log()


def test_killed_state_store_loses_no_fault(rig: Rig, state: Path) -> None:
    run = rig.start("--state-dir", str(state), listening=False)
    remembers(run, state)
    rig.until_heard(run)
    kill_helper(run, "state_store")
    rig.gpus.xid(0, 46)
    run.until("spawned", 2)
    rig.until_heard(run)
    wait_for(lambda: run.helper("state_store"), "the state store again")
    rig.end_well(run)
    assert [fault["code"] for fault in json.loads((state / "history.json").read_bytes())["faults"]] == ["46"]


# --- what does not heal -----------------------------------------------------------------------------------------------


def test_critical_fault_ends_with_197_at_once(rig: Rig, state: Path) -> None:
    run = rig.start("--state-dir", str(state), "--heal", "touch healed")
    rig.gpus.xid(0, 79)
    assert run.wait() == 197, run.log()
    assert run.until("fault", code="79")["severity"] == "critical"
    assert not run.named("healing", "restart")
    assert not (rig.folder / "healed").exists()
    verdict = rig.runs.verdict
    assert (verdict["verdict"], verdict["exit_code"], verdict["node"]) == ("node-fault", 197, NODE)
    assert uuid(0) in verdict["message"]
    assert "79" in verdict["message"]
    assert (kept(state)["node"], kept(state)["device"], kept(state)["exit_code"]) == (NODE, uuid(0), 197)


@pytest.mark.parametrize(
    ("given", "left"),
    [(None, ",".join(ALL[:1] + ALL[2:])), ("GPU-1,GPU-3,GPU-0", "GPU-3,GPU-0")],
    ids=["unset", "short names"],
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


def test_removed_devices_survive_a_killed_ftrun(four: Rig) -> None:
    options: dict[str, Any] = {"words": ("{devices}",), "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    run = four.start("--min-devices", "2", **options)
    four.gpus.set(1, **REBOOT)
    run.until("spawned", 2)
    for life, visible in ((2, "0,2,3"), (3, "0,1,2,3")):  # the last finds that it is well again
        run.kill_ftrun()
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
    assert run.until("fault", code="79")["severity"] == "warning"
    rig.until_heard(run)
    rig.gpus.xid(0, 999)
    run.until("spawned", 2)
    rig.end_well(run)
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
    rig.end_well(run)
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
    rig.end_well(run)
    assert [start["argv"] for start in rig.starts] == [["2"]]


REGAINS = patched(f"{FAST}\nimport ftrun.core.rules.regain as r; r.STEADY = 0.5")


def test_removed_device_that_is_healthy_again_is_used_after_a_checkpoint_where_that_is_asked_for(runs: Runs) -> None:
    """And not before: scenarios/a_device_that_is_well_comes_back_at_a_checkpoint.txt has the budget."""
    rig, variable = Ascend(runs, 2), "ASCEND_RT_VISIBLE_DEVICES"
    saved = rig.folder / "kept"
    saved.mkdir()
    options = ("--min-devices", "1", "--scale-out", "checkpoint", "--progress", f"{saved}/*", "--idle-timeout", "20s")
    run = rig.start(*options, words=("{devices}",), program=REGAINS, **{variable: "0,1"})  # type: ignore[arg-type]
    rig.chips.set(0, codes=[FATAL], health="Critical")
    run.until("spawned", 2)
    wait_for(lambda: len(rig.starts) == 2, "the start without the chip")
    rig.chips.set(0, codes=[], health="OK")
    looks = rig.chips.calls.count("info -t usages -i 0")
    wait_for(lambda: rig.chips.calls.count("info -t usages -i 0") > looks + 6, "looks at the chip")
    assert len(run.named("spawned")) == 2
    rig.put("new").rename(saved / "1")
    run.until("regaining")
    wait_for(lambda: len(rig.starts) == 3, "the start with the chip")
    rig.end_well(run)
    assert reasons(run) == ["fault", "returned"]
    assert [start["env"][variable] for start in rig.starts] == ["0,1", "1", "0,1"]
    assert run.named("regaining")[0]["devices"] == [run.named("removed")[0]["device"]]


# --- a failing tool is no node fault ----------------------------------------------------------------------------------


def test_driver_that_fails_after_a_hang_isolates_no_node(rig: Rig) -> None:
    run = rig.start("--hang-timeout", "1s", "--device-timeout", "1s")
    for scope in ("-", 0):
        rig.gpus.set(scope, **{"error:*": UNKNOWN})
    rig.put("still-1")
    run.until("spawned", 2)
    rig.end_well(run)
    assert reasons(run) == ["hang"]
    assert any(uuid(0) in record["what"] and "it is not known" in record["what"] for record in run.named("problem"))


def test_lost_device_after_a_hang_isolates_the_node(rig: Rig) -> None:
    table = rig.put("table.txt", "lost ignore so that the hang ends it\n")
    run = rig.start("--hang-timeout", "1s", "--device-timeout", "1s", "--fault-table", str(table))
    rig.gpus.set(0, lost=True)
    rig.put("still-1")
    assert run.wait() == 197, run.log()
    assert f"{uuid(0)} (GPU is lost)" in rig.runs.verdict["message"]


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


def test_each_kind_of_reset_file_ends_the_tree_and_permits_the_next_start(runs: Runs) -> None:
    """Whatever the fault table says of the code, also without one, and where the file is damaged or vanishes."""
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
    assert run.named("fault", code="reset.json")[0]["device"] == "rank3"
    rig.reset(rank(codes="DEADBEEF"))
    run.until("healing", 5)
    rig.put("reset.json", '{"RankList": [{"RankId": 0, "Sta')
    wait_for(lambda: any("remains in force" in r["what"] for r in run.named("problem")), "a problem")
    assert len(run.named("restart")) == 4
    (rig.folder / "reset.json").unlink()
    run.until("first_beat", 6)
    rig.end_well(run)


@pytest.mark.parametrize("codes", ["80C98002", ""])
def test_chip_that_the_platform_has_reset_in_vain_ends_with_197_at_once(runs: Runs, codes: str) -> None:
    """Also for a fault that the user caused, and for a chip that was only reset together with the faulty one."""
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
    rig.end_well(run)
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
    run.until("problem", helper="reset_file")
    wait_for(lambda: run.helper("reset_file"), "the helper again")
    rig.reset(RetryTime=6)
    rig.reset(RetryTime=6, FaultFlushing=True)
    rig.reset(RetryTime=7)
    run.until("first_beat", 3)
    rig.end_well(run)
    assert [r["why"].partition("(")[2] for r in run.named("platform")] == ["RetryTime 6)", "RetryTime 7)"]
    assert reasons(run) == ["peer", "peer"]
    assert [start["n"] for start in rig.starts] == [1, 2, 3]


def test_killed_platform_helper_repeats_no_fault_and_misses_no_change(runs: Runs) -> None:
    rig, run = platform(runs)
    rig.reset(rank(codes="DEADBEEF"))
    run.until("healing")
    kill_helper(run, "reset_file")
    run.until("problem", helper="reset_file")
    wait_for(lambda: run.helper("reset_file"), "the helper again")
    kill_helper(run, "reset_file")
    (rig.folder / "reset.json").unlink()
    run.until("restart")
    rig.end_well(run)
    assert len(run.named("fault", code="DEADBEEF")) == 1


def test_missing_driver_after_a_healing_is_no_cure(rig: Rig) -> None:
    run = rig.start("--heal", "true", "--heal-timeout", "4s")
    rig.gpus.set("-", **{"error:nvmlInitWithFlags": NOT_LOADED})
    rig.gpus.xid(0, 46)
    assert run.wait() == 197, run.log()
    assert len(run.named("spawned")) == 1


def test_platform_fault_removes_a_device_without_a_probe(runs: Runs) -> None:
    rig = Ascend(runs)
    reset = rig.reset()
    words = ("sh", "-c", "echo $ASCEND_RT_VISIBLE_DEVICES {devices} >>seen; test $MA_PROC_START_CNT = 2 || sleep 3600")
    options = ("--reset-file", str(reset), "--probe", "off", "--min-devices", "2", "--grace", "off")
    run = runs.spawned(*options, *words, ASCEND_RT_VISIBLE_DEVICES="0,1,2")
    rig.reset(rank(codes="80818C00", logic=1))
    assert run.wait() == 0, run.log()
    assert (runs.folder / "seen").read_text() == "0,1,2 3\n0,2 2\n"
