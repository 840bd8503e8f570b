"""A training on fake devices that get faults, under an ftrun whose probe reads them often."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from support.device.nvml import BUSY, RECOVERY, FakeNvml
from support.runs import Run, Runs, objects, patched, python, wait_for

NODE = "n7"
# ftrun, with five samples of the devices a second.
FAST = "from ftrun.pid1.clients import probe, reset_file; probe.PERIOD, reset_file.LOOK = 0.2, 0.1"
SOON = patched(FAST)
QUICK = ("--no-auto-beat", "--grace", "off", "--backoff", "10ms", "--node-name", NODE)
NVIDIA = ("--probe", "nvidia", *QUICK)
RESET, REBOOT, NONE = {RECOVERY: 1}, {RECOVERY: 2}, {RECOVERY: 0}  # what the driver asks for

# Trains until the file `end` is there, whose number is its exit code, or `end-<n>` for its nth start.  `still-<n>` ends
# its steps, `deaf` makes it ignore SIGTERM, with `on` each start gets further than all before.  A line a start goes to
# `starts`.
TRAINS = """
import json, os, signal, time
if os.path.exists("deaf"): signal.signal(signal.SIGTERM, signal.SIG_IGN)
n = ft.attempt().start_cnt
start = {"n": n, "reason": ft.attempt().reason, "argv": sys.argv[1:], "env": dict(os.environ)}
with open("starts", "a") as f: f.write(json.dumps(start) + "\\n")
step = 1000 * n if os.path.exists("on") else 0
while True:
    for name in ("end", f"end-{n}"):
        if os.path.exists(name): os._exit(int(open(name).read() or 0))
    if not os.path.exists(f"still-{n}"):
        step += 1
        ft.beat(step)
    time.sleep(0.02)
"""


def faked(runs: Runs, devices: int = 1) -> FakeNvml:
    """GPUs at rest, for all that is started."""
    fake = FakeNvml(runs.folder, devices)
    runs.environment |= fake.environment()
    return fake


class Rig:
    """GPUs, and the ftruns whose commands use them."""

    def __init__(self, runs: Runs, devices: int = 1) -> None:
        self.runs, self.folder = runs, runs.folder
        self.gpus = faked(runs, devices)
        for index in range(devices):
            self.gpus.set(index, **BUSY)

    def start(self, *options: str, words: tuple[str, ...] = (), listening: bool = True, **more: Any) -> Run:
        """An ftrun; with `listening` once its training moves and its probe listens."""
        run = self.runs.start(*NVIDIA, *options, *python(TRAINS, *words), program=SOON, **more)
        if listening:
            self.until_heard(run)
        return run

    def until_heard(self, run: Run) -> None:
        """Wait until the training moves and the probe, which has listed the devices, reports Xids."""
        wait_for(lambda: moves(run) or self._over(run), "that the training moves")
        until_heard(self.gpus, run, 43)

    def _over(self, run: Run) -> bool:
        return run.process.poll() is not None

    @property
    def starts(self) -> list[dict[str, Any]]:
        """What each start of the training got."""
        return objects(self.folder / "starts")

    def end(self, code: int = 0, start: int | None = None) -> None:
        """Of the training, with this code; `start`: of that one only."""
        self.put("end" if start is None else f"end-{start}", str(code))

    def end_well(self, run: Run) -> None:
        """The training, and with it this ftrun."""
        self.end()
        assert run.wait() == 0, run.log()

    def put(self, name: str, text: str = "") -> Path:
        """A file of the training's folder, whole from the first."""
        beside = self.folder / f".{name}"
        beside.write_text(text)
        return beside.replace(self.folder / name)

    def reset(self, *ranks: dict[str, Any], **fields: Any) -> Path:
        """The file in which MindCluster reports faults."""
        return self.put("reset.json", json.dumps({"RankList": ranks, "UpdateTime": 7, "RetryTime": 0} | fields))


def until_heard(gpus: FakeNvml, run: Run, code: int) -> None:
    """Wait until the probe reports Xids; this one is reported until it is recorded."""
    for _ in range(2):  # the first may come before the first look
        before = len(run.named("fault", code=str(code)))

        def heard(before: int = before) -> bool:
            assert run.process.poll() is None, run.log()
            gpus.xid(0, code)
            until = time.monotonic() + 0.5
            while time.monotonic() < until and len(run.named("fault", code=str(code))) == before:
                time.sleep(0.01)
            return len(run.named("fault", code=str(code))) > before

        wait_for(heard, f"that the probe listens: {run.order}")


def moves(run: Run) -> bool:
    """Whether its last start has come to a beat."""
    order = run.order
    return "first_beat" in order[len(order) - 1 - order[::-1].index("spawned") :] if "spawned" in order else False


def rank(number: int = 0, status: str = "unrecovered", codes: str = "", logic: int | None = None) -> dict[str, Any]:
    """An entry of MindCluster's list."""
    logic = number if logic is None else logic
    return {"RankId": number, "LogicId": logic, "Status": status, "ErrorCode": [], "ErrorCodeHex": codes}


def kill_helper(run: Run, name: str) -> None:
    os.kill(wait_for(lambda: run.helper(name), f"the helper {name}"), signal.SIGKILL)


def remembers(run: Run, folder: Path) -> None:
    """Wait until it has read the history in this folder, and so has added to it."""

    def known() -> bool:
        schedules = json.loads((folder / "history.json").read_bytes())["schedules"]
        return any(f"-{run.pid}-" in schedule["key"] for schedule in schedules)

    wait_for(known, "that it remembers")


JOB = "7f-job"  # of all in one state dir


def reasons(run: Run) -> list[str]:
    return [record["reason"] for record in run.named("restart")]
