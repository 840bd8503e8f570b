"""On a real NVIDIA device: what the probe says of it, and a hang that leaves nothing on it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.runs import HOUSE, Runs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA device here"),
]
PROBE = """import sys
sys.path[:0] = [{!r}, {!r}]
from ftrun.helpers.probe.__main__ import main
sys.exit(main(sys.argv[1:]))"""
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


def test_the_probe_sees_it() -> None:
    code = PROBE.format(str(HOUSE / "supervisor"), str(HOUSE / "hooks"))
    probe = subprocess.Popen(
        [sys.executable, "-c", code, "nvidia", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with probe:
        assert probe.stdout is not None
        assert probe.stdin is not None
        assert json.loads(probe.stdout.readline()) == {"event": "ready", "vendors": ["nvidia"]}
        said = json.loads(probe.stdout.readline())
        while said["event"] != "devices":
            said = json.loads(probe.stdout.readline())
        probe.stdin.close()
    print(json.dumps(said["devices"], indent=1))
    for device in said["devices"]:
        assert device["memory_total"] > device["memory_used"] >= 0
        assert device["power"] > 0
        assert 0 <= device["util"] <= 100
        assert device["visible"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_hang_is_found_by_the_idle_rule_and_leaves_nothing_on_it(runs: Runs) -> None:
    """Work on the device is no hang, though the program reads and writes nothing; silence after it is one."""
    run = runs.run("--no-auto-beat", "--idle-timeout", "5s", "--grace", "1s", sys.executable, "-c", TRAIN)
    assert run.wait(300) == 0, run.log()
    (found,) = run.named("hang")
    assert found["rule"] == "idle"
    assert run.named("escalated") == []
    print(found, os.fspath(run.run_dir))
