"""Details of a standby that has to become the command (`_parked.py`)."""

import subprocess
import sys

from support.runs import HOUSE

JOIN = """
import os, runpy, sys
ParkedProcess = runpy.run_path(f"{sys.argv[1]}/_parked.py")["ParkedProcess"]
Missing = runpy.run_path(f"{sys.argv[1]}/_parked.py")["Missing"]
if (pid := os.fork()) == 0:
    os.setpgid(0, 0)
    os._exit(0)
os.waitpid(pid, 0)
standby = ParkedProcess.__new__(ParkedProcess)
standby.missing, standby.streams = Missing(), []
sys.meta_path.append(standby.missing)
standby._restore({"nice": "0", "group": str(pid)})
assert os.getpgrp() != pid
"""


def test_a_rank_starts_also_if_the_group_of_the_first_one_has_just_ended() -> None:
    path = HOUSE / "hooks" / "ftrun_hooks"
    done = subprocess.run([sys.executable, "-c", JOIN, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
