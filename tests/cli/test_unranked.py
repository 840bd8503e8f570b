"""Several processes without RANK that all step, as `multiprocessing` starts them."""

import sys
from pathlib import Path

import pytest

from support.runs import Runs, python
from support.runs import runs as runs

# The parent has stepped once and joins; forked, so that each child is this text again.
HOGWILD = """
import multiprocessing, time
def work(number):
    for step in range(20 * (number + 1) if {uneven} else 10_000):
        ft.beat(step)
        if {hangs} and number == 1 and step == 5:
            time.sleep(600)
        time.sleep(0.05)
ft.beat(0)
children = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(3)]
for child in children:
    child.start()
if {hangs}:
    print("hangs", children[1].pid, flush=True)
for child in children:
    child.join()
ft.beat(1)
"""


def test_hung_process_among_others_is_named(runs: Runs) -> None:
    code = HOGWILD.format(uneven=False, hangs=True)
    run = runs.run("--hang-timeout", "2s", "--max-restarts", "0", *python(code))
    assert run.process.returncode == 195, run.log()
    (hang,) = run.named("hang")
    assert (hang["rank"], hang["step"], hang["rule"]) == (-1 - hang["pid"], 5, "step")
    assert f"process {hang['pid']} (no RANK) stopped at step 5" in run.log()
    assert run.named("problem") == []


def test_uneven_work_and_a_joining_parent_are_no_hang(runs: Runs) -> None:
    """The last child works for longer than the limit after the first has ended."""
    run = runs.run("--hang-timeout", "2s", "--max-restarts", "0", *python(HOGWILD.format(uneven=True, hangs=False)))
    assert run.process.returncode == 0, run.log()
    assert run.named("suspect") + run.named("hang") + run.named("problem") == []


# Hogwild of torch.multiprocessing, which tells nothing: the beats of its workers are automatic.
TORCH = """
import sys, threading, time, torch
torch.set_num_threads(1)
def work(number, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10_000):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if number == 1 and step == 5:
            lock = threading.Lock()
            with lock, lock: pass
        time.sleep(0.05)
if __name__ == "__main__":
    model = torch.nn.Linear(4, 1).share_memory()
    torch.multiprocessing.spawn(work, args=(model,), nprocs=3)
"""


@pytest.mark.slow
@pytest.mark.torch
def test_hung_process_of_torch_multiprocessing_is_named(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TORCH)
    run = runs.run("--hang-timeout", "4s", "--max-restarts", "0", sys.executable, str(tmp_path / "train.py"))
    assert run.process.returncode == 195, run.log()
    (hang,) = run.named("hang")
    assert hang["rank"] == -1 - hang["pid"]
    assert "train.py:12 work" in hang["why"]
    assert f"process {hang['pid']} (no RANK) stopped at step" in run.log()
