"""Runs `npu-smi`: several questions at once, each with its deadline.

A tool that a driver holds cannot be killed: it is remembered and its card not asked again before it has ended, so one
card never holds more than one of them, nor the others up.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ftrun.accelerators.ascend import ASCEND
from ftrun.host import spawn

# Its libraries, which only a script of the driver puts on the path; a boot command often runs that itself, after us.
LIBRARIES: Final = ":".join(f"/usr/local/Ascend/driver/lib64{folder}" for folder in ("", "/common", "/driver"))
TIMEOUT: Final = 5.0  # s for an answer
LOOK: Final = 10.0  # s after which no more is asked: answers that are slow but come
AT_ONCE: Final = 8  # cards: all of most nodes, so that a driver that holds all of them takes one TIMEOUT
ENDING: Final = 0.01  # s between two looks whether a tool has ended that has closed its output
CLOSING: Final = 0.5  # s for killed ones to end
LONGEST: Final = 1 << 20  # bytes of an answer

Words = tuple[str, ...]


class Answer(NamedTuple):
    """What the tool printed, and its exit status as `subprocess` has it: negative where a signal ended it."""

    text: str
    code: int


class Question:
    """A tool that runs."""

    def __init__(self, tool: str, environment: Mapping[str, str], queue: deque[Words], timeout: float) -> None:
        self.queue = queue  # this one first
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
            preexec_fn=_end_with_us,
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
        """Nothing more of it is waited for."""
        self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Asking:
    """Runs the tool.  `begun`: the questions of the last `ask` that the tool was started for, answered or not."""

    def __init__(self, tool: str, environment: Mapping[str, str]) -> None:
        self._tool = tool
        # The libraries under the tool do not support that variable (CANN: environment variable reference).
        self._environment = {k: v for k, v in environment.items() if k != ASCEND.visible}
        own = environment.get("LD_LIBRARY_PATH")
        self._environment |= {"LC_ALL": "C", "LD_LIBRARY_PATH": f"{own}:{LIBRARIES}" if own else LIBRARIES}
        self.begun: set[Words] = set()
        self._held: dict[str, subprocess.Popen[bytes]] = {}  # killed, not ended: by the card, if any, that it asks

    def ask(self, queues: Iterable[Sequence[Words]], timeout: float | None = None) -> dict[Words, Answer]:
        """What the tool said to each question, whatever its exit status; each queue in its order, several at once.

        What takes longer than `timeout` (s; TIMEOUT where it is not given) has no answer, nor has what is behind it in
        its queue.  It takes LOOK and that timeout at most.
        """
        timeout, self.begun = TIMEOUT if timeout is None else timeout, set()
        last = time.monotonic() + LOOK
        waiting = deque(deque(queue) for queue in queues if queue)
        running: list[Question] = []
        answers: dict[Words, Answer] = {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                queue = waiting.popleft()
                running += self._start(queue, timeout) if time.monotonic() < last else []
            self._wait(running)
            for question in list(running):
                if not question.open and question.process.poll() is not None:
                    text = question.answer.decode(errors="replace")
                    answers[question.queue.popleft()] = Answer(text, question.process.returncode)
                    if question.queue:
                        waiting.appendleft(question.queue)
                elif time.monotonic() >= question.deadline:
                    self._held[card_of(question.queue[0])] = question.process
                else:
                    continue
                question.end()
                running.remove(question)
        return answers

    def _start(self, queue: deque[Words], timeout: float) -> list[Question]:
        held = self._held.get(card_of(queue[0]))
        if held is not None and held.poll() is None:
            return []
        self.begun.add(queue[0])
        try:
            return [Question(self._tool, self._environment, queue, timeout)]
        except OSError:  # no memory, no process to be had, or the tool is gone
            return []

    def _wait(self, running: Sequence[Question]) -> None:
        """Until one says something, has ended or is late."""
        poll = select.poll()
        until = max((question.deadline for question in running), default=0.0)
        for question in running:
            if question.open:
                poll.register(question.fd, select.POLLIN)
            until = min(until, question.deadline)
        left = max(until - time.monotonic(), 0.0)
        if not all(question.open for question in running):
            left = min(left, ENDING)
        ready = {fd for fd, _ in poll.poll(left * 1000 + 1)} if running else set()
        for question in running:
            if question.open and question.fd in ready:
                question.read()

    def close(self) -> None:
        """Wait for killed ones, but not for those that a driver holds."""
        until = time.monotonic() + CLOSING
        for process in self._held.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))


def _end_with_us() -> None:
    """In the new process: a probe that is killed leaves no tool behind that waits for its driver for ever."""
    spawn.prctl(spawn.PR_SET_PDEATHSIG, signal.SIGKILL)


def card_of(words: Words) -> str:
    """The card that a question is about; empty where it is about all of them."""
    return words[words.index("-i") + 1] if "-i" in words else ""
