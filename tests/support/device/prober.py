"""A probe that was started as PID 1 starts it."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from ftrun.host.helpers import CODE

HOUSE: Final = Path(__file__).resolve().parents[3]
DEADLINE: Final = 20.0  # s: only a broken one takes so long
Line = dict[str, Any]


class Prober:
    """`before` is Python that runs first, as for shorter waits."""

    def __init__(
        self,
        environment: Mapping[str, str],
        kind: str = "nvidia",
        period: float = 0.05,
        before: str = "",
        table: Path | None = None,
    ) -> None:
        self.lines: list[Line] = []
        self._rest = b""
        ours = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
        code = CODE.format(name="probe").replace("from ftrun", f"{before}\nfrom ftrun", 1)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-c",
                code,
                f"{HOUSE}/supervisor",
                kind,
                str(period),
                *([str(table)] if table else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ours | dict(environment),
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        wrong: bytes = self.process.communicate()[1]
        assert wrong == b"", wrong.decode(errors="replace")

    def ask(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")

    def until(self, condition: Callable[[Line], object], what: str) -> Line:
        """The first line from now on, or of those that were not read, that is so."""
        until = time.monotonic() + DEADLINE
        while True:
            for line in self._read(until - time.monotonic(), what):
                self.lines.append(line)
                if condition(line):
                    return line

    def event(self, name: str) -> Line:
        return self.until(lambda line: line["event"] == name, name)

    def devices(self, condition: Callable[[list[Line]], object] = lambda _: True) -> list[Line]:
        """The first look that is so."""

        def so(line: Line) -> object:
            return line["event"] == "devices" and condition(line["devices"])

        return list(self.until(so, "such devices")["devices"])

    def end(self) -> int:
        """Its stdin ends; the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        return self.process.wait(DEADLINE)

    def _read(self, timeout: float, what: str) -> list[Line]:
        """One line, or none yet."""
        whole, newline, rest = self._rest.partition(b"\n")
        if newline:
            self._rest = rest
            return [json.loads(whole.decode("ascii"))]
        assert self.process.stdout is not None
        ready = select.select([self.process.stdout], [], [], max(timeout, 0))[0]
        assert ready, f"not within {DEADLINE:.0f} s: {what}; {self.lines[-3:]}"
        content = os.read(self.process.stdout.fileno(), 1 << 20)
        assert content, f"it ended without {what}: {self.lines[-3:]}"
        self._rest += content
        return []
