"""Times of months, with which people mean "never": the kernel takes no wait of more than 24 days at once."""

import os
import signal

import pytest

from support.runs import Runs, patched, python, wait_for

# What wakes PID 1 up in the first seconds of an attempt, whatever its timeouts are.
NOTHING_ELSE = """
import ftrun.host.beat_access, ftrun.pid1.loop
ftrun.host.beat_access.CHECKS_AFTER_START, ftrun.pid1.loop.SETTLED = (0.01,), 0.01
"""
TIMEOUTS = ("hang", "start", "idle", "section")
# The command lives for a second, in which PID 1 waits with that timeout.
WAITS = "import time; {0}; time.sleep(1); sys.exit(3)"


@pytest.mark.parametrize("name", TIMEOUTS)
def test_a_timeout_of_years_is_no_internal_error(runs: Runs, name: str) -> None:
    options = [word for one in TIMEOUTS for word in (f"--{one}-timeout", "3000d" if one == name else "off")]
    begin = {"start": "0", "section": "ft.section('long').__enter__()"}.get(name, "ft.beat(1)")
    run = runs.ends(3, *options, *python(WAITS.format(begin)), program=patched(NOTHING_ELSE))
    assert not run.named("problem")


def test_a_grace_of_months_is_no_internal_error(runs: Runs) -> None:
    script = "trap 'sleep 1; exit 5' TERM; touch ready; while :; do sleep 0.01; done"
    run = runs.spawned("--stop-grace", "100d", "sh", "-c", script, program=patched(NOTHING_ELSE))
    wait_for((runs.folder / "ready").exists, "the handler of the script")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 5, run.log()


def test_the_work_at_the_end_may_take_years(runs: Runs) -> None:
    grace = {"MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": "9999999999"}
    run = runs.ends(3, "--on-exit", "sleep 1; touch done", "sh", "-c", "exit 3", **grace)
    assert (runs.folder / "done").exists()
    assert not run.named("problem")
