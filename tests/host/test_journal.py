"""Records on a full disk: the problem is reported once, and later records are readable."""

import json
import subprocess
import sys
from pathlib import Path

from support.runs import HOUSE

# The limit on the size of a file is a disk that is full in the middle of a write; then there is room again.
PART = """
import resource, signal, sys
sys.path[:0] = sys.argv[2:]
from ftrun.host.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for number in range(3):
    journal.record("progress", 1, (("number", number),), False)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
journal.barrier()
print(journal.problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
journal.record("restart", 2, (), True)
"""


def test_a_record_after_an_incomplete_one_is_readable(tmp_path: Path) -> None:
    words = [str(tmp_path), str(HOUSE / "supervisor"), str(HOUSE / "hooks")]
    done = subprocess.run([sys.executable, "-c", PART, *words], capture_output=True, text=True, timeout=60, check=True)
    assert (
        done.stdout
        == f"records in {tmp_path} cannot be written (No space left on device); the job continues without it\n"
    )
    first, half, last = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(first)["number"] == 0
    assert half.startswith("{")
    assert not half.endswith("}")
    assert json.loads(last)["event"] == "restart"
