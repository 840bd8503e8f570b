"""What `fthang` does with PyTorch: the kinds that need it, and `--torch`, which only automatic beats see."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.workload.training import BEGINNING, Plain, newest
from support.beat_file import HOUSE
from support.runs import wait_for
from support.workload import Runner, children, look, read_and_written, runner, still

AUTO = str(HOUSE / "hooks" / "ftrun_hooks" / "auto")  # as ftrun does for automatic beats

pytestmark = pytest.mark.torch


@pytest.fixture
def fthang(tmp_path: Path) -> Iterator[Runner]:
    yield from runner(tmp_path)


def trained(fthang: Runner) -> bool:
    """As without PyTorch, but for the last digits."""
    *_, plain = Plain(BEGINNING).epoch(range(1, 13))
    found = newest(fthang.checkpoints)
    assert found is not None
    return found.step == 12 and found.weights == pytest.approx(plain.weights, abs=1e-12)


def test_its_steps_are_seen_by_themselves_also_after_a_restart(fthang: Runner) -> None:
    assert fthang.run("crash", "7", "--no-hooks") == 7
    assert fthang.run("crash", "7", "--torch", start=2, path=AUTO) == 0
    assert fthang.lines()[0].endswith("resumed at step 2")
    slot = fthang.beats.slot()
    assert (slot["step"], slot["checkpoint_step"], slot["flags"]) == (12, 0, 1)
    assert trained(fthang)


def test_without_pytorch_it_says_so(fthang: Runner) -> None:
    (fthang.folder / "torch.py").write_text("raise ImportError")
    for words in (["collective"], ["dataloader"], ["none", "--torch"]):
        assert fthang.run(*words, path=str(fthang.folder)) == 77
        assert fthang.lines() == ["fthang: this needs PyTorch: pip install 'ftrun[torch]'"]
    assert not fthang.checkpoints.exists()


def test_collective(fthang: Runner) -> None:
    pid = fthang.begin("collective", line="hanging: collective")
    seen = still(pid)
    assert seen.state == "S"
    assert "futex" in seen.wchan or seen.wchan == "0"
    (peer,) = children(pid)
    assert "futex" in still(peer).wchan or still(peer).wchan == "0"
    ranks = fthang.beats.slot(0), fthang.beats.slot(1)
    assert [rank["pid"] for rank in ranks] == [pid, peer]
    assert [rank["step"] for rank in ranks] == [4, 4]
    fthang.kill()


@pytest.mark.slow
def test_collective_ends_well(fthang: Runner) -> None:
    assert fthang.run("collective", "--torch", start=2, path=AUTO) == 0
    assert trained(fthang)
    assert [fthang.beats.slot(rank)["step"] for rank in (0, 1)] == [12, 12]
    assert [fthang.beats.slot(rank)["flags"] for rank in (0, 1)] == [1, 1]


def test_dataloader(fthang: Runner) -> None:
    pid = fthang.begin("dataloader", "--torch", line="hanging: dataloader")
    seen = still(pid)
    assert seen.state == "S"
    assert "poll" in seen.wchan or seen.wchan == "0"
    (worker,) = children(pid)
    assert "futex" in still(worker).wchan or still(worker).wchan == "0"
    assert fthang.beats.slot()["magic"] == 0  # nobody sees the optimizer here
    fthang.kill()


@pytest.mark.slow
def test_dataloader_ends_well(fthang: Runner) -> None:
    assert fthang.run("dataloader", start=2) == 0
    assert trained(fthang)
    assert fthang.beats.slot()["checkpoint_step"] == 13


def test_long_eval_comes_between_two_epochs(fthang: Runner) -> None:
    pid = fthang.begin("long-eval", "60s", "--torch", line="long-eval for 60 s", path=AUTO)
    assert [name for name, *_ in fthang.beats.sections()] == ["between epochs"]
    before = look(pid)
    wait_for(lambda: look(pid).cpu > before.cpu + 20 and look(pid).switches <= before.switches + 1)
    fthang.kill()


def test_long_checkpoint_is_a_save_of_pytorch(fthang: Runner) -> None:
    pid = fthang.begin("long-checkpoint", "60s", "--torch", line="long-checkpoint for 60 s", path=AUTO)
    wait_for(lambda: [name for name, *_ in fthang.beats.sections()] == ["torch.save"])
    _, written = read_and_written(pid)
    wait_for(lambda: read_and_written(pid)[1] > written + 2**20)
    fthang.kill()


@pytest.mark.slow
def test_long_compile_compiles(fthang: Runner) -> None:
    pid = fthang.begin("long-compile", "3s", "--torch", line="long-compile for 3 s", path=AUTO)
    before, output = look(pid), fthang.lines()
    wait_for(lambda: look(pid).cpu > before.cpu + 50)
    assert fthang.lines() == output
    assert fthang.started[0].wait(60) == 0
    assert trained(fthang)
    assert fthang.beats.slot()["step"] == 12
