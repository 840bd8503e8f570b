"""The last line of a run."""

from ftrun.core.machine.effects import Exit
from ftrun.core.machine.values import Ledger
from ftrun.core.text import sentences


def test_the_last_line_says_the_whole_reason() -> None:
    why = "rank 0 was proved to be deadlocked after 28s without movement: rank 0 (process 5695, main thread) waits for "
    why += "a lock at failures.py:68, which only its own threads can end"
    end = Exit(195, "hang-limit", f"{why}; stack: failures.py:68 deadlock")
    line = sentences.last_lines(end, Ledger(start_cnt=3), "/run", 88.0, {"hang": 2})
    assert line is not None
    assert f"after 88s: {why}; 3 starts" in line
