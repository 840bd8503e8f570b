"""A restart for which there are no processes at the moment: the limit of the container, or of the user, is reached."""

import os
import signal

from support.runs import Runs, patched

# The first start succeeds, and of the next forks of the command so many fail as the kernel lets them fail.
LACKING = """
import errno, os
from ftrun.pid1 import launching
launching.AGAIN, launching.TRYING = 0.02, {seconds}
start, calls = launching.Launcher._start_cold, []
def lacking(self, *given):
    calls.append(given)
    if 1 < len(calls) <= 1 + {times}: raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return start(self, *given)
launching.Launcher._start_cold = lacking
"""
RESTARTS = ("--restart-on", "failure", "--backoff", "1ms", "--max-restarts", "1")
SAID = "cannot start a process: [Errno 11] Resource temporarily unavailable; trying again for"


def test_a_restart_waits_for_a_process(runs: Runs) -> None:
    program = patched(LACKING.format(seconds=60, times=3))
    run = runs.ends(93, *RESTARTS, "sh", "-c", "echo $MA_PROC_START_CNT; exit 3", program=program)
    assert run.stdout == "1\n2\n"
    assert run.stderr.count(f"{SAID} 60s") == 1
    assert f"{SAID} 60s" in (run.run_dir / "run.log").read_text()


def test_a_restart_that_gets_no_process_in_time_is_an_internal_error(runs: Runs) -> None:
    run = runs.ends(125, *RESTARTS, "sh", "-c", "exit 3", program=patched(LACKING.format(seconds=0.2, times=10**6)))
    assert run.stderr.count(SAID) == 1
    assert runs.verdict["message"] == "cannot start a process: [Errno 11] Resource temporarily unavailable"


def test_a_restart_that_gets_no_process_can_be_stopped(runs: Runs) -> None:
    run = runs.start(*RESTARTS, "sh", "-c", "exit 3", program=patched(LACKING.format(seconds=3600, times=10**6)))
    run.until("restart")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143, run.log()
    assert run.records[-1]["verdict"] == "stopped"


def test_a_first_start_fails_at_once_as_without_ftrun(runs: Runs) -> None:
    lacking = LACKING.format(seconds=3600, times=10**6).replace("1 < len(calls)", "0 < len(calls)")
    run = runs.ends(125, "true", program=patched(lacking))
    assert "trying again" not in run.stderr
