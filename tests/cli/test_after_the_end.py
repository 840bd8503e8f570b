"""End to end: a process that hangs after it has trained to its end is a hang, and restarted at most once."""

from typing import Final

import pytest

from cli.test_failing import program
from support.runs import Runs

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
    "executor": "import queue, concurrent.futures as futures\n"
    "futures.ThreadPoolExecutor(1).submit(queue.Queue().get)\n"
    "for step in range(5): ft.beat(step)\n",
}


@pytest.mark.parametrize("hang", HANGS)
def test_a_hang_after_the_end_is_restarted_once_and_ends_with_95(runs: Runs, hang: str) -> None:
    run = runs.run("--hang-timeout", "2s", "--grace", "off", *program(runs, HANGS[hang]))
    assert run.wait() == 95, run.log()
    assert [(r["rule"], r["rank"]) for r in run.named("hang")] == [("step", 0)] * 2
    assert [r["reason"] for r in run.named("restart")] == ["hang"]
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("shutdown-hang", 95)
    assert "after the training had reached its end" in runs.verdict["message"]
    assert "the same happened before the last restart" in runs.verdict["message"]


def test_without_an_option_a_hang_after_the_end_is_proved(runs: Runs) -> None:
    code = "if ft.attempt().is_restart: sys.exit(0)\n" + HANGS["thread"]
    run = runs.run("--grace", "off", *program(runs, code))
    assert run.wait() == 0, run.log()
    (hang,) = run.named("hang")
    assert (hang["rule"], hang["rank"]) == ("deadlock", 0)
    assert "thread 'uploader'" in str(hang["mechanism"])


def test_training_in_another_thread_goes_on_after_the_main_thread(runs: Runs) -> None:
    """It has not reached its end, so that its hang has the usual restarts."""
    code = (
        "import itertools, threading\n"
        "def train():\n"
        "    for step in itertools.count():\n"
        "        ft.beat(step)\n"
        "        if step >= 50 and not threading.main_thread().is_alive(): break\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=train).start()\n"
    )
    run = runs.run("--hang-timeout", "2s", "--grace", "off", *program(runs, code))
    assert run.wait() == 195, run.log()
    assert len(run.named("restart")) == 3


def test_an_uncaught_exception_is_no_end_of_the_training(runs: Runs) -> None:
    code = HANGS["executor"] + "raise ValueError('odd')\n"
    run = runs.run("--hang-timeout", "2s", "--grace", "off", "--max-restarts", "1", *program(runs, code))
    assert run.wait() == 195, run.log()
    assert "reached its end" not in run.log()
