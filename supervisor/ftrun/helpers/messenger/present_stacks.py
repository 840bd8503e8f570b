"""The present stacks of this member, for another member of the group that asks for them.

They are collected by a program of its own (helpers/evidence/present.py), one at a time, for at most `LONGEST` s; what
it prints is kept for the parts that are asked for later.
"""

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from ftrun.host.helpers import CODE
from ftrun.messages import group_view as messages
from ftrun.messages.group_view import FilePart, FileRequest

LONGEST: Final = 60.0  # s
POLL: Final = 0.1  # s
WHY: Final = 500  # bytes of the line that says why there are no stacks
WAITING: Final = 8  # requests that wait for one program
# The messenger limits its own memory; the program, which reads the symbols of large libraries, has the usual limit.
UNLIMITED: Final = """import resource
resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
"""

SendPart = Callable[[FilePart], None]


class PresentStacks:
    """The present stacks of the run whose run dir is the working directory."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._output = -1  # a file in memory
        self._until = 0.0
        self._rank: int | None = None
        self._waiting: list[tuple[FileRequest, SendPart]] = []
        self._content = b""

    @property
    def collecting(self) -> bool:
        """Whether `process` has to be called every `POLL` s."""
        return self._process is not None

    def ask(self, request: FileRequest, answer: SendPart, now: float) -> None:
        """Answer a request: `answer` is called in any case, but later if the stacks have to be collected."""
        if request.offset > 0:
            answer(part_of(request, self._content))
        elif self._process is not None and (request.rank != self._rank or len(self._waiting) >= WAITING):
            answer(FilePart(request.id, False, "the stacks are being collected for another request"))
        elif self._process is not None or self._start(request, answer, now):
            self._waiting.append((request, answer))

    def process(self, now: float) -> None:
        """Answer, if the program has ended or takes too long."""
        if self._process is None or (self._process.poll() is None and now < self._until):
            return
        code = self._process.poll()
        self.close()
        size = os.fstat(self._output).st_size
        self._content = os.pread(self._output, min(size, messages.MOST), 0)
        os.close(self._output)
        waiting, self._waiting = self._waiting, []
        why = self._content[:WHY].decode("utf-8", "replace").strip() or "the stacks cannot be collected"
        if code is None:
            why = f"the stacks were not collected within {LONGEST:.0f} s"
        for request, answer in waiting:
            answer(part_of(request, self._content) if code == 0 else FilePart(request.id, False, why))

    def close(self) -> None:
        """End the program and what it has started, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, request: FileRequest, answer: SendPart, now: float) -> bool:
        self._rank = request.rank
        words = [os.getcwd(), *([] if request.rank is None else [str(request.rank)])]
        code = UNLIMITED + CODE.format(name="evidence.present")
        command = [sys.executable, "-I", "-c", code, "\n".join(sys.path[:2]), *words]
        output = os.memfd_create("stacks", os.MFD_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            os.close(output)
            answer(FilePart(request.id, False, f"the stacks cannot be collected: {error.strerror}"))
            return False
        self._output, self._until = output, now + LONGEST
        return True


def part_of(request: FileRequest, content: bytes, attempt: int = 0) -> FilePart:
    """The part of this content that the request asks for."""
    part = content[request.offset : request.offset + messages.PART] if request.offset >= 0 else b""
    return FilePart(request.id, True, "", attempt, len(content), base64.b64encode(part).decode("ascii"))
