"""Pages that show a session in a shell, and whether the shell still says so.

In a ```console block a line that begins with `$ ` is a command, and goes on in the next while it ends with a backslash;
what follows up to the next command is what it prints, stdout and stderr together.  `…` in a line stands for any text, a
line that is nothing else for any number of lines.
"""

import os
import re
import select
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.runs import HOUSE, carrying, end_all

DEADLINE = 120.0  # s, for a command; never waited for in full unless something is broken


class Command(NamedTuple):
    """`block`: in which block of the page, from 0."""

    block: int
    text: str
    output: str


def commands(page: str, language: str = "console") -> list[Command]:
    """Of all blocks, in order.  ValueError for a block that does not begin with a command."""
    found = []
    for number, block in enumerate(re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)):
        if not block.startswith("$ "):
            raise ValueError(f"block {number} does not begin with a command: {block[:60]!r}")
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            text, _, output = part.partition("\n")
            while text.endswith("\\"):
                more, _, output = output.partition("\n")
                text = f"{text}\n{more}"
            found.append(Command(number, text, output.rstrip("\n")))
    return found


def says(shown: str, printed: str) -> bool:
    """Whether what was printed is what the page shows."""
    pattern = ""
    for line in shown.splitlines():
        pattern += r"(?:[^\n]*\n)*?" if line.strip() == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())) is not None


class Shell:
    """One bash for a whole session, in `folder`; nothing that it starts outlives `end`."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = {}) -> None:
        self._script = folder.parent / f".command-{uuid.uuid4().hex}"
        self._marker = f"TEST_RUN={uuid.uuid4().hex}"
        (folder.parent / "tmp").mkdir()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_", "SLURM_"))}
        programs = f"{HOUSE / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": programs, "TMPDIR": str(folder.parent / "tmp"), "TERM": "dumb", "COLUMNS": "80"}
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=inherited | own | dict(environment) | dict([self._marker.split("=")]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, text: str) -> str:
        """What it prints until it ends, or until it is in the background."""
        end = uuid.uuid4().hex
        self._script.write_text(text + "\n", encoding="utf-8")
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        # Its status is there for the next command to ask for.
        line = f". {shlex.quote(str(self._script))} </dev/null; code=$?; printf '%s\\n' {end}; (exit $code)\n"
        stdin.write(line.encode())
        stdin.flush()
        printed, until = b"", time.monotonic() + DEADLINE
        while not printed.endswith(f"{end}\n".encode()):
            ready, _, _ = select.select([stdout], [], [], max(0.0, until - time.monotonic()))
            more = os.read(stdout.fileno(), 1 << 16) if ready else b""
            assert more, f"not done in {DEADLINE:.0f} s: {text}\n{printed.decode(errors='replace')}"
            printed += more
        return printed.decode(errors="replace")[: -len(end) - 1]

    def end(self) -> list[str]:
        """Ends all that is left, and says what it was."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE)
        self._process.stdout.close()
        self._script.unlink(missing_ok=True)
        left = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in self._living()]

        end_all(self._living)
        return left

    def _living(self) -> list[int]:
        return carrying(self._marker)


@contextmanager
def session(folder: Path) -> Iterator[Shell]:
    """A shell in `folder`.  At its end nothing that it has started may run any more."""
    made = Shell(folder)
    left = ["the session was not ended"]
    try:
        yield made
    finally:
        left = made.end()
    assert left == []


def differences(shell: Shell, shown: list[Command]) -> list[str]:
    """Runs all that a page has shown; each command whose output is not what the page shows, with both."""
    wrong = []
    for command in shown:
        printed = shell.run(command.text)
        if not says(command.output, printed):
            wrong.append(f"$ {command.text}\n--- the page shows\n{command.output}\n--- it printed\n{printed}")
    return wrong
