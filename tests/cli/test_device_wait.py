"""End to end: all ranks wait for their devices, and no device works."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ftrun.core.rules import liveness
from support.device.nvml import BUSY, SPINNING, FakeNvml
from support.evidence_job import needs_spy
from support.runs import Runs, python

pytestmark = [pytest.mark.slow, needs_spy, pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")]

SOURCE = Path(__file__).parents[1] / "support/driver.c"
# In its first start it waits for its device after twenty steps.
CODE = """
import ctypes, time
driver = ctypes.CDLL({driver!r})
for step in range(20): ft.beat(step); time.sleep(0.1)
if not ft.attempt().is_restart: driver[{how!r}]()
"""


@pytest.mark.parametrize("how", ["spinning", "yielding", "blocking"])
def test_a_rank_that_waits_for_its_device_is_found_within_two_minutes_without_an_option(runs: Runs, how: str) -> None:
    driver = runs.folder / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", driver, SOURCE], check=True)
    fake = FakeNvml(runs.folder)
    runs.environment |= fake.environment()
    fake.set(0, **BUSY)
    code = CODE.format(driver=str(driver), how=f"synchronize_by_{how}")
    run = runs.start("--probe", "nvidia", "--grace", "off", *python(code))
    run.until("first_beat")
    for key, value in SPINNING.items():
        fake.later(3.0, 0, **{key: value})
    assert run.wait(180) == 0, run.log()
    (hang,) = run.named("hang")
    assert (hang["rule"], hang["rank"]) == ("device-wait", 0)
    assert "waits for its device at" in str(hang["mechanism"])
    assert hang["age"] < liveness.DEVICE_WAIT_WITHIN
