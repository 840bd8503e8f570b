"""On a real NVIDIA device: the values of the probe, and a hang after which the device is free."""

import sys
from pathlib import Path

import pytest

from support.device.prober import Prober
from support.runs import Runs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA device here")]
TRAIN = """
import os, time, torch
first = os.environ["MA_PROC_START_CNT"] == "1"
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
until = time.monotonic() + 8
while time.monotonic() < until:
    optimizer.zero_grad()
    model(torch.randn(4096, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
torch.cuda.synchronize()
if first:
    time.sleep(3600)
"""


def test_probe_reads_the_device() -> None:
    with Prober({}, period=1.0) as probe:
        probe.event("ready")
        for device in probe.devices():
            assert device["memory_total"] > device["memory_used"] >= 0
            assert device["power"] > 0
            assert 0 <= device["util"] <= 100
            assert device["visible"]


@pytest.mark.torch
def test_idle_rule_finds_a_hang_after_which_the_device_is_free(runs: Runs) -> None:
    """Work on the device is no hang, though the program reads and writes nothing; no work after it is one."""
    run = runs.run("--no-auto-beat", "--idle-timeout", "5s", "--grace", "1s", sys.executable, "-c", TRAIN)
    assert run.wait(300) == 0, run.log()
    (found,) = run.named("hang")
    assert found["rule"] == "idle"
    assert run.named("escalated") == []
