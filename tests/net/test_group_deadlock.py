"""Deadlocks over several hosts: each ftrun sees only its own ranks, and together they prove that none can go on."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ftrun.messages.group_waits import OWN_FILE
from support.hosts import Container, Hosts
from support.runs import HOUSE, wait_for

Make = Callable[[int], Hosts]
PROGRAMS = HOUSE / "tests" / "support"
LONG = 240.0  # s; PyTorch is imported on each host, on a machine that has other work
pytestmark = pytest.mark.timeout(2 * LONG)

# Nothing here looks at standbys, each of which would import PyTorch.
RANK = ("--nproc-per-node", "1", "--standby", "off")
TWO_RANKS = ("--nproc-per-node", "2", "--standby", "off")
# As an operator starts it on each node; HOST_ADDR is its own address.
TORCHRUN = (
    f"exec {sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d",
    "--rdzv-endpoint host-0:29400 --rdzv-id job --local-addr $HOST_ADDR --max-restarts 0",
)


def train(hosts: Hosts, kind: str, *options: str, **environment: str) -> tuple[list[Container], Path]:
    """One ftrun on each host, with one rank each."""
    return start(hosts, "group_gloo.py", kind, *options, **environment)


def start(
    hosts: Hosts, program: str, kind: str, *options: str, ranks: Sequence[str] = RANK, **environment: str
) -> tuple[list[Container], Path]:
    """`ranks`: the options with which ftrun starts the ranks of a node, or what starts them in its place."""
    folder = hosts.folder / "shared"
    folder.mkdir()
    launcher = [] if ranks[0].startswith("-") else ["bash", "-c", " ".join([*ranks, '"$@"']), "bash"]
    command = [*(launcher or [sys.executable]), str(PROGRAMS / program), str(folder), kind]
    for member in reversed(range(hosts.size)):
        given = [*hosts.group(member, hosts.size, wait="4m"), *(() if launcher else ranks), *options, "--"]
        hosts.start(member, *given, *command, environment={"OMP_NUM_THREADS": "1", **environment})
    return sorted(hosts.last, key=lambda run: run.rank), folder


def all_end_well(hosts: Hosts, runs: Sequence[Container]) -> None:
    wait_for(lambda: all(run.ended for run in runs), "the end of all members", LONG)
    assert [run.wait() for run in runs] == [0] * len(runs), hosts.log()


def looked(run: Container) -> tuple[str, str] | None:
    """What the last look of this member said to the others: why its ranks may go on, else its fingerprint."""
    try:
        found = json.loads((run.run_dir / OWN_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return found["why"], found["fingerprint"]


def blocked(run: Container) -> bool:
    """Whether it was looked at, and only other members may end its wait."""
    return (looked(run) or ("not yet", ""))[0] == ""


CASES = {
    "sockets": (
        "deadlock over nodes: rank 0 on host-0 waits for a reply from ",
        "rank 1 on host-1 waits for a reply from ",
    ),
    "lock": (
        "deadlock: rank 1 (process ",
        ") waits for a lock at group_gloo.py:",
        "which only its own threads can end",
    ),
    "mismatch": (
        "collective mismatch over nodes: rank 0 on host-0 waits in all_reduce at",
        "rank 1 on host-1 waits in",
    ),
    "receive": ("deadlock over nodes: rank 0 on host-0 waits in recv at", "rank 1 on host-1 waits in recv at"),
}
WITHOUT_PYTORCH = "sockets"


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[] if k == WITHOUT_PYTORCH else [pytest.mark.slow, pytest.mark.torch]) for k in CASES],
)
def test_a_deadlock_over_two_hosts_is_proved_and_ended_without_any_option(kind: str, hosts: Make) -> None:
    two = hosts(2)
    runs, folder = start(two, "group_sockets.py" if kind == WITHOUT_PYTORCH else "group_gloo.py", kind)
    all_end_well(two, runs)
    found = [(run.rank, hang) for run in runs for hang in run.named("hang")]
    assert [hang["rule"] for _, hang in found] == ["deadlock"], two.log()
    ((member, hang),) = found
    assert all(text in hang["mechanism"] for text in CASES[kind]), hang["mechanism"]
    for run in runs:  # the cause is named with its node, everywhere
        order = next(one for one in run.named("group") if one["what"] == "run" and one["epoch"] == 2)
        assert (order["cause"], order["node"], order["rank"]) == ("hang", f"host-{member}", hang["rank"])
    assert [(folder / f"ended-{rank}").read_text() for rank in (0, 1)] == ["2", "2"]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("ranks", "kind", "culprit"),
    [(TWO_RANKS, "backward", 1), (TORCHRUN, "lock", 3)],
    ids=["ranks of ftrun in a backward pass", "torchrun with c10d"],
)
def test_a_deadlock_is_proved_whose_cause_is_not_the_first_process_of_its_node(
    ranks: Sequence[str], kind: str, culprit: int, hosts: Make
) -> None:
    two = hosts(2)
    runs, _ = start(two, "group_gloo.py", kind, ranks=ranks, CULPRIT=str(culprit))
    all_end_well(two, runs)
    found = [(run.rank, hang["rule"], hang["rank"]) for run in runs for hang in run.named("hang")]
    assert found == [(culprit // 2, "deadlock", culprit)], two.log()


@pytest.mark.slow
@pytest.mark.torch
def test_a_member_that_cannot_be_reached_leaves_the_wait_of_another_one_open(hosts: Make) -> None:
    """Both stand still for ever.  As long as they cannot compare, there is no verdict; then there is."""
    two = hosts(2)
    runs, folder = train(two, "mismatch", "--peer-timeout", "10m")
    wait_for(lambda: all((folder / f"stopped-{rank}").exists() for rank in (0, 1)), "the deadlock", LONG)
    two.hosts[1].cut(silent=True)
    wait_for(lambda: all(blocked(run) for run in runs), "a look at both members", LONG)
    before = [(run.run_dir / OWN_FILE).stat().st_mtime_ns for run in runs]
    wait_for(
        lambda: all((r.run_dir / OWN_FILE).stat().st_mtime_ns > at for r, at in zip(runs, before, strict=True)),
        "another look at both",
        LONG,
    )
    assert [run.named("suspect") for run in runs] == [[], []]
    two.hosts[1].restore()
    all_end_well(two, runs)
    assert [hang["rule"] for run in runs for hang in run.named("hang")] == ["deadlock"], two.log()


# A member that moves leaves a wait open: in the gate tests/core/test_group_waits.py has that.
@pytest.mark.slow
@pytest.mark.torch
def test_a_member_that_validates_while_another_one_waits_is_no_hang(hosts: Make) -> None:
    two = hosts(2)
    runs, folder = train(two, "validate", STOP_AT="3", STEPS="23", SECONDS="40")
    wait_for(lambda: blocked(runs[1]), "a look at the member that waits", LONG)
    all_end_well(two, runs)
    assert [run.named("hang") + run.named("restart") for run in runs] == [[], []], two.log()
    assert [(folder / f"ended-{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
