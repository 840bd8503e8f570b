"""Deadlocks of a job beside servers of Python's own library, to which only processes of the job may connect."""

import pytest

from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import HEAD, closed, see
from support.runs import wait_for
from support.short import quick

pytestmark = needs_spy

# A launcher in a function of this name, in a file like that of torchrun, whose only rank runs a program.  It handles
# SIGHUP, as torchrun does.
LAUNCHER = """import os, signal, subprocess, sys, time
os.makedirs('{folder}', exist_ok=True)
with open('{folder}/api.py', 'w') as file:
    file.write('def _invoke_run(sleep):\\n    while True: sleep(0.1)\\n')
sys.path.insert(0, '{folder}')
from api import _invoke_run
signal.signal(signal.SIGHUP, lambda *_: None)
variables = {{'RANK': '0', 'LOCAL_RANK': '0', 'WORLD_SIZE': '1', 'LOCAL_WORLD_SIZE': '1'}}
rank = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], env=os.environ | variables, stdout=subprocess.PIPE)
rank.stdout.readline()
print(rank.pid, flush=True)
_invoke_run(time.sleep)
"""
AGENT = "torch/distributed/elastic/agent/server"
# It has passed a descriptor to another process, as workers of a DataLoader do with tensors.
SHARES = f"{HEAD}from multiprocessing import reduction; reduction.DupFd(1)\nready(); stuck()"


def launch(job: Job, code: str, folder: str = AGENT) -> int:
    job.start(LAUNCHER.format(folder=folder), code, "0")
    return int(job.first_line)


def test_a_rank_of_torchrun_that_has_passed_descriptors_waits_for_nothing_of_the_launcher(job: Job) -> None:
    """The launcher handles SIGHUP in order to end its ranks; whoever else may connect waits, too."""
    assert "waits for a lock" in closed(job, launch(job, SHARES)).mechanism


def test_a_launcher_that_is_not_known_may_do_anything_at_a_signal(job: Job) -> None:
    assert see(job, launch(job, SHARES, "mine")).open_reason


DEAD = "p = fork.Process(target=lambda: None); p.start(); p.join()\n"
# What waits for or beside the process of a Manager, and a text of the proof.
MANAGED = {
    "a lock that is taken twice": ("l = m.Lock(); l.acquire(); ready(); l.acquire()", "waits for a reply on a Unix"),
    "a queue whose producer has ended": (f"q = m.Queue(); {DEAD}ready(); q.get()", "waits for a reply on a Unix"),
    "two processes": (
        "a, b = m.Queue(), m.Queue(); fork.Process(target=lambda: (b.get(), a.put(1))).start()\nready(); a.get()",
        "waits for a reply on a Unix",
    ),
    "a lock beside it": ("d = m.dict(); ready(); stuck()", "waits for a lock"),
    "a queue of processes beside it": (f"d, q = m.dict(), fork.Queue(); {DEAD}ready(); q.get()", "an item in a queue"),
}
SLEEPS = "time.sleep(10**5)"
HANDLER = "signal.signal(signal.SIGTERM, lambda *_: None); m = fork.Manager(); signal.signal(signal.SIGTERM, 0)\n"
SERVER = "from multiprocessing.managers import SyncManager\n"
# What may end a wait that a Manager has part in, and a text of the reason.
FED = {
    "a producer that sleeps": (
        f"m = fork.Manager(); q = m.Queue(); fork.Process(target=lambda: ({SLEEPS}, q.put(1))).start(); "
        "ready(); q.get()",
        "waits for a timer",
    ),
    "a process that never connected": (
        f"m = fork.Manager(); fork.Process(target=lambda: {SLEEPS}).start(); q = m.Queue(); ready(); q.get()",
        "waits for a timer",
    ),
    "a timeout": ("m = fork.Manager(); q = m.Queue(); ready(); q.get(timeout=10**5)", "waits for a timer"),
    "a thread that it has started": (
        f"m = SyncManager(ctx=fork); m.start(lambda: thread(lambda: {SLEEPS})); q = m.Queue(); ready(); q.get()",
        "waits for a timer",
    ),
    "a handler that it has inherited": (f"{HANDLER}q = m.Queue(); ready(); q.get()", "signal 15"),
    "an address of TCP": (
        "m = SyncManager(('127.0.0.1', 0), ctx=fork); m.start(); q = m.Queue(); ready(); q.get()",
        "waits for a connection (tcp",
    ),
    "an address that the program has chosen": (
        "m = SyncManager(os.path.abspath('mine'), ctx=fork); m.start(); q = m.Queue(); ready(); q.get()",
        "waits for a connection (unix",
    ),
    "a server for others": ("s = SyncManager().get_server(); ready(); s.serve_forever()", "waits for a connection"),
}


@pytest.mark.parametrize("name", quick(MANAGED, ("two processes", "a queue of processes beside it")))
def test_a_deadlock_of_processes_that_a_manager_serves_is_proved(job: Job, name: str) -> None:
    code, text = MANAGED[name]
    job.start(f"{HEAD}m = fork.Manager(); {code}", "0")
    for ranks in ((job.pid,), ()):  # without ranks all processes have to wait, that of the Manager, too
        found = closed(job, *ranks)
        assert text in found.mechanism
        assert found.pid == job.pid


QUICK = (
    "a producer that sleeps",
    "a thread that it has started",
    "a handler that it has inherited",
    "an address that the program has chosen",
)


@pytest.mark.parametrize("name", quick(FED, QUICK))
def test_what_others_may_ask_of_a_manager_leaves_its_waits_open(job: Job, name: str) -> None:
    code, text = FED[name]
    job.start(f"{HEAD}{SERVER}{code}", "0")
    wait_for(lambda: text in (see(job, job.pid).open_reason or ""), "the reason", 60)
    assert see(job, job.pid).open_reason
