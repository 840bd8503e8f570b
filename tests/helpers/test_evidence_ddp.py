"""Two ranks of real DistributedDataParallel, of which one hangs: the evidence names it."""

import os
import signal
from pathlib import Path

import pytest

from support.evidence_job import Job, ask, needs_spy, rank
from support.evidence_job import job as job
from support.runs import state_of, wait_for

pytestmark = [needs_spy, pytest.mark.torch]

# Rank 1 waits for its own lock, and rank 0 for it in the all-reduce of its backward pass.
TRAIN = """
import os, sys, threading
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
torch.set_num_threads(1)
rank = int(os.environ['RANK'])
def stuck():
    lock = threading.Lock()
    with lock, lock: pass
dist.init_process_group('gloo', init_method='file://' + sys.argv[1], rank=rank, world_size=2)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(1000):
    optimizer.zero_grad()
    loss = model(torch.ones(1, 4)).sum()
    if step == 20:
        print('ready', flush=True)
        if rank == 1:
            stuck()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow  # in the gate tests/helpers/test_evidence_recorder.py has a rank that waits for another one
def test_a_backward_pass_waits_for_the_rank_that_hangs(job: Job, tmp_path: Path) -> None:
    # Not `start`, which waits for the first line of each: they meet before it.
    first = job.begin(TRAIN, str(tmp_path / "store"), RANK="0", LOCAL_WORLD_SIZE="2", WORLD_SIZE="2")
    other = job.start(TRAIN, str(tmp_path / "store"), RANK="1", LOCAL_WORLD_SIZE="2", WORLD_SIZE="2")
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
