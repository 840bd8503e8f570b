"""Ranks on several hosts that all wait for their devices: a hang of the group, once those of all members do."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.device.nvml import BUSY, SPINNING, FakeNvml
from support.evidence_job import needs_spy
from support.hosts import Hosts
from support.runs import HOUSE, wait_for

pytestmark = [pytest.mark.slow, needs_spy, pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")]

SOURCE = Path(__file__).parents[1] / "support/driver.c"
# In its first start each rank waits for its device after twenty steps; member 1 computes for a while before that.
CODE = """
import ctypes, os, sys, time
sys.path.insert(0, sys.argv[1])
import ftrun_hooks as ft
driver = ctypes.CDLL(sys.argv[2])
for step in range(20): ft.beat(step); time.sleep(0.1)
if not ft.attempt().is_restart:
    until = time.monotonic() + 90 * int(sys.argv[3])
    while time.monotonic() < until: sum(range(1000))
    open(sys.argv[4], "w").close()
    driver.synchronize_by_spinning()
"""


def test_the_ranks_of_one_member_wait_for_those_of_another_that_computes(
    hosts: Callable[[int], Hosts], tmp_path: Path
) -> None:
    here = hosts(2)
    driver = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", driver, SOURCE], check=True)
    members, fakes = [], []
    for rank in range(2):
        folder = tmp_path / f"gpu-{rank}"
        folder.mkdir()
        fakes.append(FakeNvml(folder))
        fakes[rank].set(0, **BUSY)
        options = (*here.group(rank, 2, wait="60s"), "--probe", "nvidia", "--grace", "off")
        words = (str(HOUSE / "hooks"), str(driver), str(rank), str(tmp_path / f"at-{rank}"))
        program = (sys.executable, "-c", CODE, *words)
        members.append(here.start(rank, *options, "--", *program, environment=fakes[rank].environment()))
    wait_for((tmp_path / "at-0").exists, "the wait of member 0")
    fakes[0].set(0, **SPINNING)
    wait_for((tmp_path / "at-1").exists, "the wait of member 1", 200)
    for member in members:
        assert not member.named("hang"), "the other member computed"
    fakes[1].set(0, **SPINNING)
    assert [member.wait(200) for member in members] == [0, 0]
    hangs = [hang for member in members for hang in member.named("hang")]
    assert {hang["rule"] for hang in hangs} == {"device-wait"}
