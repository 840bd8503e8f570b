"""A fake NVIDIA driver library, which the real `pynvml` loads, and its answers.

    fake = FakeNvml(tmp_path, devices=2)
    fake.set(0, **BUSY, holders={pid: 20 * GIB})      # its memory comes back when that process has ended
    fake.set(1, lost=True)
    subprocess.run(..., env=os.environ | fake.environment())
    fake.xid(0, 79)
    fake.later(3.0, 0, memory_used=0)                 # in 3 s

An answer that is set is used at once, in every process that has its environment.
"""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

SOURCE: Final = Path(__file__).with_name("fake_nvml.c")
GIB: Final = 1 << 30
ALL_INSTANCES: Final = 0xFFFFFFFF

# The values of an H100; SPINNING is a collective that waits: busy at low power.
IDLE: Final[dict[str, Any]] = {"util": 0, "memory_util": 0, "power": 71.5, "clock": 345, "sent": 0, "received": 0}
BUSY: Final[dict[str, Any]] = {
    "util": 97,
    "memory_util": 43,
    "power": 650.25,
    "clock": 1755,
    "sent": 120_000_000,
    "received": 310_000_000,
}
SPINNING: Final[dict[str, Any]] = BUSY | {"util": 100, "memory_util": 0, "power": 118, "sent": 0, "received": 0}
RECOVERY: Final = "field:230"  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
LOST, UNKNOWN, MISMATCH, NOT_LOADED, NO_PERMISSION = 15, 999, 18, 9, 4  # nvmlReturn_t


@functools.cache
def library(old: bool = False) -> Path:
    """A temporary folder with a libnvidia-ml.so.1; `old`: as of drivers before 450."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    output = ["-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    done = subprocess.run(
        [compiler, *flags, *(["-DOLD"] if old else []), *output], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


class FakeNvml:
    """`devices` idle GPUs.

    A scope is a number of a GPU, "0.1" (MIG device 1 of GPU 0) or "-" (the library).  Keys of a device: uuid, name,
    util, memory_util (%), power (W), clock (MHz), memory_used, memory_total (bytes), sent, received (bytes a second),
    rows_corrected, rows_uncorrected, ecc_errors, `RECOVERY`; pids (listed), holders ({pid: bytes}, listed and counted
    while they live), migs (how many), lost.  Keys of any: "blocks": CALL or "*" never returns; "error:CALL" or
    "error:*" returns that nvmlReturn_t.  None: not supported, not set.  Keys of the library: devices, epoch.
    """

    def __init__(self, folder: Path, devices: int = 1, old: bool = False) -> None:
        self._library = library(old)
        self._path = folder / "nvml.state"
        self._values: dict[tuple[str, str], Any] = {}
        self._more: list[str] = []  # later values, and Xids
        self._xids = 0
        self._epoch = 0
        self._set("-", {"devices": devices, "epoch": 0})
        for index in range(devices):
            used = {"memory_used": 600 << 20, "memory_total": 80 * GIB}
            rows = {"rows_corrected": 0, "rows_uncorrected": 0, "ecc_errors": 0, RECOVERY: 0}
            names = {"uuid": uuid(index), "name": "NVIDIA H100 80GB HBM3"}
            self._set(str(index), names | dict(IDLE) | used | rows)
        self._write()

    def environment(self) -> dict[str, str]:
        """The variables with which a process loads the library."""
        path = os.pathsep.join(filter(None, (str(self._library), os.environ.get("LD_LIBRARY_PATH"))))
        return {"LD_LIBRARY_PATH": path, "FTRUN_FAKE_NVML": str(self._path)}

    def set(self, scope: int | str, **values: Any) -> None:
        self._set(str(scope), values)
        self._write()

    def later(self, delay: float, scope: int | str, **values: Any) -> None:
        """Set values from `delay` s on; they override those that are set otherwise."""
        at = time.monotonic() + delay
        self._more += [_line(str(scope), at, key, value) for key, value in values.items()]
        self._write()

    def divide(self, index: int, number: int) -> list[str]:
        """Partition a GPU into MIG devices, 4 at most; returns their UUIDs."""
        self._set(str(index), {"migs": number})
        for mig in range(number):
            memory = {"memory_used": 12 << 20, "memory_total": 10 * GIB}
            name = {"uuid": uuid(index, mig), "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}
            self._set(f"{index}.{mig}", name | memory)
        self._write()
        return [uuid(index, mig) for mig in range(number)]

    def xid(self, index: int, code: int, instance: int = ALL_INSTANCES) -> None:
        """Report an Xid; `instance`: the GPU instance that it concerns (MIG device n has n + 1)."""
        self.xids((index, code), instance=instance)

    def xids(self, *faults: tuple[int, int], instance: int = ALL_INSTANCES) -> None:
        """Fire several at one instant: (index, code)."""
        for index, code in faults:
            self._xids += 1
            self._more.append(f"{index} 0 xid {self._xids} {code} {instance}")
        self._write()

    @property
    def blocked(self) -> bool:
        """Whether a call has blocked so far."""
        return self._path.with_name(f"{self._path.name}.blocked").exists()

    def reload(self) -> None:
        """Reload the driver: every process that uses it has to initialise it again."""
        self._epoch += 1
        self.set("-", epoch=self._epoch)

    def _set(self, scope: str, values: Mapping[str, Any]) -> None:
        self._values |= {(scope, key): value for key, value in values.items()}

    def _write(self) -> None:
        lines = [_line(scope, 0, key, value) for (scope, key), value in self._values.items()]
        new = self._path.with_suffix(".new")
        new.write_text("\n".join([*lines, *self._more, ""]), encoding="utf-8")
        new.replace(self._path)


def uuid(index: int, mig: int | None = None) -> str:
    """The UUID of GPU `index`; they differ in their second character."""
    if mig is None:
        return f"GPU-{index:x}{'abcdef0'}-{index:04x}-4000-8000-000000000000"
    return f"MIG-{index:x}{mig:x}{'abcdef'}-{index:04x}-5000-8000-000000000000"


def _line(scope: str, since: float, key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = " ".join(f"{pid}:{size}" for pid, size in value.items())
    elif isinstance(value, (list, tuple)):
        value = " ".join(map(str, value))
    elif value is None:
        value = ""
    elif isinstance(value, bool):
        value = int(value)
    return f"{scope} {since:.6f} {key} {value}"
