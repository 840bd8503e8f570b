"""A helper that was started as PID 1 starts it, and that talks by `ftrun.helpers.lines`."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from ftrun.host.helpers import CODE

HOUSE: Final = Path(__file__).resolve().parents[2]
DEADLINE: Final = 60.0  # s: only a broken one takes so long
Line = dict[str, Any]


class HelperProcess:
    """`before` is Python that runs first, as for shorter waits; `prefix` what it is started by.  If it is `silent`, it
    must write nothing to stderr."""

    def __init__(
        self,
        name: str,
        *words: str,
        before: str = "",
        prefix: Sequence[str] = (),
        python: str = sys.executable,
        cwd: Path | None = None,
        log: Path | None = None,
        silent: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.lines: list[Line] = []
        self._rest = b""
        self._unseen = 0
        code = CODE.format(name=f"{name}.program").replace("from ftrun", f"{before}\nfrom ftrun", 1)
        self._errors = os.memfd_create("errors") if silent else -1
        with open(f"/proc/self/fd/{self._errors}" if silent else log or os.devnull, "ab") as stderr:
            self.process = subprocess.Popen(
                [*prefix, python, "-I", "-c", code, f"{HOUSE}/supervisor\n{HOUSE}/hooks", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=cwd,
                env=os.environ if environment is None else environment,
                bufsize=0,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self._errors >= 0:
            errors = os.pread(self._errors, 1 << 16, 0)
            os.close(self._errors)
            assert errors == b"", errors.decode(errors="replace")

    def ask(self, **request: Any) -> None:
        self.write(json.dumps(request).encode() + b"\n")

    def write(self, content: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(content)

    def event(self, name: str, so: Callable[[Line], object] = lambda _: True) -> Line:
        """The next line of that name that is so; each line is seen once."""
        until = time.monotonic() + DEADLINE
        while True:
            while self._unseen < len(self.lines):
                line = self.lines[self._unseen]
                self._unseen += 1
                if line["event"] == name and so(line):
                    return line
            left = until - time.monotonic()
            assert left > 0, f"not within {DEADLINE:.0f} s: {name}; {self.lines[-5:]}"
            assert self.read(left), f"it ended without {name}: {self.lines[-5:]}"

    def read(self, timeout: float = DEADLINE) -> bool:
        """Take what is there, after at most `timeout` s; False when nothing more can come."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            return True
        content = os.read(self.process.stdout.fileno(), 1 << 20)
        *whole, self._rest = (self._rest + content).split(b"\n")
        self.lines += [json.loads(line.decode("ascii")) for line in whole]
        return bool(content)

    @property
    def problems(self) -> list[str]:
        return [line["what"] for line in self.lines if line["event"] == "problem"]

    def end(self) -> int:
        """Its stdin ends; the exit code, and all that it said is in `lines`."""
        if self.process.stdin is not None:
            self.process.stdin.close()
            self.process.stdin = None
        return self.ended()

    def ended(self) -> int:
        """It ends by itself."""
        while self.read():
            pass
        return self.process.wait(DEADLINE)
