"""Checks of the accelerator drivers.  Each is queried in a process of its own, because it may never answer."""

import glob
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ftctl.doctor.finding import CheckOutcome
from ftrun.accelerators.table import ASCEND, NVIDIA
from ftrun.core.text.sentences import several, short
from ftrun.helpers.probe.ascend import find_tool
from waitproof import children
from waitproof.children import ProgramResult

ANSWER: Final = 10.0  # s
MEANS: Final = "ftrun uses it to detect hangs and faults, and to wait for free devices"
BLIND: Final = "ftrun sees no devices: no idle rule for them, no device faults, no wait until they are free"
NOTHING: Final = "there is nothing to check"
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


def nvidia() -> Iterator[CheckOutcome]:
    answer = _run([sys.executable, "-I", "-c", NVML])
    nodes = glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/nvidiactl")
    if answer.killed:
        means = "the driver does not answer: only the probe helper would wait for it, and be restarted"
        remedy = "check dmesg for Xid errors; reset the device"
        yield CheckOutcome("NVML", "warning", f"no answer in {ANSWER:.0f}s", means, remedy)
        return
    try:
        reply = dict(json.loads(answer.output))
    except ValueError:
        reply = {"problem": short(answer.errors.decode("utf-8", "replace").strip()) or "no answer"}
    if reply.get("names"):
        names = sorted(set(reply["names"]))
        found = f"{several(len(reply['names']), 'device')} ({', '.join(names)}), driver {reply.get('driver')}"
        yield CheckOutcome("NVML", "ok", found, MEANS)
    elif "absent" in reply:
        found = f"nvidia-ml-py is not installed ({reply['absent']})"
        yield CheckOutcome("NVML", "missing", found, BLIND, "pip install nvidia-ml-py")
    elif nodes:
        remedy = "nvidia-container-toolkit with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield CheckOutcome(
            "NVML", "missing", f"{nodes[0]} exists, but NVML reports: {reply.get('problem')}", BLIND, remedy
        )
    else:
        yield CheckOutcome("NVML", "ok", "no NVIDIA device here", NOTHING)


def ascend() -> Iterator[CheckOutcome]:
    tool = find_tool(os.environ)
    nodes = glob.glob("/dev/davinci[0-9]*")
    if tool is None:
        if nodes:
            remedy = "mount /usr/local/bin/npu-smi and /usr/local/Ascend/driver into the container"
            yield CheckOutcome("npu-smi", "missing", f"{nodes[0]} exists, but npu-smi is missing", BLIND, remedy)
        else:
            yield CheckOutcome("npu-smi", "ok", "no Ascend device here", NOTHING)
        return
    answer = _run([os.path.abspath(tool), "info", "-l"])
    text = answer.output.decode("utf-8", "replace")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if answer.killed:
        remedy = "check the log of the driver; reset the chip"
        yield CheckOutcome("npu-smi", "warning", f"no answer in {ANSWER:.0f}s", BLIND, remedy)
    elif "Total Count" in first or "NPU ID" in text:
        yield CheckOutcome("npu-smi", "ok", short(" ".join(first.split())), MEANS)
    else:
        reply = first or answer.errors.decode("utf-8", "replace").strip() or "nothing"
        remedy = "mount /usr/local/Ascend/driver and give the container its /dev/davinci devices"
        yield CheckOutcome("npu-smi", "missing", f"npu-smi reports: {short(reply)}", BLIND, remedy)


def _run(command: list[str]) -> ProgramResult:
    answers = list(children.run([command], 1, ANSWER, time.monotonic() + ANSWER))
    return answers[0][1] if answers else ProgramResult(b"", b"", True)


# By vendor: the name of the check, and its function.
CHECKS: Final[Mapping[str, tuple[str, Callable[[], Iterator[CheckOutcome]]]]] = {
    NVIDIA.name: ("NVML", nvidia),
    ASCEND.name: ("npu-smi", ascend),
}
