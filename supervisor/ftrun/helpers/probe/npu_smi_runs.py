"""Runs `npu-smi`: several runs at the same time, each with a deadline.

A card whose tool is blocked in the driver, so that it cannot be killed, is not queried again before that has ended.
"""

import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ftrun.accelerators.table import ASCEND
from ftrun.core.named_tuple import NamedTuple
from ftrun.host import spawn

# Its libraries.  Only a script of the driver puts them on the path, and a boot command often runs that script later.
LIBRARIES: Final = ":".join(f"/usr/local/Ascend/driver/lib64{folder}" for folder in ("", "/common", "/driver"))
TIMEOUT: Final = 5.0  # s for an answer
LOOK: Final = 10.0  # s after which a query starts no further run, for tools that answer slowly
AT_ONCE: Final = 8  # cards: all cards of most nodes, so that a driver that blocks all of them costs one TIMEOUT
ENDING: Final = 0.01  # s between checks whether a tool that has closed its output has ended
LONGEST: Final = 1 << 20  # bytes of the output of one run

Arguments = tuple[str, ...]


class ToolAnswer(NamedTuple):
    """The output of the tool and its exit status, negative if a signal ended it."""

    text: str
    code: int


class ToolRun:
    """A running tool."""

    def __init__(self, tool: str, environment: Mapping[str, str], queue: deque[Arguments], timeout: float) -> None:
        self.queue = queue  # this run first
        self.answer = b""
        self.open = True
        self.deadline = time.monotonic() + timeout
        self.process = subprocess.Popen(
            [tool, *queue[0]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            # When the probe is killed, its tools must not stay behind and wait for the driver.
            preexec_fn=lambda: spawn.prctl(spawn.PR_SET_PDEATHSIG, signal.SIGKILL),
        )

    @property
    def fd(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def read(self) -> None:
        content = os.read(self.fd, 65536)
        self.open = bool(content)
        self.answer += content
        if len(self.answer) > LONGEST:
            self.deadline = 0.0

    def end(self) -> None:
        """Kill the tool and stop reading its output."""
        self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class ToolRunner:
    """Runs the tool.  `started`: the runs of the last `query` that were started, whether answered or not."""

    def __init__(self, tool: str, environment: Mapping[str, str]) -> None:
        self._tool = tool
        # The libraries under the tool do not support that variable (CANN: environment variable reference).
        self._environment = {k: v for k, v in environment.items() if k != ASCEND.visible}
        libraries = ":".join(filter(None, (environment.get("LD_LIBRARY_PATH"), LIBRARIES)))
        self._environment |= {"LC_ALL": "C", "LD_LIBRARY_PATH": libraries}
        self.started: set[Arguments] = set()
        self._held: dict[str, subprocess.Popen[bytes]] = {}  # killed but not ended, by the card that it queries, if any

    def query(self, queues: Iterable[Sequence[Arguments]], timeout: float | None = None) -> dict[Arguments, ToolAnswer]:
        """The answer of each run, whatever its exit status; each queue in its order, several queues at the same time.
        A run that takes longer than `timeout` s has no answer, nor do those behind it.  Takes LOOK + `timeout` s."""
        timeout, self.started = TIMEOUT if timeout is None else timeout, set()
        last = time.monotonic() + LOOK
        waiting = deque(deque(queue) for queue in queues if queue)
        running: list[ToolRun] = []
        answers: dict[Arguments, ToolAnswer] = {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                queue = waiting.popleft()
                running += self._start(queue, timeout) if time.monotonic() < last else []
            self._wait(running)
            for run in list(running):
                if not run.open and run.process.poll() is not None:
                    text = run.answer.decode(errors="replace")
                    answers[run.queue.popleft()] = ToolAnswer(text, run.process.returncode)
                    if run.queue:
                        waiting.appendleft(run.queue)
                elif time.monotonic() >= run.deadline:
                    self._held[card_of(run.queue[0])] = run.process
                else:
                    continue
                run.end()
                running.remove(run)
        return answers

    def _start(self, queue: deque[Arguments], timeout: float) -> list[ToolRun]:
        held = self._held.get(card_of(queue[0]))
        if held is not None and held.poll() is None:
            return []
        self.started.add(queue[0])
        try:
            return [ToolRun(self._tool, self._environment, queue, timeout)]
        except OSError:  # no memory, too many processes, or the tool does not exist any more
            return []

    def _wait(self, running: Sequence[ToolRun]) -> None:
        """Wait until a run has output, has ended or is late."""
        poll = select.poll()
        until = max((run.deadline for run in running), default=0.0)
        for run in running:
            if run.open:
                poll.register(run.fd, select.POLLIN)
            until = min(until, run.deadline)
        left = max(until - time.monotonic(), 0.0)
        if not all(run.open for run in running):
            left = min(left, ENDING)
        ready = {fd for fd, _ in poll.poll(left * 1000 + 1)} if running else set()
        for run in running:
            if run.open and run.fd in ready:
                run.read()


def card_of(arguments: Arguments) -> str:
    """The card that a run is about; empty where it is about all of them."""
    return arguments[arguments.index("-i") + 1] if "-i" in arguments else ""
