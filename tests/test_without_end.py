"""A loop that counts is found by the limit of the rule `spin`, which is 40 s here in place of 20 minutes."""

from __future__ import annotations

import platform
import sys

import pytest

from support.evidence_job import needs_spy
from support.runs import Runs, patched, wait_for
from support.runs import runs as runs

needs_registers = pytest.mark.skipif(platform.machine() != "x86_64", reason="the registers of this machine are unknown")
pytestmark = [needs_spy, needs_registers]

SOON = patched("import ftrun.core.rules.spin as spin\nspin.FLOOR = 40.0")
LOOP = """import sys, time
import ftrun_hooks as ft
def wait_for_it():
    tries = 0
    while tries >= 0:
        tries += 1
for step in range(130):
    ft.beat(step)
    time.sleep(0.02)
if ft.attempt().start_cnt == 1:
    wait_for_it()
ft.done()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_loop_that_counts_does_not_wait_for_the_hour(runs: Runs) -> None:
    """Where the machine is so crowded that the evidence hardly sees the loop run, it looks again later."""
    (runs.folder / "train.py").write_text(LOOP)
    run = runs.start(sys.executable, str(runs.folder / "train.py"), program=SOON)
    wait_for(lambda: run.named("hang") or run.process.poll() is not None, "a verdict", 800)
    (hang,) = run.named("hang")
    assert hang["rule"] == "spin", run.log()
    assert hang["limit"] == 40.0
    assert str(hang["mechanism"]).startswith("rank 0 computes at train.py:")
    assert run.wait(120) == 0, run.log()
    assert "rank 0 has computed without movement for" in run.stderr
    assert len(run.named("restart")) == 1
