"""The check of the devices before the first start: one that cannot work ends the job before anything runs."""

from pathlib import Path

import pytest

from support.device.npu_smi import FakeNpuSmi
from support.device.nvml import UNKNOWN, uuid
from support.device.rig import FAST, QUICK, REBOOT, SOON, TRAINS, Rig
from support.refusals import refusal
from support.runs import Run, Runs, patched, python, wait_for

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
    assert run.named("fault", code=code)[-1]["severity"] == "critical"
    assert not run.named("spawned", "started")
    assert device in run.named("ended")[0]["why"]


def test_gpu_that_cannot_work_ends_with_197_before_the_first_start(four: Rig) -> None:
    four.gpus.set(2, **REBOOT)
    run = four.start("--state-dir", str(four.folder / "state"), listening=False)
    refused(run, uuid(2), "recovery:reboot")
    assert not four.starts
    assert four.runs.verdict["isolate"] is True
    assert (four.folder / "state" / "verdict.json").exists()


def test_next_schedule_on_a_faulty_chip_ends_with_197_again(runs: Runs, chips: FakeNpuSmi) -> None:
    options = ("--state-dir", str(runs.folder / "state"), "--heal-timeout", "2s")
    first = ascend(runs, *options, run_dir=runs.folder / "run-1", MA_SCHEDULE_CNT="1")
    first.until("first_beat")
    wait_for(lambda: chips.calls.count("info -t usages -i 1") > 1, "two looks")
    chips.set(1, codes=[RESETS], health="Alarm")
    assert first.wait() == 197, first.log()
    second = ascend(runs, *options, run_dir=runs.folder / "run-2", MA_SCHEDULE_CNT="2")
    refused(second, "1-0", RESETS[0])
    assert "it has not healed since an earlier schedule" in second.named("ended")[0]["why"]
    elsewhere = ascend(runs, *options, run_dir=runs.folder / "run-3", ASCEND_RT_VISIBLE_DEVICES="0")
    (runs.folder / "end").write_text("0")
    assert elsewhere.wait() == 0, elsewhere.log()  # a job that does not use the chip


def test_unchecked_fault_does_not_prevent_the_start(four: Rig) -> None:
    four.gpus.set(1, **REBOOT)
    four.gpus.set(3, **{"error:*": UNKNOWN})
    run = four.start("--check-devices", "off")
    (found,) = run.named("fault", code="recovery:reboot")
    assert (found["severity"], found["preexisting"]) == ("critical", True), "as in the table, and only recorded"
    four.end()
    assert run.wait() == 0, run.log()
    assert len(four.starts) == 1


def test_first_start_continues_without_faulty_devices(four: Rig) -> None:
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


def test_driver_that_does_not_answer_is_no_fault(four: Rig) -> None:
    four.gpus.set("-", blocks="*")
    quick = patched(f"{FAST}\nimport ftrun.core.machine.starting as starting\nstarting.CHECK = 0.5")
    four.end()
    run = four.runs.start("--probe", "nvidia", *QUICK, *python(TRAINS), program=quick)
    assert run.wait() == 0, run.log()
    assert len(four.starts) == 1


# --- --min-devices where there is none --------------------------------------------------------------------------------


@pytest.mark.skipif(Path("/dev/nvidiactl").exists() or Path("/dev/davinci_manager").exists(), reason="there are some")
def test_min_devices_without_a_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    cases: list[tuple[dict[str, str], str]] = [
        ({}, "there is no accelerator here (no /dev/nvidia*, no /dev/davinci*)"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES names no device"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "-1"}, "ASCEND_RT_VISIBLE_DEVICES names no device"),
    ]
    for environment, why in cases:
        line = refusal(tmp_path, "--min-devices", "1", "true", environment=environment)
        assert line == f"--min-devices 1: {why}"
