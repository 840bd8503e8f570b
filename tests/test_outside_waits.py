"""A learned limit passes while a healthy job waits for somebody outside: evidence clears the suspicion.

The shortest learned limit is a second in place of half a minute, and the waits take a few seconds.  The programs are
those of `bin/prove hangs`, which has them with the real limits.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.hangs.healthy import ROWS
from proof.hangs.meeting import meet
from proof.hangs.server import serving
from support.runs import patched

QUICK = 4.0  # s that a wait takes
SOON = patched("import ftrun.core.rules.adaptive_timeout as learning; learning.FLOOR = 1.0")
NAMES = (
    "a rate limit: HTTP 429, then a sleep",
    "a rate limit in a side thread, whose result the main thread awaits",
    "an upload, 2 MB/s",
    "an upload, 20 MB/s",
    "an upload by a thread pool",
    "a reply that takes its time",
    "a query to a database server",
    "a save to a slow share",
    "a flag in shared memory that another process sets",
    "a child that downloads",
    "a simulator: a child that answers over pipes and asks a server",
    "an executor of processes, of which one downloads",
    "bursts of steps between rollouts in a remote simulator",
    "torchrun: rank 1 downloads, rank 0 waits in the all-reduce of its gradients",
    "torch.multiprocessing.spawn: one rank of two downloads",
)
QUICK_NAMES = (  # one of each kind; the others wait for the same in another way
    "a rate limit: HTTP 429, then a sleep",
    "an upload, 20 MB/s",
    "an upload by a thread pool",
    "a flag in shared memory that another process sets",
    "a child that downloads",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_NAMES else pytest.mark.slow) for name in NAMES]
)
def test_a_wait_for_somebody_outside_is_no_hang(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    if lacking := row.lacks():
        pytest.skip(f"there is no {lacking} here")
    with serving() as ports:
        met = meet(row, "learned", QUICK, ports, tmp_path / "run", SOON)
    assert not met.wrong, met.wrong
    assert met.learned, "it was judged by a learned limit"
    assert met.cleared, "it was suspected"
