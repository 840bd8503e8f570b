"""End to end: of several ranks the one that died first is named, also where it left no exception: real launchers."""

import sys

import pytest

from support.ports import free_port
from support.runs import Run, Runs
from support.short import quick

RANK = """
import os, sys, time
import torch, torch.distributed as dist
def work(number):
    dist.init_process_group("gloo")
    for step in range(1000):
        dist.all_reduce(torch.ones(1))
        if number == 1 and step == 3:
            {death}
"""
TORCHRUN = RANK + "work(int(os.environ['RANK']))\n"
SPAWN = """
def begin(number, port):
    os.environ |= dict(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    work(number)
if __name__ == "__main__":
    import torch.multiprocessing as mp
    mp.start_processes(begin, ({port},), 2, start_method="{method}")
"""
DEATHS = {
    "SIGSEGV": ("os.kill(os.getpid(), 11)", "rank 1: signal 11 (SIGSEGV) ended process"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", "rank 1: signal 9 (SIGKILL) ended process"),
    "os._exit": ("os._exit(3)", "rank 1: exit code 3 of process"),
}


def program(runs: Runs, code: str, death: str, method: str = "") -> str:
    path = runs.folder / "train.py"
    given = {"{death}": DEATHS[death][0], "{method}": method, "{port}": str(free_port())}
    for name, value in given.items():
        code = code.replace(name, value)
    path.write_text(code)
    return str(path)


def why(run: Run) -> str:
    (exited,) = run.named("exited")
    return str(exited["why"])


SLOW = pytest.mark.slow


@pytest.mark.torch
@SLOW
@pytest.mark.parametrize("death", DEATHS)
def test_first_rank_that_died_under_torchrun_is_named(runs: Runs, death: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = runs.ends(1, *torchrun, program(runs, TORCHRUN, death), OMP_NUM_THREADS="1")
    assert DEATHS[death][1] in why(run)
    assert "reset by peer" not in why(run).lower()


@SLOW
@pytest.mark.torch
@pytest.mark.parametrize(("death", "method"), [("os._exit", "fork"), ("SIGSEGV", "spawn")])
def test_first_rank_that_died_under_torch_multiprocessing_is_named(runs: Runs, death: str, method: str) -> None:
    run = runs.ends(1, sys.executable, program(runs, RANK + SPAWN, death, method), OMP_NUM_THREADS="1")
    assert DEATHS[death][1] in why(run)


LEFT = """
import os, sys, time
import ftrun_hooks as ft
for step in range(8):
    ft.beat(step)
    time.sleep(0.02)
if os.environ["RANK"] == "1":
    {end}
while os.path.exists(f"/proc/{open(sys.argv[1]).read()}" if os.path.exists(sys.argv[1]) else "/proc/self"):
    time.sleep(0.02)
raise {error}
"""
MARKED = "open(sys.argv[1] + '.new', 'w').write(str(os.getpid())); os.rename(sys.argv[1] + '.new', sys.argv[1]); "
LOST = "ConnectionResetError(104, 'Connection reset by peer')"


@pytest.mark.parametrize("end", quick(["sys.exit(0)", "os._exit(0)"]))
def test_a_rank_that_left_early_is_the_cause_of_what_the_others_die_of(runs: Runs, end: str) -> None:
    path = runs.folder / "train.py"
    path.write_text(LEFT.replace("{end}", MARKED + end).replace("{error}", LOST))
    run = runs.ends(1, "--nproc-per-node", "2", sys.executable, str(path), str(runs.folder / "left"))
    left = "rank 1 left with 0 at step 7 before the others; "
    lost = "rank 0: ConnectionResetError: [Errno 104] Connection reset by peer (train.py:"
    (ended,) = run.named("ended")
    for reason, follows in (ended["why"], f"later rank 0 exited with 1: {lost}"), (why(run), f"later {lost}"):
        assert reason.startswith(left)
        assert follows in reason
    assert f"[ftrun] {left}" in run.stderr
    for verb in ("status", "report"):
        shown = run.ftctl(verb).stdout
        assert left in shown, verb


def test_a_rank_that_left_early_explains_no_error_of_another_ones_own(runs: Runs) -> None:
    path = runs.folder / "train.py"
    path.write_text(LEFT.replace("{end}", MARKED + "sys.exit(0)").replace("{error}", "KeyError('lr')"))
    run = runs.run("--nproc-per-node", "2", sys.executable, str(path), str(runs.folder / "left"))
    assert why(run).startswith("rank 0: KeyError: 'lr'")
