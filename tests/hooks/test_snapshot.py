"""`run.keep`: snapshots in shared memory that a kill cannot tear."""

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.core.ranks import shared
from ftrun.core.ranks.rounds import restores
from ftrun.core.ranks.table import HeldSnapshot, RankMember
from ftrun_hooks import _snapshot
from ftrun_hooks._snapshot import Damaged, Snapshots, kept_step
from support.runs import HOUSE, wait_for

SIZE = 1 << 20

WRITER = f"""
import sys
from ftrun_hooks._snapshot import Snapshots
snapshots = Snapshots(sys.argv[1], 0)
step = 0
while True:
    step += 1
    snapshots.keep(step, "", {{"state": bytes([step % 251]) * {SIZE}}})
"""


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(str(tmp_path / "snapshots"), 0)


def test_values_come_back_as_they_were(snapshots: Snapshots) -> None:
    state = {
        "bytes": b"\0\xff" * 1000,
        "nested": {0: [1, 2.5, None, True, "é"], "pair": (float("inf"), b""), (1, 2): {}},
        "other": {1, 2, 3},
    }
    assert snapshots.keep(7, "all", state)
    assert snapshots.held() == [(7, "all")]
    other = Snapshots(snapshots.folder, 1)
    assert other.held() == []
    target = bytearray(2000)
    rest = other.load(7, 0, {"bytes": target})
    assert target == state["bytes"]
    assert rest == {"nested": state["nested"], "other": state["other"]}
    with pytest.raises(Damaged):
        other.load(8, 0, {})
    with pytest.raises(Damaged, match="model"):
        other.load(7, 0, {"model": bytearray()})


def test_the_newest_two_are_kept_and_those_of_an_ended_round_given_up(snapshots: Snapshots) -> None:
    for step in range(5):
        snapshots.keep(step, "", {"state": b"%d" % step})
    assert snapshots.held() == [(3, ""), (4, "")]
    snapshots.forget(but=3)
    assert snapshots.held() == [(3, "")]
    snapshots.keep(4, "", {"state": b"4 again"})
    assert snapshots.held() == [(3, ""), (4, "")], "other ranks may still read the step with which the round began"
    assert snapshots.load(4, 0, {}) == {"state": b"4 again"}
    snapshots.forget()
    assert snapshots.held() == []


def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_snapshot(tmp_path: Path) -> None:
    folder, chance = str(tmp_path / "snapshots"), random.Random(18)
    newest = 0
    for _ in range(15):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, folder], env={**os.environ, "PYTHONPATH": str(HOUSE / "hooks")}
        )
        try:
            wait_for(lambda: [step for step, _ in Snapshots(folder, 0).held() if step > 3], "the first snapshots")
            for _ in range(chance.randrange(20_000)):  # let it write on for a moment
                pass
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        found = Snapshots(folder, 0).held()
        assert found, "one of the two files is whole at any moment"
        for step, _ in found:
            assert Snapshots(folder, 0).load(step, 0, {}) == {"state": bytes([step % 251]) * SIZE}
        newest = max(newest, found[-1][0])
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
    assert newest > 3


def test_without_space_it_says_so_once_and_goes_on(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert snapshots.keep(1, "", {"state": b"small"})

    def full(file: int, begin: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert snapshots.keep(2, "", {"state": bytes(SIZE)}) is False
    assert snapshots.keep(3, "", {"state": b""}) is False
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "two snapshots of 1.0 MiB for each rank do not fit into" in said[0]
    assert "begin with the checkpoint" in said[0]
    assert os.listdir(snapshots.folder) == []
    assert snapshots.held() == []


def test_a_snapshot_that_is_lent_stays_until_it_is_released(snapshots: Snapshots) -> None:
    for step in (4, 5):
        snapshots.keep(step, "all", {"state": b"%d" % step})
    snapshots.forget(but=5)
    snapshots.lend(5)
    for step in (5, 6, 7):  # the step with which the round began once more, too
        snapshots.keep(step, "all", {"state": b"new %d" % step})
    assert Snapshots(snapshots.folder, 1).load(5, 0, {}) == {"state": b"5"}
    assert [(kept_step(number), shard) for number, shard in snapshots.held()] == [(5, "all"), (7, "all")]
    snapshots.release()
    for step in (8, 9):
        snapshots.keep(step, "all", {"state": b""})
    assert [(kept_step(number), shard) for number, shard in snapshots.held()] == [(8, "all"), (9, "all")]


def test_a_snapshot_that_is_lent_outlives_a_lack_of_space(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.keep(5, "all", {"state": b"5"})
    snapshots.lend(5)

    def full(file: int, begin: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert snapshots.keep(6, "all", {"state": bytes(SIZE)}) is False
    assert Snapshots(snapshots.folder, 1).load(5, 0, {}) == {"state": b"5"}
    assert snapshots.held() == []
    snapshots.forget()
    assert os.listdir(snapshots.folder) == []


def test_the_core_and_the_hooks_read_a_number_alike() -> None:
    assert (shared.AGAIN, shared.BACK) == (_snapshot.AGAIN, _snapshot.BACK)


@pytest.mark.parametrize(
    "steps", ["1 2 2 3 4", "1 2 2 2 3", "1 2 1 2 3", "1 2 3 2 3", "1 1 1 1", "1 2 1 2 1", "3 1 1 3"]
)
def test_ranks_begin_with_the_same_state_where_steps_come_again_or_go_back(tmp_path: Path, steps: str) -> None:
    """Rank 0 has kept as many snapshots as rank 1, or one more, as when that dies.  All begin with the last one of rank
    1."""
    for last, behind in itertools.product(range(1, len(steps.split())), (0, 1)):
        ranks = [Snapshots(str(tmp_path / f"{last}-{behind}"), rank) for rank in range(2)]
        for rank, snapshots in enumerate(ranks):
            snapshots.forget(but=7)  # a round that began with step 7
            for count, step in enumerate(steps.split()[: last + 1 - rank * behind]):
                snapshots.keep(int(step), "", {"kept": count})
        members = [RankMember(n, n, held=tuple(HeldSnapshot(*one) for one in ranks[n].held())) for n in range(2)]
        plan = restores(members)
        begun = [ranks[n].load(plan[n].step, n, {})["kept"] for n in range(2)]
        assert begun == [last - behind] * 2, f"{steps}: {members}"


@pytest.mark.parametrize("step", [-1, 1.0, True, "1", 1 << 40])
def test_a_step_that_is_none_is_refused(snapshots: Snapshots, step: object) -> None:
    with pytest.raises(ValueError, match="step"):
        snapshots.keep(step, "", {})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.torch
def test_tensors_models_and_optimizers_are_copied(snapshots: Snapshots) -> None:
    import torch

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(5, 3)
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = made()
    model(torch.rand(2, 5)).sum().backward()
    optimizer.step()
    odd = {
        "transposed": torch.rand(4, 6).t(),
        "half": torch.rand(7).to(torch.bfloat16),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(True),
    }
    snapshots.keep(1, "", {"model": model, "optimizer": optimizer, "odd": odd})
    other, other_optimizer = made()
    odd_again = snapshots.load(1, 0, {"model": other, "optimizer": other_optimizer})["odd"]
    assert all(torch.equal(odd[name], odd_again[name]) and odd[name].dtype == odd_again[name].dtype for name in odd)
    snapshots.keep(2, "", {"model": torch.nn.Linear(5, 3)})
    snapshots.keep(3, "", {"model": torch.nn.Linear(5, 3)})  # overwrites the memory that was read
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        mine_state, their_state = optimizer.state[mine], other_optimizer.state[theirs]
        assert mine_state.keys() == their_state.keys()
        assert all(torch.equal(mine_state[name], their_state[name]) for name in mine_state)
