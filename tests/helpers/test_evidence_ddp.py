"""Two ranks of real DistributedDataParallel, of which one hangs: evidence and verdict name it."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from support.evidence_job import Job, ask, needs_spy, rank
from support.evidence_job import job as job
from support.runs import Runs, state_of, wait_for
from support.runs import runs as runs

pytestmark = [needs_spy, pytest.mark.torch]

# The other rank waits for it in the all-reduce of its backward pass.  `how`: it is stopped, waits for its own lock,
# or the worker of its DataLoader is stopped.
TRAIN = """
import os, signal, sys, threading
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
how, hung, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
torch.set_num_threads(1)
rank = int(os.environ['RANK'])
def stuck():
    lock = threading.Lock()
    with lock, lock: pass
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, number):
        if how == 'worker' and rank == hung and number == 30:
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.ones(1, 4)
if __name__ == '__main__':
    dist.init_process_group('gloo', init_method='file://' + store, rank=rank, world_size=int(os.environ['WORLD_SIZE']))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(Data(), batch_size=None, num_workers=int(how == 'worker'))
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = model(batch).sum()
        if step == 20:
            print('ready', flush=True)
            if rank == hung and how == 'stop':
                os.kill(os.getpid(), signal.SIGSTOP)
            if rank == hung and how == 'lock':
                stuck()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow  # in the gate tests/helpers/test_evidence_recorder.py has a rank that waits for another one
def test_a_backward_pass_waits_for_the_rank_that_hangs(job: Job, tmp_path: Path) -> None:
    arguments = ("lock", "1", str(tmp_path / "store"))
    # Not `start`, which waits for the first line of each: they meet before it.
    first = job.begin(TRAIN, *arguments, RANK="0", LOCAL_WORLD_SIZE="2", WORLD_SIZE="2")
    other = job.start(TRAIN, *arguments, RANK="1", LOCAL_WORLD_SIZE="2", WORLD_SIZE="2")
    wait_for(lambda: state_of(first) == state_of(other) == "S", "the hang")
    both = [rank(0, first), rank(1, other)]

    def waits() -> str:
        """The reason, once the first rank waits in the all-reduce."""
        answer = ask(job, ranks=both)
        why = str(answer.result["why"])
        return why if answer.result["cleared"] is None and "_engine_run_backward" in why else ""

    assert wait_for(waits, "the backward pass").startswith("it waits for rank 1, at <string>:")
    os.kill(other, signal.SIGSTOP)
    wait_for(lambda: state_of(other) == "T", "stop")
    assert wait_for(waits, "the backward pass").startswith("rank 1 is stopped by SIGSTOP, at <string>:")


@pytest.mark.slow
@pytest.mark.parametrize("hung", [0, 1])
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("stop", "rank {hung} is stopped by SIGSTOP"),
        ("lock", "train.py:"),
        ("worker", "(pt_data_worker) is stopped by SIGSTOP, at train.py:"),
    ],
)
def test_the_verdict_names_it_under_torchrun(runs: Runs, tmp_path: Path, how: str, expected: str, hung: int) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    torchrun += ["--master-port", str(port), str(tmp_path / "train.py"), how, str(hung), str(tmp_path / "store")]
    run = runs.run("--hang-timeout", "3s", "--max-restarts", "0", "--grace", "1s", sys.executable, *torchrun)
    assert run.process.returncode == 195, run.log()
    (found,) = run.named("hang")
    assert expected.format(hung=hung) in found["why"], run.log()
    # Whichever of both was silent for longer: the verdict is about that rank, or says that it waits for that rank.
    assert found["rank"] == hung or f"rank {hung}" in found["why"] or how == "worker", run.log()


@pytest.mark.slow  # in the gate tests/waitproof/test_blame_in_backward.py has the same as values
def test_of_three_ranks_the_one_in_no_backward_pass_is_blamed(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    options = ("--nproc-per-node", "3", "--standby", "off", "--max-restarts", "0", "--grace", "1s")
    program = (sys.executable, str(tmp_path / "train.py"), "lock", "2", str(tmp_path / "store"))
    run = runs.run(*options, "--", *program)
    assert run.process.returncode == 195, run.log()
    (found,) = run.named("hang")
    assert (found["rule"], found["rank"]) == ("deadlock", 2), run.log()
    assert "rank 2 (process " in found["mechanism"], run.log()
    assert "waits for a lock at train.py:" in found["mechanism"], run.log()
    assert "each of which needs" not in found["mechanism"], run.log()
