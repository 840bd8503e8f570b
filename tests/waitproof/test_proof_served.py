"""Deadlocks of a job beside servers of Python's own library, to which only processes of the job may connect."""

from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import HEAD, closed, see

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
