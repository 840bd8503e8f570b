"""torchrun on two hosts, each under an ftrun: a rendezvous or a port of an earlier epoch does not stop the next."""

import sys
from collections.abc import Callable

import pytest

from support.group_runs import TRAIN, WORK, Group
from support.hosts import Hosts

pytestmark = pytest.mark.torch
Make = Callable[[int], Hosts]

# As an operator starts it on each node; HOST_ADDR is its own address.
TORCHRUN = f"""
exec {sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 \
    --rdzv-backend c10d --rdzv-endpoint host-0:29400 --rdzv-id job --local-addr $HOST_ADDR --max-restarts 0 \
"""
# In the first epoch node 1 fails during the rendezvous, and leaves a connection to its port.
HALFWAY = """
if [ "$RANK,$FTRUN_EPOCH" = 1,1 ]; then
    until exec 3<>/dev/tcp/host-0/29400; do sleep 0.1; done 2>/dev/null
    exit 1
fi
"""


def begun(here: Hosts, script: str, *arguments: str) -> Group:
    options = ("--hang-timeout", "10s", "--start-timeout", "60s")
    group = Group(here, *arguments, program=["bash", "-c", script, "bash"], options=options)
    group.begin()
    return group


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hang", "crash"])
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_recovers(hosts: Make, kind: str, rank: int) -> None:
    script = f'{TORCHRUN} {TRAIN[-1]} "$@"'
    group = begun(hosts(2), script, "--steps", "60", "--failure", f"{kind}:{rank}:20")
    group.must_end(0, epochs=[1, 2], timeout=180)
    assert {line["step"] for line in group.book.named("resumed", epoch=2)} == {15}


@pytest.mark.slow  # in the gate tests/net/test_group_recovery.py has commands without PyTorch in its place
def test_torchrun_starts_again_after_an_incomplete_rendezvous(hosts: Make) -> None:
    group = begun(hosts(2), f'{HALFWAY} {TORCHRUN} {WORK[-1]} "$@"', "--steps", "5")
    group.until_started(2, timeout=180)
    group.until_step(5)  # the end takes torchrun some seconds more; `test_torchrun_recovers` waits for it
    assert group.book.epochs == [2], group.log()
    assert not list(group.book.wrong()), group.log()
