"""End to end: a process that hangs after it has trained to its end is a hang, and restarted at most once."""

import sys
from typing import Final

import pytest

from cli.test_failing import program
from support.runs import Runs
from support.short import quick

# In each of them the restart may have nothing left to train.
HANGS: Final = {
    "destructor": "import os\n"
    "class Uploader:\n"
    "    def __init__(self): self.ends, self.read = os.pipe(), os.read\n"
    "    def __del__(self): self.read(self.ends[0], 1)\n"
    "uploader = Uploader()\n"
    "for step in range(5): ft.beat(step)\n",
    "thread": "import queue, threading\n"
    "threading.Thread(target=queue.Queue().get, name='uploader').start()\n"
    "for step in range(0 if ft.attempt().is_restart else 5): ft.beat(step)\n",
    "thread-after-done": "import queue, threading\n"
    "threading.Thread(target=queue.Queue().get, name='uploader').start()\n"
    "for step in range(5): ft.beat(step)\n"
    "ft.done()\n",
    "failed-exit": "import queue, threading\n"  # Python keeps the status to itself until the threads have ended
    "threading.Thread(target=queue.Queue().get, name='uploader').start()\n"
    "for step in range(5): ft.beat(step)\n"
    "sys.exit(1)\n",
    "executor": "import queue, concurrent.futures as futures\n"
    "futures.ThreadPoolExecutor(1).submit(queue.Queue().get)\n"
    "for step in range(5): ft.beat(step)\n",
}


@pytest.mark.parametrize("hang", quick(HANGS, ("thread",)))
def test_a_hang_after_the_end_is_restarted_once_and_ends_with_95(runs: Runs, hang: str) -> None:
    run = runs.ends(95, "--hang-timeout", "2s", "--grace", "off", *program(runs, HANGS[hang]))
    assert [(r["rule"], r["rank"]) for r in run.named("hang")] == [("step", 0)] * 2
    assert [r["reason"] for r in run.named("restart")] == ["hang"]
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("shutdown-hang", 95)
    assert "after the training had reached its end or its exit" in runs.verdict["message"]
    assert "the same happened before the last restart" in runs.verdict["message"]


def test_without_an_option_a_hang_after_the_end_is_proved(runs: Runs) -> None:
    code = "if ft.attempt().is_restart: sys.exit(0)\n" + HANGS["thread"]
    run = runs.ends(0, "--grace", "off", *program(runs, code))
    (hang,) = run.named("hang")
    assert (hang["rule"], hang["rank"]) == ("deadlock", 0)
    assert "thread 'uploader'" in str(hang["mechanism"])
    assert "_beat.py" not in f"{hang['mechanism']} {hang['why']}", "ftrun's own call is no place in the program"


# gloo's threads live on, since what DDP imports keeps the group, and listen for the other rank.
DDP: Final = """
import os, sys, threading, torch, torch.distributed as dist
if os.environ["MA_PROC_START_CNT"] != "1": sys.exit(0)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
if os.environ["RANK"] == "1":
    threading.Thread(target=threading.Event().wait, name="logger").start()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_rank_that_hangs_at_its_end_after_the_others_have_ended_is_proved(runs: Runs) -> None:
    (runs.folder / "train.py").write_text(DDP)
    run = runs.start("--nproc-per-node", "2", "--grace", "off", sys.executable, str(runs.folder / "train.py"))
    hang = run.until("hang")
    assert (hang["rule"], hang["rank"]) == ("deadlock", 1)
    assert "thread 'logger' waits for a condition" in hang["mechanism"]
    assert run.wait() == 0, run.log()


def test_training_in_another_thread_goes_on_after_the_main_thread(runs: Runs) -> None:
    code = (
        "import threading\n"
        "def train():\n"
        "    for step in range(50): ft.beat(step)\n"
        "    threading.main_thread().join()\n"
        "    for step in range(50, 100): ft.beat(step)\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=train).start()\n"
    )
    runs.ends(195, "--hang-timeout", "2s", "--grace", "off", "--max-restarts", "1", *program(runs, code))


def test_an_uncaught_exception_is_no_end_of_the_training(runs: Runs) -> None:
    code = HANGS["executor"] + "raise ValueError('odd')\n"
    run = runs.ends(195, "--hang-timeout", "2s", "--grace", "off", "--max-restarts", "1", *program(runs, code))
    assert "reached its end" not in run.log()


STORE: Final = """
import torch.distributed as dist
if ft.attempt().is_restart: sys.exit(0)
dist.init_process_group("gloo")
for step in range(20): ft.beat(step); time.sleep(0.05)
dist.barrier()
if dist.get_rank() == 1: os._exit(0)
dist.distributed_c10d._get_default_store().wait(["never"])
"""


@pytest.mark.slow
@pytest.mark.torch
def test_a_rank_that_waits_in_the_store_for_one_that_has_left_is_proved(runs: Runs) -> None:
    """The one that left said nothing: that it ended with 0 says that it is done."""
    run = runs.run("--nproc-per-node", "2", "--grace", "off", *program(runs, "import os, time\n" + STORE))
    assert run.wait(180) == 0, run.log()
    (hang,) = run.named("hang")
    assert (hang["rule"], hang["rank"]) == ("deadlock", 0)
    assert "waits for a reply from 127.0.0.1:" in str(hang["mechanism"])
