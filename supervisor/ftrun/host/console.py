"""ftrun's own lines on stderr: few, prefixed, and never blocking the job."""

import json
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Literal

from ftrun.config.option_table import Settings
from ftrun.core.text import sentences
from ftrun.host import clock, mounts
from ftrun.host.signals import writing

Severity = Literal["debug", "info", "warning", "error"]
QUEUED: Final = 256  # lines that wait for the helper `line_writer`, the last ones
LIMIT: Final = 4096  # bytes of a line that a pipe takes completely or not at all (PIPE_BUF)
TEXT_LIMIT: Final = LIMIT - 64  # bytes of the text in it
PATIENCE: Final = 1.0  # s for the reader of stderr before the first start, where nothing else waits
RESET: Final = "\033[0m"
COLOURS: Final[dict[Severity, tuple[str, str, str]]] = {  # before the prefix, before the text, after it
    "debug": ("\033[2m", "", RESET),
    "info": ("\033[1m", RESET, ""),
    "warning": ("\033[1;33m", RESET, ""),
    "error": ("\033[1;31m", "\033[22m", RESET),
}


class Console:
    """`level` 0: no lines; 1: what the user must know; 2: every record as well.  `attempt`: the attempt that lines are
    about.

    As text, a line is `[ftrun] ...`, with colours if stderr is a terminal that shows them and NO_COLOR is not set.  On
    a terminal it starts on a line of its own, also after a progress bar.  In a pipe or a file that the command shares,
    it may follow a progress bar on the same line: ftrun cannot know there whether the command's last line has ended.
    As JSON, a line is one object of `time`, `level`, `source`, `attempt` and `message`; that of a record also has
    `event` and `fields`.  Each message is a single line without terminal control sequences.

    A line that stderr cannot take at once is dropped (it is in `run.log`): a full pipe must never block PID 1.  The
    command shares stderr, so its flags cannot be changed; ftrun opens a pipe or a terminal a second time instead.

    `before_line` is called before each line, so that a reader of the line finds the records that belong to it.

    With `queued`, lines for a file on a network disk, where a write may block, are collected in `queue`, and the
    helper `line_writer` writes them.  Without it such a line is written at once, and may wait for the disk: that
    is for the moments at which no command runs.
    """

    def __init__(self, level: int = 1, as_json: bool = False, queued: bool = False) -> None:
        # If stderr was closed when ftrun started, descriptor 2 is another file now.
        self.level = level if sys.stderr is not None else -1
        self.attempt: int | None = None
        self.before_line: Callable[[], None] = lambda: None
        self._json = as_json
        self._fd, self._colours = 2, False
        self._asked = not mounts.is_on_network_volume(2)  # a disk that does not answer must not block PID 1
        self.queue: deque[bytes] | None = deque(maxlen=QUEUED) if queued and not self._asked else None
        if not self._asked:
            return
        # It cannot be opened again (another user's terminal): then only the poll below prevents blocking
        with suppress(OSError):
            mode = os.fstat(2).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
                self._fd = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        self._colours = not as_json and _shows_colours()

    def print(self, text: str, level: int = 1, severity: Severity = "warning") -> None:
        """Write a line.  `severity`: `warning` for a problem, `error` for a verdict or a failure of ftrun, `info`
        otherwise."""
        if level <= self.level:
            self._write(self._object(severity, text) if self._json else self._line(severity, text))

    def record(self, stamp: str, event: str, fields: Iterable[tuple[str, object]]) -> None:
        """Write a record, on level 2."""
        if self.level < 2:
            return
        if self._json:
            present = {name: value for name, value in fields if value is not None}
            message = sentences.record(event, present.items())
            self._write(self._object("debug", message, time=stamp, event=event, fields=present))
        else:
            self._write(self._line("debug", f"{stamp} {sentences.record(event, fields)}"))

    def _line(self, severity: Severity, text: str) -> bytes:
        start, between, end = COLOURS[severity] if self._colours else ("", "", "")
        shown = sentences.printable(text).encode("utf-8", "backslashreplace")
        if len(shown) > TEXT_LIMIT:
            shown = shown[: TEXT_LIMIT - 3].decode("utf-8", "ignore").encode() + b"..."
        return f"{_new_line() if self._asked else ''}{start}[ftrun]{between} ".encode() + shown + f"{end}\n".encode()

    def _object(self, severity: Severity, text: str, **more: object) -> bytes:
        """Return the JSON line.  If it is too long, the fields are left out and the message is shortened."""
        line: dict[str, object] = {
            "time": clock.timestamp(),
            "level": severity,
            "source": "ftrun",
            "attempt": self.attempt,
            "message": sentences.printable(text),
        } | more
        content = _dumped(line)
        if len(content) > LIMIT:
            line.pop("fields", None)
            content = _dumped(line)
        while len(content) > LIMIT:
            message = str(line["message"])
            line["message"] = sentences.short(message, len(message) // 2)
            content = _dumped(line)
        return content

    def _write(self, line: bytes) -> None:
        self.before_line()
        if self.queue is not None:
            self.queue.append(line)
            return
        with suppress(OSError):
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if poll.poll(0):
                with writing():
                    os.write(self._fd, line)


def print_error(text: str) -> None:
    """Print why ftrun cannot start, where there is no console yet.  Never raises, and waits a second at most: nobody
    may read stderr."""
    if sys.stderr is None:
        return
    with suppress(OSError):
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if poll.poll(1000 * PATIENCE):
            with writing():
                os.write(2, f"ftrun: {text}".encode("utf-8", "backslashreplace")[: LIMIT - 1] + b"\n")


def create(settings: Settings, queued: bool = False) -> Console:
    """Return the console that these options ask for."""
    level = 0 if settings.quiet else 2 if settings.verbose else 1
    return Console(level, settings.log_format == "json", queued)


def _shows_colours() -> bool:
    """Return whether to use colours. https://no-color.org: any value that is not empty switches them off."""
    return os.isatty(2) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _new_line() -> str:
    """Return the characters that move the cursor of a terminal to the beginning of a line, wherever the command left
    it; empty for anything but a terminal.

    This is the method of zsh (PROMPT_SP): as many blanks as a line has columns.  If the cursor is in the first column,
    they fill that line and the cursor returns to its beginning; otherwise they wrap, so that the cursor returns to the
    beginning of the next line.
    """
    if not os.isatty(2) or os.environ.get("TERM", "dumb") == "dumb":
        return ""
    try:
        width = os.get_terminal_size(2).columns
    except OSError:
        return ""
    return " " * width + "\r" if width else ""  # a terminal without a size: that of a container with no client attached


def _dumped(line: dict[str, object]) -> bytes:
    return json.dumps(line, default=str).encode("ascii") + b"\n"
