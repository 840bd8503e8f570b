"""What a real device and the processes on it look like, in one file that can be attached to a report.

    bin/prove gpu                                # gpu.json
    bin/prove gpu --python /usr/bin/python3      # whose PyTorch has CUDA, where that of .venv has none

It reads the threads of idle, training and hung processes, the power and use of a device that trains and of one that
spins, NCCL's RAS, the end of a context, how soon memory is free after a kill, and runs the tests marked `gpu`.  Each
step says in one line what it has found, or why it could not run; the file has all of it, and no names of hosts or
users.  It takes less than ten minutes, needs one device, and leaves no process behind.  Exit code 0: every step has run
or could not run here; 1: one has failed.
"""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from ftrun.helpers.evidence import nccl_ras
from ftrun.helpers.evidence.blocking_calls import Task
from ftrun.helpers.probe import nvidia
from ftrun.helpers.probe.device import Unavailable
from ftrun.messages.probe import Device
from proof.gpu import reading
from proof.gpu.programs import CHECK, TORCH
from support.ports import free_port

SCHEMA: Final = 1
WHOLE: Final = 570.0  # s for everything
START: Final = 60.0  # s until a program is in its state: PyTorch and CUDA are loaded
SECONDS: Final = 4.0  # of samples of the devices
FREE: Final = 30.0  # s for the memory of a killed process
SLACK: Final = 64 << 20  # bytes of a device that come and go
TESTS: Final = 240.0  # s for the tests marked `gpu`
TEXT: Final = 20_000  # characters of a text in the file
HOUSE: Final = Path(__file__).parents[3]


class NotHere(Exception):
    """This step cannot run on this machine; the text says why."""


class Bench:
    """The steps.  `read`: samples the devices; None where there are none."""

    def __init__(
        self,
        python: str = sys.executable,
        programs: Mapping[str, str] = TORCH,
        seconds: float = SECONDS,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._python, self._programs, self._seconds = python, programs, seconds
        self._environment = dict(environment)
        self._powers: dict[str, float] = {}  # the greatest that each device has drawn
        self._vendor: nvidia.Nvidia | None = None

    def steps(self) -> dict[str, tuple[Callable[[], dict[str, Any]], float]]:
        """Each step, and for how long it may run."""
        hung = [name for name in self._programs if name.startswith("hung")]
        return {
            "machine": (self._machine, 90.0),
            "nothing runs": (self._nothing, 30.0),
            "idle": (partial(self._process, "idle"), 90.0),
            "training": (partial(self._process, "training"), 90.0),
            **{name: (partial(self._process, name), 90.0) for name in hung},
            "nccl": (self._nccl, 90.0),
            "context death": (self._death, 90.0),
            "memory": (self._memory, 120.0),
            "tests": (self._tests, TESTS),
        }

    def _devices(self) -> list[Device]:
        """A sample; NotHere without a device."""
        if self._vendor is None:
            try:
                self._vendor = nvidia.open(self._environment)
            except Unavailable as reason:
                raise NotHere(str(reason)) from None
        found = list(self._vendor.devices())
        for device in found:
            self._powers[device.id] = max(self._powers.get(device.id, 0.0), device.power or 0.0)
        return found

    def _sampled(self) -> tuple[list[dict[str, Any]], list[Device]]:
        return reading.sampled(self._devices, self._seconds)

    def _machine(self) -> dict[str, Any]:
        about: dict[str, Any] = {"kernel": platform.release(), "machine": platform.machine(), "cores": os.cpu_count()}
        about["python"] = platform.python_version()
        with contextlib.suppress(OSError):
            about["driver"] = Path("/proc/driver/nvidia/version").read_text().splitlines()[:1]
        check = subprocess.run([self._python, "-c", CHECK], capture_output=True, text=True, timeout=80, check=False)
        about["torch"] = json.loads(check.stdout) if check.returncode == 0 else check.stderr.strip()[-200:]
        try:
            about["devices"] = [device._replace(id="", pids=())._asdict() for device in self._devices()]
        except NotHere as reason:
            about["devices"], about["no_device"] = [], str(reason)
        return about

    def _nothing(self) -> dict[str, Any]:
        return {"devices": self._sampled()[0]}

    def _process(self, name: str) -> dict[str, Any]:
        """Its threads, its devices, and what a look says."""
        self._devices()
        with self._running(name) as process:
            devices, last = self._sampled()
            threads, mapped = reading.threads_of(process.pid), reading.mapped(process.pid)
            said = reading.judged(process.pid, last, list(self._powers.items()))
        return {"devices": devices, "threads": threads, "mapped": mapped, "look": said}

    def _nccl(self) -> dict[str, Any]:
        """Its threads, and what RAS answers in both forms."""
        self._devices()
        ras = f"127.0.0.1:{free_port()}"
        with self._running("nccl", str(free_port()), NCCL_RAS_ADDR=ras) as process:
            where = nccl_ras.address(ras)
            assert where is not None
            found: dict[str, Any] = {"threads": reading.threads_of(process.pid), "mapped": reading.mapped(process.pid)}
            for form in ("json", "text"):
                try:
                    text = nccl_ras.query(where, form, time.monotonic() + nccl_ras.ANSWER)
                    found[form] = (text or "")[:TEXT]
                except OSError as error:
                    found[form] = f"no answer: {error}"
            view = nccl_ras.ask([process.pid], {process.pid: 0})
            found["understood"] = view is not None and view.problem is None
            found["communicators"] = 0 if view is None else len(view.communicators)
        return found

    def _death(self) -> dict[str, Any]:
        """How a process ends whose kernel fails, and what its device shows then."""
        self._devices()
        with self._running("context death") as process:
            _, errors = process.communicate(timeout=START)
            after = [{"health": device.health, "broken": device.broken} for device in self._devices()]
        last = errors.decode("utf-8", "replace").strip().splitlines()[-8:]
        return {"exit": process.returncode, "last_lines": [line[:300] for line in last], "devices": after}

    def _memory(self) -> dict[str, Any]:
        """How soon the memory of a killed process is free."""
        before = sum(device.memory_used or 0 for device in self._devices())
        with self._running("memory") as process:
            held = sum(device.memory_used or 0 for device in self._devices()) - before
            listed = any(process.pid in device.pids for device in self._devices())
            killed = time.monotonic()
            process.kill()
            process.wait(START)
            ended = time.monotonic() - killed
            while sum(device.memory_used or 0 for device in self._devices()) > before + SLACK:
                if time.monotonic() - killed > FREE:
                    raise TimeoutError(f"the memory is not free {FREE:.0f} s after the kill")
                time.sleep(0.02)
        free = time.monotonic() - killed
        return {"held": held, "listed": listed, "ended_after": round(ended, 3), "free_after": round(free, 3)}

    def _tests(self) -> dict[str, Any]:
        self._devices()
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/device"]
        done = subprocess.run(
            command, cwd=HOUSE, env=self._environment, capture_output=True, text=True, timeout=TESTS - 5, check=False
        )
        found = {"exit": done.returncode, "output": done.stdout[-TEXT:]}
        if done.returncode:
            raise AssertionError(f"tests fail: {done.stdout.strip().splitlines()[-1:]}")
        return found

    @contextlib.contextmanager
    def _running(self, name: str, *words: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """One of the programs, in the state that its name says, until the end of the `with`."""
        command = [self._python, "-c", self._programs[name], *words]
        environment = self._environment | variables
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = Task(process.stdout.readline)
            if not line.wait(START):
                raise TimeoutError(f"the program {name!r} has not begun after {START:.0f} s")
            if not line.value:
                last = process.stderr.read().decode("utf-8", "replace").strip().splitlines()[-1:]
                raise NotHere(f"its program ends at once: {''.join(last)[:300]}")
            yield process
        finally:
            process.kill()
            process.communicate()


def run(bench: Bench, whole: float = WHOLE) -> dict[str, Any]:
    """All steps, each within its time; what they found, for the file."""
    began, rows = time.monotonic(), []
    for name, (step, most) in bench.steps().items():
        left = min(most, whole - (time.monotonic() - began))
        at, row = time.monotonic(), dict[str, Any](step=name)
        task = Task(partial(_outcome, step))
        if left <= 0:
            row["not_run"] = "no time is left"
        elif not task.wait(left):
            row["failed"] = f"it has not ended after {left:.0f} s"
        else:
            row |= task.value or {"failed": task.problem}
        row["seconds"] = round(time.monotonic() - at, 1)
        rows.append(row)
        print(f"{name}: {_line(row)}", flush=True)
    return {"schema": SCHEMA, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "steps": rows}


def _outcome(step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"found": step()}
    except NotHere as reason:
        return {"not_run": str(reason)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def _line(row: Mapping[str, Any]) -> str:
    """One line for a person."""
    if "found" not in row:
        return f"not run: {row['not_run']}" if "not_run" in row else f"failed: {row['failed']}"
    found, parts = row["found"], [f"{row['seconds']} s"]
    for device in found.get("devices", ())[:1]:
        if isinstance(device.get("power"), list):
            parts += [f"{key} {device[key][1]:g}" for key in ("util", "memory_util", "power") if device.get(key)]
    if "threads" in found:
        parts += [f"{len(found['threads'])} threads"]
    if "look" in found:
        parts += ["a look says that it waits for its device"] if found["look"]["waits_for_its_device"] else []
    parts += [f"{key} {found[key]}" for key in ("no_device", "understood", "exit", "free_after") if key in found]
    return ", ".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter whose PyTorch has CUDA [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), metavar="FILE", help="[%(default)s]")
    given = parser.parse_args(argv)
    found = run(Bench(given.python))
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {given.out}")
    sys.stdout.flush()
    return 1 if any("failed" in row for row in found["steps"]) else 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # a thread may be stuck in the driver
