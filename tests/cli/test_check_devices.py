"""A look at the devices before the first start: one that cannot work ends the job before anything runs."""

from pathlib import Path

import pytest

from support.device.npu_smi import FakeNpuSmi
from support.device.nvml import UNKNOWN, uuid
from support.device.rig import QUICK, REBOOT, RESET, SOON, TRAINS, Rig, told
from support.runs import Run, Runs, python, wait_for

PLAIN = ("80818C00", "AI core computes wrongly")  # critical in the table of Ascend's codes
RESETS = ("40F84E00", "node type=L2BUFF, event state=bus")  # major


@pytest.fixture
def four(runs: Runs) -> Rig:
    runs.environment.pop("CUDA_VISIBLE_DEVICES", None)
    return Rig(runs, 4)


@pytest.fixture
def chips(runs: Runs) -> FakeNpuSmi:
    found = FakeNpuSmi(runs.folder / "smi", cards=2)
    runs.environment |= found.environment()
    runs.environment.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    return found


def ascend(runs: Runs, *options: str, run_dir: Path | None = None, **more: str) -> Run:
    words = ("--probe", "ascend", *QUICK, *options)
    return runs.start(*words, *python(TRAINS), program=SOON, run_dir=run_dir, **more)


def refused(run: Run, device: str, code: str) -> None:
    assert run.wait() == 197, run.log()
    assert told(run, code)[-1]["severity"] == "critical"
    assert not run.named("spawned", "started")
    assert device in run.named("ended")[0]["why"]


@pytest.mark.parametrize(
    ("state", "code"), [({"lost": True}, "lost"), (REBOOT, "recovery:reboot"), ({"error:*": 16}, "recovery:reset")]
)
def test_a_gpu_that_cannot_work_ends_with_197_before_anything_runs(
    four: Rig, state: dict[str, object], code: str
) -> None:
    four.gpus.set(2, **state)
    run = four.start("--state-dir", str(four.folder / "state"), heard=False)
    refused(run, uuid(2) if code == "recovery:reboot" else "gpu2", code)
    assert not four.starts
    assert four.runs.verdict["isolate"] is True
    assert (four.folder / "state" / "verdict.json").exists()


@pytest.mark.parametrize(
    ("code", "health", "why"),
    [(PLAIN, "Critical", ""), (RESETS, "Alarm", "it has not healed since an earlier schedule")],
    ids=["critical", "could heal"],
)
def test_the_next_schedule_on_a_chip_at_fault_ends_with_197_again(
    runs: Runs, chips: FakeNpuSmi, code: tuple[str, str], health: str, why: str
) -> None:
    options = ("--state-dir", str(runs.folder / "state"), "--heal-timeout", "2s")
    first = ascend(runs, *options, run_dir=runs.folder / "run-1", MA_SCHEDULE_CNT="1")
    first.until("first_beat")
    wait_for(lambda: chips.calls.count("info -t usages -i 1") > 1, "two looks")
    chips.set(1, codes=[code], health=health)
    assert first.wait() == 197, first.log()
    second = ascend(runs, *options, run_dir=runs.folder / "run-2", MA_SCHEDULE_CNT="2")
    refused(second, "1-0", code[0])
    assert why in second.named("ended")[0]["why"]
    elsewhere = ascend(runs, *options, run_dir=runs.folder / "run-3", ASCEND_RT_VISIBLE_DEVICES="0")
    (runs.folder / "end").write_text("0")
    assert elsewhere.wait() == 0, elsewhere.log()  # a job that does not use the chip


@pytest.mark.parametrize("check", ["on", "off"])
def test_what_is_not_critical_or_not_to_be_looked_at_kills_nothing(four: Rig, check: str) -> None:
    four.gpus.set(1, **(RESET if check == "on" else REBOOT))
    four.gpus.set(3, **{"error:*": UNKNOWN})
    run = four.start("--check-devices", check)
    assert told(run, "recovery:reset", "recovery:reboot")[0]["severity"] == "warning"
    four.end()
    assert run.wait() == 0, run.log()
    assert len(four.starts) == 1


def test_the_first_start_does_without_it_where_that_is_permitted(four: Rig) -> None:
    four.gpus.set(1, **REBOOT)
    four.gpus.set(3, lost=True)
    run = four.start("--min-devices", "2", words=("{devices}",))
    four.end()
    assert run.wait() == 0, run.log()
    (start,) = four.starts
    assert start["env"]["CUDA_VISIBLE_DEVICES"] == f"{uuid(0)},{uuid(2)}"
    assert start["argv"] == ["2"]
    assert [record["left"] for record in run.named("removed")] == [2, 2]  # one was never named
    assert run.order.index("removed") < run.order.index("started")


def test_a_device_that_the_command_does_not_use_is_none_of_its_concern(four: Rig) -> None:
    four.gpus.set(2, **REBOOT)
    run = four.start(CUDA_VISIBLE_DEVICES="0,1")
    four.end()
    assert run.wait() == 0, run.log()
    assert not told(run, "recovery:reboot")


@pytest.mark.parametrize("scope", ["-", 0])
def test_a_driver_that_does_not_answer_is_no_fault(four: Rig, scope: str | int) -> None:
    four.gpus.set(scope, blocks="*")
    soon = "import ftrun.core.machine.starting\nftrun.core.machine.starting.CHECK = 0.5\nfrom ftrun.cli"
    quick = SOON[2].replace("from ftrun.cli", soon)
    four.end()
    run = four.runs.start("--probe", "nvidia", *QUICK, *python(TRAINS), program=(*SOON[:2], quick))
    assert run.wait() == 0, run.log()
    assert len(four.starts) == 1


def test_a_stop_during_the_look_is_a_stop(four: Rig) -> None:
    four.gpus.set("-", blocks="*")
    run = four.start(heard=False)
    wait_for(lambda: four.gpus.blocked, "that it looks")
    run.process.terminate()
    assert run.wait() == 143, run.log()
    assert not four.starts


# --- --min-devices where there is none --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "there is no accelerator here (no /dev/nvidia*, no /dev/davinci*)"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES names no device"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "-1"}, "ASCEND_RT_VISIBLE_DEVICES names no device"),
    ],
)
@pytest.mark.skipif(Path("/dev/nvidiactl").exists() or Path("/dev/davinci_manager").exists(), reason="there are some")
def test_min_devices_without_a_device_is_refused(runs: Runs, environment: dict[str, str], why: str) -> None:
    for variable in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        runs.environment.pop(variable, None)
    run = runs.run("--min-devices", "1", "touch", "started", **environment)
    assert run.wait() == 2
    assert run.stderr == f"ftrun: --min-devices 1: {why}\n"
    assert not (runs.folder / "started").exists()


def test_min_devices_where_only_the_probe_can_know_is_told_and_kills_nothing(runs: Runs) -> None:
    runs.environment.pop("CUDA_VISIBLE_DEVICES", None)
    run = runs.run("--probe", "nvidia", "--min-devices", "1", "sleep", "1")
    assert run.wait() == 0, run.log()
    (line,) = [line for line in run.stderr.splitlines() if "--min-devices" in line]
    assert line.startswith(
        "[ftrun] probe: --min-devices 1 has no effect, because no device was found (no NVIDIA driver"
    )
    assert line.endswith("the command is not affected")
