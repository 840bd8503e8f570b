"""What the drivers of accelerators say.  Each is asked in a process of its own: it may never answer."""

import glob
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ftrun.accelerators.ascend import ASCEND
from ftrun.accelerators.nvidia import NVIDIA
from ftrun.cli.doctor.finding import Finding
from ftrun.core.text.sentences import several, short
from ftrun.helpers.evidence import children
from ftrun.helpers.evidence.children import ProgramResult

ANSWER: Final = 10.0  # s
MEANS: Final = "hangs, faults and free devices are told by looking at them"
BLIND: Final = "ftrun sees no device: no idle rule by them, no faults, no wait for them to be free"
NVML: Final = """import json
try:
    import pynvml
    pynvml.nvmlInit()
    text = lambda found: found.decode() if isinstance(found, bytes) else found
    names = [text(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)))
             for i in range(pynvml.nvmlDeviceGetCount())]
    print(json.dumps({"driver": text(pynvml.nvmlSystemGetDriverVersion()), "names": names}))
except ImportError as error:
    print(json.dumps({"absent": str(error)}))
except Exception as error:
    print(json.dumps({"problem": str(error)}))
"""


def nvidia() -> Iterator[Finding]:
    said = _run([sys.executable, "-I", "-c", NVML])
    there = glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/nvidiactl")
    if said.killed:
        means = "a driver that does not answer: only the probe would wait for it, and be started again"
        yield Finding(
            "NVML", "warning", f"no answer in {ANSWER:.0f}s", means, "look at dmesg for Xid errors; reset the device"
        )
        return
    try:
        told = dict(json.loads(said.output))
    except ValueError:
        told = {"problem": short(said.errors.decode("utf-8", "replace").strip()) or "no answer"}
    if told.get("names"):
        names = sorted(set(told["names"]))
        found = f"{several(len(told['names']), 'device')} ({', '.join(names)}), driver {told.get('driver')}"
        yield Finding("NVML", "ok", found, MEANS)
    elif "absent" in told:
        yield Finding(
            "NVML", "missing", f"nvidia-ml-py is not installed ({told['absent']})", BLIND, "pip install nvidia-ml-py"
        )
    elif there:
        remedy = "nvidia-container-toolkit with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield Finding("NVML", "missing", f"{there[0]} is here, and NVML says: {told.get('problem')}", BLIND, remedy)
    else:
        yield Finding("NVML", "ok", "no NVIDIA device here", "there is nothing to look at")


def ascend() -> Iterator[Finding]:
    tool = shutil.which("npu-smi") or shutil.which("npu-smi", path="/usr/local/bin:/usr/local/sbin:/usr/sbin")
    there = glob.glob("/dev/davinci[0-9]*")
    if tool is None:
        if there:
            remedy = "mount /usr/local/bin/npu-smi and /usr/local/Ascend/driver into the container"
            yield Finding("npu-smi", "missing", f"{there[0]} is here, and no npu-smi", BLIND, remedy)
        else:
            yield Finding("npu-smi", "ok", "no Ascend device here", "there is nothing to look at")
        return
    said = _run([os.path.abspath(tool), "info", "-l"])
    first = next((line.strip() for line in said.output.decode("utf-8", "replace").splitlines() if line.strip()), "")
    if said.killed:
        yield Finding(
            "npu-smi", "warning", f"no answer in {ANSWER:.0f}s", BLIND, "look at the driver's log; reset the chip"
        )
    elif "Total Count" in first or "NPU ID" in said.output.decode("utf-8", "replace"):
        yield Finding("npu-smi", "ok", short(" ".join(first.split())), MEANS)
    else:
        told = first or said.errors.decode("utf-8", "replace").strip() or "nothing"
        remedy = "mount /usr/local/Ascend/driver and give the container its /dev/davinci devices"
        yield Finding("npu-smi", "missing", f"it says: {short(told)}", BLIND, remedy)


def _run(command: list[str]) -> ProgramResult:
    answers = list(children.run([command], 1, ANSWER, time.monotonic() + ANSWER))
    return answers[0][1] if answers else ProgramResult(b"", b"", True)


# By vendor: what is asked, and the check.
CHECKS: Final[Mapping[str, tuple[str, Callable[[], Iterator[Finding]]]]] = {
    NVIDIA.name: ("NVML", nvidia),
    ASCEND.name: ("npu-smi", ascend),
}
