"""What `fthang` does with PyTorch: the kinds that need it, and `--torch`, which only automatic heartbeats see."""

import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.workload.training import BEGINNING, Plain, newest
from support.beat_file import HOUSE
from support.runs import children, wait_for
from support.workload import FAST, Runner, observe, still
from support.workload import fthang as fthang

AUTO = str(HOUSE / "hooks" / "ftrun_hooks" / "auto")  # as ftrun does for automatic heartbeats

pytestmark = pytest.mark.torch


def is_trained(fthang: Runner) -> bool:
    """Whether the result is that of plain Python, except for rounding."""
    *_, plain = Plain(BEGINNING).epoch(range(1, 13))
    found = newest(fthang.checkpoints)
    assert found is not None
    return found.step == 12 and found.weights == pytest.approx(plain.weights, abs=1e-12)


@pytest.mark.slow  # in the gate tests/test_example.py has a resumed program with automatic heartbeats
def test_automatic_heartbeats_see_its_steps_also_after_a_restart(fthang: Runner) -> None:
    assert fthang.run("crash", "7", "--no-hooks") == 7
    assert fthang.run("crash", "7", "--torch", start=2, path=AUTO) == 0
    assert fthang.lines()[0].endswith("resumed at step 2")
    slot = fthang.beats.slot()
    assert (slot["step"], slot["checkpoint_step"], slot["flags"]) == (12, 0, 1)
    assert is_trained(fthang)


def test_without_pytorch_it_ends_with_one_line(fthang: Runner) -> None:
    (fthang.folder / "torch.py").write_text("raise ImportError")
    for arguments in (["collective"], ["dataloader"], ["none", "--torch"]):
        assert fthang.run(*arguments, path=str(fthang.folder)) == 77
        assert fthang.lines() == ["fthang: this needs PyTorch: pip install 'ftrun[torch]'"]
    assert not fthang.checkpoints.exists()


@pytest.mark.slow
def test_collective(fthang: Runner) -> None:
    pid = fthang.begin("collective", line="hanging: collective")
    thread = still(pid)
    assert thread.state == "S"
    assert thread.waits_in("futex")
    (peer,) = children(pid)
    wait_for(lambda: still(peer).waits_in("futex"), "the deadlock of the peer")
    ranks = fthang.beats.slot(0), fthang.beats.slot(1)
    assert [rank["pid"] for rank in ranks] == [pid, peer]
    assert [rank["step"] for rank in ranks] == [4, 4]
    fthang.kill()


@pytest.mark.slow
def test_collective_ends_well(fthang: Runner) -> None:
    assert fthang.run("collective", "--torch", start=2, path=AUTO) == 0
    assert is_trained(fthang)
    assert [fthang.beats.slot(rank)["step"] for rank in (0, 1)] == [12, 12]
    assert [fthang.beats.slot(rank)["flags"] for rank in (0, 1)] == [1, 1]


@pytest.mark.slow
def test_dataloader(fthang: Runner) -> None:
    pid = fthang.begin("dataloader", "--torch", line="hanging: dataloader")
    # It returns from its poll every few seconds to see whether its worker lives.
    wait_for(lambda: (thread := observe(pid)).state == "S" and thread.waits_in("poll"), "the wait for the worker")
    (worker,) = children(pid)
    wait_for(lambda: still(worker).waits_in("futex"), "the deadlock of the worker")
    assert fthang.beats.slot()["magic"] == 0  # without ftrun no hook sees the optimizer
    fthang.kill()


@pytest.mark.slow
def test_a_kind_in_a_worker(fthang: Runner) -> None:
    pid = fthang.begin("deadlock", "--torch", "--workers", "2", "--in-worker", line="hanging: deadlock")
    wait_for(lambda: (thread := observe(pid)).state == "S" and thread.waits_in("poll"), "the wait for the worker")
    wait_for(lambda: any(still(worker).waits_in("futex") for worker in children(pid)), "the deadlock of a worker")
    assert fthang.lines()[-2].startswith("step 3 ")
    fthang.kill()


@pytest.mark.slow  # PyTorch is imported for each
@pytest.mark.parametrize("kind", ["gil", "nfs-like", "stop"])
def test_a_worker_whose_threads_all_stand_still_has_sent_the_batches_before(fthang: Runner, kind: str) -> None:
    fthang.begin(kind, "--torch", "--workers", "2", "--in-worker", line=f"hanging: {kind}")
    assert fthang.lines()[-2].startswith("step 3 ")
    fthang.kill()


@pytest.mark.slow
def test_the_ranks_of_a_launcher_train_together_and_the_last_one_is_disturbed(fthang: Runner) -> None:
    launcher = str(Path(sys.executable).parent / "torchrun")
    words = [launcher, "--standalone", "--nproc-per-node", "2", str(HOUSE / "bin" / "fthang"), "sleep", "--torch"]
    words += [*FAST, "--times", "0", "--checkpoint-dir", str(fthang.checkpoints)]
    done = subprocess.run(words, cwd=fthang.folder, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert is_trained(fthang)
    assert done.stdout.count("finished at step 12") == 2


@pytest.mark.slow
def test_long_compile_compiles(fthang: Runner) -> None:
    pid = fthang.begin("long-compile", "3s", "--torch", line="long-compile for 3 s", path=AUTO)
    before, output = observe(pid), fthang.lines()
    wait_for(lambda: observe(pid).cpu > before.cpu + 50, "CPU use")
    assert fthang.lines() == output
    assert fthang.started[0].wait(90) == 0
    assert is_trained(fthang)
    assert fthang.beats.slot()["step"] == 12
