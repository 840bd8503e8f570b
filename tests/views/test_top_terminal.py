"""`ftctl top` in a real terminal: its keys, its signals, its size, and all as it was at the end."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.runs import HOUSE, Runs, state_of, wait_for
from support.runs import runs as runs
from support.scripted import Script

FTCTL = (sys.executable, str(HOUSE / "bin" / "ftctl"))
FTHANG = str(HOUSE / "bin" / "fthang")
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
SHOW = "\x1b[?25h"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """One of 80 by 24 with `ftctl top` as its foreground."""

    def __init__(
        self, *words: str, rows: int = 24, columns: int = 80, errors: int | None = None, **environment: str
    ) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.text = ""
        clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "LC_ALL")}
        self.process = subprocess.Popen(
            [*FTCTL, "top", *words],
            env=clean | {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | environment,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave if errors is None else errors,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self) -> str:
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.text += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                break  # nobody has it open any more
        return self.text

    def until(self, what: str | Callable[[str], object], since: int = 0) -> str:
        def there() -> str:
            text = self.read()[since:]
            return text if (what in text if isinstance(what, str) else what(text)) else ""

        try:
            return str(wait_for(there, f"{what!r}"))
        except AssertionError:
            raise AssertionError(f"{what!r} is not in {self.text[-4000:]!r}") from None

    def ended(self) -> int:
        wait_for(lambda: self.read() is not None and self.process.poll() is not None, "the end")
        self.read()
        return self.process.returncode

    def restored(self) -> bool:
        """Echo and line mode as before, the cursor shown, the screen that was there before."""
        assert self.text.rfind(LEAVE) > self.text.rfind(ENTER)
        assert self.text.rfind(SHOW) > 0
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal() -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*words: str, **more: str | int) -> Terminal:
        opened.append(Terminal(*words, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def over(tmp_path: Path) -> str:
    """The run dir of one that has ended."""
    script = Script().starts().after(20).saves(20).after(5).hangs(25).starts("hang", step=20).after(9).saves(29)
    return script.ends().written(tmp_path / "over")


def top_line(text: str) -> str:
    """Of the last frame."""
    return ESCAPE.sub("", text[text.rfind("\x1b[H") :]).split("\n")[0]


def test_q_ends_it(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over)
    seen.until("the run is over; q quits")
    assert not termios.tcgetattr(seen.slave)[3] & (termios.ECHO | termios.ICANON)
    assert "ended with 0 (succeeded)" in top_line(seen.text)
    seen.press("xq")
    assert seen.ended() == 0
    assert seen.restored()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)])
def test_a_signal_ends_it_and_the_terminal_is_as_before(terminal: Open, over: str, number: int, code: int) -> None:
    seen = terminal("--run-dir", over)
    seen.until("q quits")
    seen.process.send_signal(number)
    assert seen.ended() == code
    assert seen.restored()


def test_ctrl_c_ends_it(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over)
    seen.until("q quits")
    seen.press("\x03")
    assert seen.ended() == 0
    assert seen.restored()


def test_a_terminal_that_hangs_up_is_no_trouble(terminal: Open, over: str, tmp_path: Path) -> None:
    with (tmp_path / "errors").open("wb") as errors:
        seen = terminal("--run-dir", over, "--interval", "100ms", errors=errors.fileno())
        seen.until("q quits")
        for fd in (seen.slave, seen.master):
            os.dup2(errors.fileno(), fd)  # closed, and nothing else gets the number
        assert seen.process.wait(60) == 129
    assert (tmp_path / "errors").read_bytes() == b""


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over)
    seen.until("q quits")
    seen.process.send_signal(signal.SIGTSTP)  # there is no shell whose job it could be
    wait_for(lambda: state_of(seen.process.pid) == "T", "it stops")
    seen.until(LEAVE)
    assert seen.restored()
    seen.process.send_signal(signal.SIGCONT)
    seen.until("q quits", since=seen.text.rfind(LEAVE))
    seen.press("q")
    assert seen.ended() == 0


def test_it_follows_the_size(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over, "--interval", "1h")
    seen.until("q quits")
    since = len(seen.text)
    seen.resize(8, 30)
    seen.process.send_signal(signal.SIGWINCH)
    text = seen.until("q quits", since)
    lines = ESCAPE.sub("", text[text.rfind("\x1b[H") :]).split("\n")
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 30


def test_a_serial_console_gets_ascii(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over, TERM="vt100", LANG="C")
    seen.until("q quits")
    assert seen.text.isascii()
    assert not re.search(r"\x1b\[[0-9;]*m", seen.text.replace("\x1b[0m", ""))


def test_a_terminal_that_can_do_nothing_gets_frame_after_frame(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over, TERM="dumb", LANG="C")
    seen.until("q quits")
    assert "\x1b" not in seen.text
    seen.press("q")
    assert seen.ended() == 0
    assert termios.tcgetattr(seen.slave) == seen.before


def test_no_color(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over, NO_COLOR="1")
    seen.until("q quits")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", seen.text)
    other = terminal("--run-dir", over)
    other.until("q quits")
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", other.text)


def test_a_run_dir_that_vanishes_stays_on_the_screen(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over, "--interval", "100ms", columns=200)
    seen.until("q quits")
    os.unlink(f"{over}/events.jsonl")
    seen.until("not a run dir")
    assert "ended with 0 (succeeded)" in top_line(seen.text)
    seen.press("q")
    assert seen.ended() == 0


def test_it_follows_a_run_to_its_verdict(runs: Runs, terminal: Open) -> None:
    hang = ("sleep", "--steps", "30", "--step-time", "50ms", "--after", "12", "--times", "9")
    run = runs.start("--hang-timeout", "1s", "--grace", "1s", "--max-restarts", "1", FTHANG, *hang)
    run.until("spawned")
    seen = terminal("--run-dir", str(run.run_dir), "--interval", "100ms")
    seen.until("Rank 0 will be suspected in")
    text = seen.until("the run is over; q quits")
    assert run.wait() == 195
    assert "attempt 1" in text
    assert "attempt 2" in text
    assert "ended with 195 (hang-limit)" in text
    seen.resize(30, 120)  # it stays, and draws
    seen.until("the run is over; q quits", since=len(seen.text))
    seen.press("q")
    assert seen.ended() == 0


@pytest.mark.parametrize("words", [[], ["--once"]])
def test_where_there_is_no_terminal_it_looks_once(over: str, words: list[str]) -> None:
    done = subprocess.run([*FTCTL, "top", "--run-dir", over, *words], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith(b"ftrun: ended with 0 (succeeded)")
    assert b"\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) <= 24


@pytest.mark.parametrize("words", [["--once"], []])
def test_json_is_an_object_a_look(over: str, words: list[str]) -> None:
    done = subprocess.run([*FTCTL, "top", "--run-dir", over, "--json", *words], capture_output=True, timeout=60)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["verdict"] == "succeeded"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--interval", "0s"], 2),
        (["--interval", "1ms"], 2),
        (["--interval", "soon"], 2),
        (["--run-dir", "/no/where"], 1),
    ],
)
def test_what_cannot_be_is_said_in_one_line(over: str, words: list[str], code: int) -> None:
    done = subprocess.run([*FTCTL, "top", "--run-dir", over, *words], capture_output=True, timeout=60)
    assert done.returncode == code
    assert done.stderr.count(b"\n") == 1
    assert done.stdout == b""
