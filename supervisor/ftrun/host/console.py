"""ftrun's own lines on stderr: few, prefixed, and never in the job's way."""

import json
import os
import select
import stat
import sys
import time
from collections.abc import Iterable
from typing import Final, Literal

from ftrun.config.option_table import Settings
from ftrun.core.text import sentences
from ftrun.host.signals import writing
from ftrun.messages import records

Severity = Literal["debug", "info", "warning", "error"]
LIMIT: Final = 4096  # bytes of a line: what a pipe takes whole or not at all (PIPE_BUF)
LONGEST: Final = LIMIT - 64  # of the text in it
RESET: Final = "\033[0m"
COLOURS: Final[dict[Severity, tuple[str, str, str]]] = {  # before the prefix, before the text, after it
    "debug": ("\033[2m", "", RESET),
    "info": ("\033[1m", RESET, ""),
    "warning": ("\033[1;33m", RESET, ""),
    "error": ("\033[1;31m", "\033[22m", RESET),
}


class Console:
    """`level` 0 says nothing, 1 what a person must know, 2 every record.  `attempt` is the one that lines are about.

    As text, a line is `[ftrun] ...`, in colours where stderr is a terminal that shows them and NO_COLOR is not set.
    It begins on a line of its own there, also after a progress bar.  In a pipe or a file that the command shares it may
    follow a bar on the same line: nobody can know there how the last line of the command ended.
    As JSON it is one object of `time`, `level`, `source`, `attempt` and `message`; that of a record has `event` and
    `fields` too.  Whatever is said, it is one line, and nothing in it acts on a terminal.

    A line that stderr cannot take at once is dropped (it is in `run.log`): a full pipe must never block PID 1.  The
    command shares our stderr, so its flags cannot be changed; a pipe or a terminal is opened anew instead.
    """

    def __init__(self, level: int = 1, as_json: bool = False) -> None:
        # Closed when we were started: what has that number now is something else.
        self.level = level if sys.stderr is not None else -1
        self.attempt: int | None = None
        self._json = as_json
        self._fd = 2
        try:
            mode = os.fstat(2).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
                self._fd = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            pass  # not to be opened anew (another user's terminal): the poll below is what is left
        self._colours = not as_json and _shows_colours()

    def say(self, text: str, level: int = 1, severity: Severity = "warning") -> None:
        """`severity`: `warning` for a trouble, `error` for a verdict or our own failure, `info` for the rest."""
        if level <= self.level:
            self._write(self._object(severity, text) if self._json else self._line(severity, text))

    def record(self, stamp: str, event: str, fields: Iterable[tuple[str, object]]) -> None:
        """A record, on level 2."""
        if self.level < 2:
            return
        if self._json:
            told = {name: value for name, value in fields if value is not None}
            self._write(self._object("debug", sentences.record(event, told.items()), stamp, event, told))
        else:
            self._write(self._line("debug", f"{stamp} {sentences.record(event, fields)}"))

    def _line(self, severity: Severity, text: str) -> bytes:
        start, between, end = COLOURS[severity] if self._colours else ("", "", "")
        shown = sentences.printable(text).encode("utf-8", "backslashreplace")
        if len(shown) > LONGEST:
            shown = shown[: LONGEST - 3].decode("utf-8", "ignore").encode() + b"..."
        return f"{_new_line()}{start}[ftrun]{between} ".encode() + shown + f"{end}\n".encode()

    def _object(
        self,
        severity: Severity,
        text: str,
        stamp: str | None = None,
        event: str | None = None,
        fields: dict[str, object] | None = None,
    ) -> bytes:
        """A field that is too long for a line is left out, a message is cut."""
        now = time.time_ns()
        found: dict[str, object] = {
            "time": stamp or records.timestamp(now, time.gmtime(now // 1_000_000_000)),
            "level": severity,
            "source": "ftrun",
            "attempt": self.attempt,
            "message": sentences.printable(text),
        }
        if event is not None:
            found |= {"event": event, "fields": fields}
        content = _dumped(found)
        if len(content) > LIMIT:
            content = _dumped({name: value for name, value in found.items() if name != "fields"})
        while len(content) > LIMIT:
            message = str(found["message"])
            found["message"] = sentences.short(message, len(message) // 2)
            content = _dumped({name: value for name, value in found.items() if name != "fields"})
        return content

    def _write(self, line: bytes) -> None:
        try:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if poll.poll(0):
                with writing():
                    os.write(self._fd, line)
        except OSError:
            pass


def of(settings: Settings) -> Console:
    """As the options have it."""
    level = 0 if settings["quiet"].value else 2 if settings["verbose"].value else 1
    return Console(level, settings["log-format"].value == "json")


def _shows_colours() -> bool:
    """https://no-color.org: any value that is not empty switches them off."""
    return os.isatty(2) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _new_line() -> str:
    """What takes the cursor of a terminal to the beginning of a line, wherever the command left it; nothing elsewhere.

    As zsh does it (PROMPT_SP): as many blanks as a line has.  In the first column they fill the line, and the cursor
    returns to its beginning; anywhere else they go over its end, so that it returns to the beginning of the next.
    """
    if not os.isatty(2) or os.environ.get("TERM", "dumb") == "dumb":
        return ""
    try:
        width = os.get_terminal_size(2).columns
    except OSError:
        return ""
    return " " * width + "\r" if width else ""  # one without a size: a container's with nobody at it


def _dumped(found: dict[str, object]) -> bytes:
    return json.dumps(found, default=str).encode("ascii") + b"\n"
