"""One ftrun that repeats a restart, or the replacement of a rank, again and again, and is measured while the command
waits."""

import math
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

from proof.soak.samples import Sample, look
from support.runs import FTCTL, FTRUN, HOUSE, Mode, carrying, children, end_all, patched

DEADLINE: Final = 1800.0  # s from one sample to the next, and for the end; reached only if something is broken
FINISHING: Final = 15.0  # s that its helpers may take to end after it
SOAK: Final = HOUSE / "tests" / "proof" / "soak"
MARK: Final = "FTRUN_SOAK"
MOUNTED: Final = ("unshare", "--mount", "--propagation", "private")
NAMESPACE: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
SHM: Final = 'mount -t tmpfs -o size=64m soak /dev/shm\nexec "$@"'  # its own /dev/shm: all files in it are of this run
OPTIONS: Final = ("--restart-on", "hang,failure", "--grace", "300ms", "--quiet", "--start-timeout", "off")
RESTART: Final = ("--max-restarts", "off", "--backoff", "off")
METRICS: Final = ("--metrics", "127.0.0.1:0")
# Without most of the pauses before a standby is started, which are more than an hour of 10,000 starts.
AT_ONCE: Final = patched("import ftrun.pid1.standby as standby\nstandby.rules.PROMPT, standby.AGAIN = 0.1, (0.2, 5.0)")


class Form(NamedTuple):
    """What is repeated: the command and the options for it; `record`: a part of the record of each repetition."""

    command: tuple[str, ...]
    options: tuple[str, ...]
    record: bytes
    program: tuple[str, ...] = FTRUN


def _python(name: str, *options: str) -> tuple[str, ...]:
    return sys.executable, *options, str(SOAK / name)


FORMS: Final = {
    "restarts": Form(
        _python("tree.py", "-S", "-E"),
        (*RESTART, *METRICS, "--hang-timeout", "300ms", "--idle-timeout", "1m"),
        b'"event": "restart"',
    ),
    "ranks": Form(
        _python("rank_work.py", "-S", "-E"),
        (*RESTART, *METRICS, "--nproc-per-node", "2", "--hang-timeout", "off", "--standby", "off"),
        b'"event": "recovered"',
    ),
    "warm": Form(
        _python("warm_work.py"), (*RESTART, *METRICS, "--standby", "1", "--hang-timeout", "off"), b'"warm": 1', AT_ONCE
    ),
}


class Broken(Exception):
    """The soak failed; the message has a few lines."""


class Plan(NamedTuple):
    """`restarts`: how many repetitions of the form, or fewer after `seconds`: at the first sample after that time, the
    next repetition is the last one.  After each `look`th there is a sample; of the restarts of a whole tree the next
    one then is a request, and one in `hang` is after a hang."""

    restarts: int = 10_000
    look: int = 100
    hang: int = 50
    form: str = "restarts"
    seconds: float = math.inf


class Soak:
    """A context manager: all processes are ended at its exit.  `restarts`: as planned, or how many it has come to."""

    def __init__(self, folder: Path, plan: Plan, mode: Mode, program: Sequence[str] = ()) -> None:
        self._plan, self._logs, self._tmp = plan, folder / "logs", folder / "tmp"
        self._state = folder / "state"
        self._form, self._fifo, self._last = FORMS[plan.form], folder / "go", folder / "last"
        os.mkfifo(self._fifo)
        self._until = time.monotonic() + plan.seconds
        self._set_last(plan.restarts)
        self._mark = uuid.uuid4().hex
        self._tmp.mkdir()
        progress = ("--progress", str(folder / "checkpoints" / "*"), "--state-dir", str(self._state))
        arguments = [*MOUNTED, "sh", "-ec", SHM, "sh", *(NAMESPACE if mode == "pid1" else ())]
        arguments += [*(program or self._form.program), *OPTIONS]
        last = str(plan.hang) if plan.form == "restarts" else str(self._fifo)
        words = (str(self._last), str(plan.look), last, str(HOUSE / "hooks"))
        arguments += [*self._form.options, *progress, "--log-dir", str(self._logs), "--", *self._form.command, *words]
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "SLURM_", "PYTHON"))}
        self._stderr = (folder / "stderr").open("w+b")
        self._process = subprocess.Popen(
            arguments,
            env=plain | {"TMPDIR": str(self._tmp), MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        self._mode, self._shm = mode, -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._process.kill()  # a PID namespace dies with it
        end_all(lambda: carrying(f"{MARK}={self._mark}"))
        self._process.wait()
        self._output.close()
        self._stderr.close()
        if self._shm >= 0:
            os.close(self._shm)

    def samples(self) -> Iterator[Sample]:
        """All samples; Broken if the run or its end is not as planned."""
        for line in self._lines():
            event, _, number = line.partition(b" ")
            if event != b"ready":
                raise Broken(f"the tree printed {line!r}")
            yield self._look(int(number) - 1)
            if time.monotonic() > self._until:
                self._set_last(int(number))
            if self._plan.form == "restarts":
                self._request_restart()
            else:
                self._fifo.write_bytes(b".")
        self._ended()

    def _set_last(self, restarts: int) -> None:
        """The command reads this file at each of its starts, or rounds."""
        self.restarts = restarts
        self._last.with_suffix(".new").write_text(str(restarts))
        self._last.with_suffix(".new").rename(self._last)

    def _look(self, restarts: int) -> Sample:
        ftrun = children(self._process.pid)[0] if self._mode == "pid1" else self._process.pid
        if self._shm < 0:
            self._shm = os.open(f"/proc/{ftrun}/root/dev/shm", os.O_RDONLY | os.O_DIRECTORY)
        folders = {"/dev/shm": Path(f"/proc/{ftrun}/root/dev/shm"), "TMPDIR": self._tmp, "state": self._state}
        return look(ftrun, restarts, self.run_dir, folders)

    @property
    def run_dir(self) -> Path:
        (found,) = self._logs.iterdir()
        return found

    def _request_restart(self) -> None:
        arguments = [*FTCTL, "restart", "--run-dir", str(self.run_dir)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=DEADLINE)
        if done.returncode:
            raise Broken(f"ftctl restart ended with {done.returncode}: {done.stderr}")

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        while select.select([self._output], [], [], DEADLINE)[0]:
            content = os.read(self._output.fileno(), 65536)
            *lines, rest = (rest + content).split(b"\n")
            yield from lines
            if not content:
                return
        raise Broken(f"nothing happened for {DEADLINE:.0f} s: {self._errors()}")

    def _ended(self) -> None:
        code = self._process.wait(DEADLINE)
        if code:
            raise Broken(f"it ended with {code}: {self._errors()}")
        found = (self.run_dir / "events.jsonl").read_bytes().count(self._form.record)
        if found != self.restarts:
            raise Broken(f"{found} {self._plan.form} are recorded instead of {self.restarts}")
        until = time.monotonic() + FINISHING
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.02)
        if left:
            raise Broken(f"left at its end: {', '.join(left)}")

    def _left(self) -> list[str]:
        left = [f"process {pid}" for pid in carrying(f"{MARK}={self._mark}")]
        return left + [f"/dev/shm/{name}" for name in os.listdir(self._shm)] + list(map(str, self._tmp.iterdir()))

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()[-4000:].decode(errors="replace")
