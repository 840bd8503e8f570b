"""`bin/prove gpu`: without a device each step says so; with a fake driver library, and programs that do what those on a
real device would, each step reads what is there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proof.gpu.programs import TORCH
from support.device.nvml import BUSY, GIB, IDLE, SPINNING, FakeNvml
from support.evidence_job import needs_spy

HOUSE = Path(__file__).parents[3]
PATHS = f"{HOUSE}/supervisor:{HOUSE}/hooks:{HOUSE}/tests"
STEPS = [
    "machine",
    "nothing runs",
    "idle",
    "training",
    "hung, its host spins",
    "hung, its host yields",
    "hung, its host blocks",
    "nccl",
    "context death",
    "memory",
    "tests",
]
# Programs that load a library in the place of the driver's, and set what the fake library answers.
HEAD = f"""import ctypes, os, sys, threading, time
driver = ctypes.CDLL(os.environ["DRIVER"])
def show(**values):
    with open(os.environ["FTRUN_FAKE_NVML"], "a") as file:
        file.write("".join(f"0 0 {{key}} {{value}}\\n" for key, value in values.items()))
def ready(): print("ready", flush=True)
BUSY, SPINNING, IDLE = {BUSY!r}, {SPINNING!r}, {IDLE!r}
"""
PROGRAMS = {
    "idle": f"{HEAD}ready(); time.sleep(10**6)",
    "training": f"{HEAD}show(**BUSY); ready()\nwhile True: time.sleep(0.01)",
    "hung, its host spins": f"{HEAD}show(**SPINNING); ready(); driver.synchronize_by_spinning()",
    "hung, its host yields": f"{HEAD}show(**SPINNING); ready(); driver.synchronize_by_yielding()",
    "hung, its host blocks": f"{HEAD}show(**SPINNING); ready(); driver.synchronize_by_blocking()",
    "nccl": f"""{HEAD}from support.device.ras import At, Ras, in_json
with Ras(in_json([At(os.getpid())]), port=int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2])):
    def ras():
        ctypes.CDLL(None).prctl(15, b'NCCL RAS', 0, 0, 0)
        ready()
        threading.Event().wait()
    ras()""",
    "context death": f"{HEAD}show(**IDLE); ready(); sys.exit('CUDA error: device-side assert triggered')",
    "memory": f"{HEAD}show(holders=f'{{os.getpid()}}:{8 * GIB}'); ready(); time.sleep(10**6)",
}
RUN = """import json, sys
from proof.gpu.__main__ import Bench, run
print(json.dumps(run(Bench(programs=json.loads(sys.argv[1]), seconds=0.5))), file=sys.stderr)
"""


def made(command: list[str], **variables: str) -> tuple[list[str], dict[str, Any]]:
    """The lines for a person, and the content of the file."""
    environment = os.environ | {"PYTHONPATH": PATHS} | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines(), json.loads(done.stderr)


def test_the_programs_are_those_of_the_steps() -> None:
    assert PROGRAMS.keys() == TORCH.keys()
    for name, code in TORCH.items():
        compile(code, name, "exec")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a device")
def test_without_a_device_each_step_says_so(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(HOUSE / "tests/proof/gpu"), "--out", str(out), "--python", "/bin/false"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": PATHS}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(STEPS) + 1
    assert all("not run: no NVIDIA driver" in line for line in lines[1:-1])
    steps = json.loads(out.read_text())["steps"]
    assert [row["step"] for row in steps] == STEPS
    assert all("no NVIDIA driver" in row["not_run"] for row in steps[1:])
    assert "no NVIDIA driver" in steps[0]["found"]["no_device"]


@needs_spy
@pytest.mark.slow  # half a minute; the tests beside it have the steps without a device, and one that fails
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
def test_each_step_reads_what_is_there(tmp_path: Path) -> None:
    driver = tmp_path / "libcuda.so.1"
    source = HOUSE / "tests/support/driver.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", driver, source], check=True)
    fake = FakeNvml(tmp_path)
    command = [sys.executable, "-c", RUN, json.dumps(PROGRAMS)]
    lines, found = made(command, DRIVER=str(driver), **fake.environment())
    steps = {row["step"]: row for row in found["steps"]}
    assert list(steps) == STEPS
    assert not [row for row in found["steps"] if "failed" in row and row["step"] != "tests"], lines
    at = {name: row.get("found", {}) for name, row in steps.items()}

    assert at["machine"]["devices"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert at["training"]["devices"][0]["power"][1] == 650.25
    assert not at["training"]["look"]["waits_for_its_device"]
    for how, state in (("spins", "R"), ("yields", "R"), ("blocks", "S")):
        hung = at[f"hung, its host {how}"]
        assert hung["devices"][0]["util"] == [100, 100, 100]
        main = next(row for row in hung["threads"] if row["main"])
        assert state in {one["state"] for one in main["seen"]}
        assert "libcuda.so.1" in hung["mapped"]
    blocked = next(row for row in at["hung, its host blocks"]["threads"] if row["main"])
    assert blocked["call"] == "poll"
    assert "libcuda.so.1" in blocked["libraries"]
    assert any(at[name]["look"]["waits_for_its_device"] for name in STEPS if name.startswith("hung"))
    assert at["nccl"]["understood"]
    assert at["nccl"]["communicators"] == 1
    assert "NCCL RAS" in {row["name"] for row in at["nccl"]["threads"]}
    assert at["context death"]["exit"] == 1
    assert at["context death"]["last_lines"] == ["CUDA error: device-side assert triggered"]
    assert at["memory"]["held"] == 8 * GIB
    assert at["memory"]["listed"]
    assert 0 <= at["memory"]["free_after"] < 30


def test_a_step_that_fails_or_lasts_too_long_does_not_stop_the_others(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path)
    code = """import json, sys, time
from proof.gpu import __main__ as gpu
class Some(gpu.Bench):
    def steps(self):
        def fails(): raise ValueError("it is broken")
        return {"fails": (fails, 5.0), "lasts": (lambda: time.sleep(1000), 0.3), "works": (dict, 5.0)}
print(json.dumps(gpu.run(Some())), file=sys.stderr, flush=True)
import os; os._exit(0)
"""
    lines, found = made([sys.executable, "-c", code], **fake.environment())
    assert [sorted(row.keys() - {"step", "seconds"}) for row in found["steps"]] == [["failed"], ["failed"], ["found"]]
    assert lines[0] == "fails: failed: ValueError: it is broken"
    assert lines[1] == "lasts: failed: it has not ended after 0 s"
