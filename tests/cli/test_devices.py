"""Accelerators, end to end, over a fake driver library: in use after a kill, blocked, missing, faulty."""

import json
from pathlib import Path

import pytest

from ftrun.accelerators.table import present
from support.device.nvml import BUSY, GIB, FakeNvml
from support.device.rig import faked, until_heard
from support.runs import Run, Runs, helpers, number_in, patched, python, state_of, wait_for

# ftrun, with a probe that takes samples sooner, and is replaced sooner.
FAST = "import ftrun.pid1.clients.probe as probe\nprobe.SILENCE, probe.PERIOD = 1.5, 0.2"
SOON = patched(FAST)
PROBE = ("--probe", "nvidia", "--no-auto-beat", "--grace", "off", "--backoff", "10ms")
AGAIN = (*PROBE, "--restart-on", "failure")
# Fails when the file `go` is there, and the second time it ends well.
FAILS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nos._exit(2 - ft.attempt().start_cnt)\n"


def listening(fake: FakeNvml, run: Run) -> int:
    """The probe, once it has looked: it asks for faults before each look."""
    until_heard(fake, run, 13)
    return run.helper("probe")


def looked_at(run: Run) -> float:
    """When the probe has looked last."""
    return float(json.loads(Path(run.run_dir, "devices.json").read_bytes())["mono"])


def go(runs: Runs) -> None:
    (runs.folder / "go").touch()


def test_restart_waits_until_device_memory_is_free(runs: Runs) -> None:
    fake = faked(runs)
    run = runs.start(*AGAIN, *python(FAILS), program=SOON)
    listening(fake, run)
    fake.set(0, memory_used=40 * GIB)
    go(runs)
    run.until("exited")
    for _ in range(4):  # looks of the probe since then
        before = looked_at(run)
        wait_for(lambda before=before: looked_at(run) > before, "a look")  # type: ignore[misc]
    assert not run.named("restart")
    fake.set(0, memory_used=600 << 20)
    assert run.wait() == 0, run.log()
    assert [record["attempt"] for record in run.named("exited")] == [1, 2]


def test_device_memory_that_stays_in_use_is_a_node_fault(runs: Runs) -> None:
    fake = faked(runs)
    run = runs.start(*AGAIN, "--device-timeout", "2s", *python(FAILS), program=SOON)
    listening(fake, run)
    pid = run.named("spawned")[0]["pid"]
    fake.set(0, memory_used=40 * GIB, pids=[pid])
    go(runs)
    assert run.wait() == 197, run.log()
    why = runs.verdict["message"]
    assert "GPU-0abcdef0" in why
    assert f"by {pid}" in why
    assert "40960 MiB" in why
    assert runs.verdict["verdict"] == "node-fault"
    assert len(run.named("spawned")) == 1


def test_process_of_the_tree_that_holds_a_device_is_ended_first(runs: Runs) -> None:
    code = "import os, subprocess\nif ft.attempt().is_restart: os._exit(0)\n"
    code += "child = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
    code += "open('child', 'w').write(str(child.pid))\n"
    fake = faked(runs)
    run = runs.start(*AGAIN, *python(code + FAILS), program=SOON)
    listening(fake, run)
    child = number_in(runs.folder / "child")
    fake.set(0, holders={child: 20 * GIB})
    go(runs)
    assert run.wait() == 0, run.log()
    assert not state_of(child)


def test_blocked_probe_is_recorded_and_replaced(runs: Runs) -> None:
    fake = faked(runs)
    run = runs.start(*AGAIN, *python(FAILS), program=SOON)
    stuck = listening(fake, run)
    fake.set("-", blocks="*")
    problem = run.until("problem")
    assert (problem["helper"], problem["what"].startswith("wrote nothing for")) == ("probe", True)
    wait_for(lambda: not state_of(stuck), "the end of it")
    go(runs)
    assert run.wait() == 0, run.log()
    assert [r["reason"] for r in run.named("restart")] == ["failure"]


def test_probe_that_blocks_before_a_restart_delays_it_by_the_timeout_only(runs: Runs) -> None:
    """Whether the devices are free is not known: the restart goes on after the timeout."""
    fake = faked(runs)
    run = runs.start(*AGAIN, "--device-timeout", "500ms", *python(FAILS))
    listening(fake, run)
    fake.set("-", blocks="*")
    wait_for(lambda: fake.blocked, "a call that blocks")
    go(runs)
    assert run.wait() == 0, run.log()
    assert any("it is not known" in record["what"] for record in run.named("problem"))


@pytest.mark.parametrize(("kind", "problems"), [("nvidia", 1), ("auto", 0)])
def test_probe_without_a_driver_ends_with_a_problem_only_where_it_was_asked_for(
    runs: Runs, kind: str, problems: int
) -> None:
    program = patched(f"{FAST}\nimport ftrun.host.devices as devices\ndevices.has_driver = lambda: True")
    run = runs.start("--probe", kind, "--no-auto-beat", *python(FAILS.replace("2 -", "1 -")), program=program)
    seen = wait_for(lambda: run.helper("probe"), "the probe")
    wait_for(lambda: not state_of(seen), "its end")
    if problems:
        assert "no NVIDIA driver" in run.until("problem")["what"]
    go(runs)
    assert run.wait() == 0, run.log()
    assert len(run.named("problem")) == problems


@pytest.mark.skipif(bool(present()), reason="there is a driver here")
@pytest.mark.parametrize(
    ("probe", "variable", "value", "says"),
    [
        ("auto", "CUDA_VISIBLE_DEVICES", "0,1", "2 devices, but there is no /dev/nvidia* here"),
        ("off", "CUDA_VISIBLE_DEVICES", "0,1", ""),
    ],
)
def test_devices_that_the_environment_names_and_nobody_probes_are_one_line(
    runs: Runs, probe: str, variable: str, value: str, says: str
) -> None:
    run = runs.run("--probe", probe, "true", **{variable: value})
    assert run.stderr.count("\n") == run.stderr.count(f"{variable} names {says}") == len(run.named("problem"))
    assert bool(run.stderr) == bool(says)


def test_plain_command_has_no_helper_and_pid1_sleeps(runs: Runs) -> None:
    run = runs.spawned("sleep", "3600")
    assert helpers(run.pid) == {}
    asleep(run)


def test_pid1_with_all_helpers_is_small_and_sleeps(runs: Runs) -> None:
    fake = faked(runs)
    fake.set(0, **BUSY)
    words = ("--probe", "nvidia", "--idle-timeout", "2h", "--progress", "*.ckpt")
    run = runs.start(*words, "sleep", "3600")
    wait_for(lambda: set(helpers(run.pid)) == {"probe", "sampler", "checkpoint_watcher", "messenger"}, "the helpers")
    listening(fake, run)
    asleep(run)
    status = Path(f"/proc/{run.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 25 * 1024


def asleep(run: Run) -> None:
    """Wait until it has slept for 50 checks in a row; the probe wakes it each 10 s."""
    seen: list[str] = []

    def still() -> bool:
        lines = Path(f"/proc/{run.pid}/status").read_text().splitlines()
        seen.append(next(line for line in lines if line.startswith("voluntary")))
        return len(seen) >= 50 and len(set(seen[-50:])) == 1

    wait_for(still, "that it sleeps")
