"""Loops of a process that has an accelerator open, found without a timeout or left alone, over a fake driver library.

An accelerator may write into the memory of the process, so that a loop that reads it is no endless one, unless all
devices stand still.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.device.nvml import IDLE, SPINNING, FakeNvml
from support.evidence_job import needs_spy
from support.runs import Runs, python, wait_for

pytestmark = [needs_spy, pytest.mark.slow, pytest.mark.timeout(600)]  # with the real limits
LOOP = "import sys\nfile = open(sys.argv[1])\nft.beat(1)\nflag = [0]\nwhile not flag[0]: pass\n"


@pytest.fixture
def device() -> Iterator[Path]:
    """Whether a process has an accelerator open is seen by the path; this one is /dev/null."""
    if os.getuid():
        pytest.skip("only root can make a device file")
    path = Path(f"/dev/nvidia-ftrun-test-{os.getpid()}")
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    yield path
    path.unlink()


@pytest.mark.parametrize(("values", "found"), [(IDLE, True), (SPINNING, False)], ids=["still", "spinning"])
def test_a_loop_is_an_endless_one_only_if_all_devices_stand_still(
    runs: Runs, device: Path, values: dict[str, Any], found: bool
) -> None:
    fake = FakeNvml(runs.folder)
    runs.environment |= fake.environment()
    fake.set(0, **values)
    run = runs.start("--probe", "nvidia", "--max-restarts", "0", *python(LOOP), str(device))
    if found:
        assert run.wait(500) == 195, run.log()
        assert run.named("suspect")[0]["rule"] == "loop"
    else:
        text = f"computes, and has {device} open, which may change its memory"
        wait_for(lambda: any(text in look["why"] for look in run.named("look")), "a look", 500)
        assert not run.named("suspect")
