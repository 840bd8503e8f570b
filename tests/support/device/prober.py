"""A probe that was started as PID 1 starts it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from support.helper_process import HelperProcess, Line

# Restarts of NVML without a pause, and PCIe traffic measured in every sample.
QUICK: Final = "import ftrun.helpers.probe.nvidia as n; n.AGAIN = n.LONGEST_AGAIN = 0.02; n.TRAFFIC = 0.0"
SELDOM: Final = 3600.0  # s: the probe samples only on request and after faults
LONG: Final = 60.0  # s that no request here takes


class Prober(HelperProcess):
    """A probe that must write nothing to stderr."""

    def __init__(
        self,
        environment: Mapping[str, str],
        kind: str = "nvidia",
        period: float = 0.05,
        before: str = QUICK,
        table: Path | None = None,
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
        arguments = (kind, str(period), *([str(table)] if table else []))
        super().__init__("probe", *arguments, before=before, silent=True, environment=inherited | dict(environment))

    def devices(self, condition: Callable[[list[Line]], object] = lambda _: True) -> list[Line]:
        """The next sample that fulfils the condition."""
        return list(self.event("devices", lambda line: condition(line["devices"]))["devices"])

    def named(self, name: str) -> list[Line]:
        """All messages of this name so far."""
        return [line for line in self.lines if line["event"] == name]

    def free(self, timeout: float = LONG, **more: Any) -> Line:
        """The answer to `free`."""
        self.ask(ask="free", timeout=timeout, **{"pids": [], "used": {}} | more)
        return self.event("freed")

    def clear(self, device: str, code: str, timeout: float = LONG) -> Line:
        """The answer to `clear`."""
        self.ask(ask="clear", device=device, code=code, timeout=timeout)
        return self.event("cleared")
