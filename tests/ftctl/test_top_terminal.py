"""`ftctl top` in a real terminal: keys, signals, size, and the terminal restored at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.containers import Terminal
from support.runs import FTCTL, FTHANG, Runs, state_of, wait_for
from support.runs import runs as runs
from support.scripted import Script

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
SHOW = "\x1b[?25h"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Top:
    """A terminal of 80 by 24 with `ftctl top` in the foreground."""

    def __init__(self, *words: str, columns: int = 80, errors: int | None = None, **environment: str) -> None:
        self.terminal = Terminal()
        self.terminal.resize(24, columns)
        self.before = self.terminal.modes()
        slave = self.terminal.slave
        clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "LC_ALL")}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *FTCTL, "top", *words],
            env=clean | {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | environment,
            stdin=slave,
            stdout=slave,
            stderr=slave if errors is None else errors,
        )

    @property
    def text(self) -> str:
        return self.terminal.look().decode(errors="replace")

    def press(self, keys: str) -> None:
        self.terminal.type(keys.encode())

    def until(self, what: str, since: int = 0) -> str:
        try:
            return str(wait_for(lambda: what in self.text[since:] and self.text[since:], f"{what!r}"))
        except AssertionError:
            raise AssertionError(f"{what!r} is not in {self.text[-4000:]!r}") from None

    def ended(self) -> int:
        def is_over() -> bool:
            self.terminal.look()  # or it could not write any more
            return self.process.poll() is not None

        wait_for(is_over, "the end")
        return int(self.process.returncode)

    def restored(self) -> bool:
        """Whether echo, line mode, cursor and screen are as before."""
        assert self.text.rfind(LEAVE) > self.text.rfind(ENTER)
        assert self.text.rfind(SHOW) > 0
        return self.terminal.modes() == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.terminal.close()


Open = Callable[..., Top]


@pytest.fixture
def terminal() -> Iterator[Open]:
    opened: list[Top] = []

    def start(*words: str, **more: str | int) -> Top:
        opened.append(Top(*words, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def over(tmp_path: Path) -> str:
    """The run dir of a run that has ended."""
    script = Script().starts().after(20).saves(20).after(5).hangs(25).starts("hang", step=20).after(9).saves(29)
    return script.ends().written(tmp_path / "over")


def top_line(text: str) -> str:
    """Of the last frame."""
    return ESCAPE.sub("", text[text.rfind("\x1b[H") :]).split("\n")[0]


def test_keys_show_the_report_the_stacks_and_the_output(terminal: Open, over: str) -> None:
    report = Path(over) / "reports" / "attempt-1" / "report.md"
    report.parent.mkdir(parents=True)
    report.write_text("# Rank 3 stopped\n\n" + "".join(f"line {number}\n\n" for number in range(100)))
    (Path(over) / "output.log").write_text("step 1\nstep 2 of the program\n")
    seen = terminal("--run-dir", over)
    seen.until("q quits")
    for key, title, content in (
        ("e", "report of attempt 1", "Rank 3 stopped"),
        ("l", "last lines of output.log", "step 2 of the program"),
        ("t", "nothing can be shown", "any other key closes"),
    ):
        before = len(seen.text)
        seen.press(key)
        seen.until(title, before)
        seen.until(content, before)
        before = len(seen.text)
        seen.press("q")  # closes the text and not the program
        seen.until("q quits", before)
    seen.press("q")
    assert seen.ended() == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0), (None, 0)]
)
def test_a_signal_or_ctrl_c_ends_it(terminal: Open, over: str, number: int | None, code: int) -> None:
    seen = terminal("--run-dir", over)
    seen.until("q quits")
    if number is None:
        seen.press("\x03")
    else:
        seen.process.send_signal(number)
    assert seen.ended() == code
    assert seen.restored()


def test_a_terminal_that_hangs_up_ends_it(terminal: Open, over: str, tmp_path: Path) -> None:
    with (tmp_path / "errors").open("wb") as errors:
        seen = terminal("--run-dir", over, "--interval", "100ms", errors=errors.fileno())
        seen.until("q quits")
        os.dup2(errors.fileno(), seen.terminal.slave)  # closed, and nothing else gets the number
        seen.terminal.hang_up()
        assert seen.process.wait(60) == 129
    assert (tmp_path / "errors").read_bytes() == b""


def test_ctrl_z_restores_the_terminal_until_it_continues(terminal: Open, over: str) -> None:
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


def test_a_new_size_is_used_at_once(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over, "--interval", "1h")
    seen.until("q quits")
    since = len(seen.text)
    seen.terminal.resize(8, 30)
    seen.process.send_signal(signal.SIGWINCH)
    text = seen.until("q quits", since)
    lines = ESCAPE.sub("", text[text.rfind("\x1b[H") :]).split("\n")
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 30


@pytest.mark.parametrize("kind", ["vt100", "dumb"])
def test_a_simple_terminal_gets_ascii_and_a_dumb_one_no_controls(terminal: Open, over: str, kind: str) -> None:
    seen = terminal("--run-dir", over, columns=40, TERM=kind, LANG="C")
    seen.until("q quits")
    assert seen.text.isascii()
    assert max(map(len, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.text).splitlines())) <= 40
    assert not re.search(r"\x1b\[[0-9;]*m" if kind == "vt100" else "\x1b", seen.text.replace("\x1b[0m", ""))
    seen.press("q")
    assert seen.ended() == 0
    assert seen.terminal.modes() == seen.before


def test_no_color(terminal: Open, over: str) -> None:
    for environment in ({"NO_COLOR": "1"}, {}):
        seen = terminal("--run-dir", over, **environment)
        seen.until("q quits")
        assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", seen.text)) == (not environment)


def test_a_vanished_run_dir_stays_on_the_screen(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over, "--interval", "100ms", columns=200)
    seen.until("q quits")
    os.unlink(f"{over}/events.jsonl")
    seen.until("not a run dir")
    assert "ended with 0 (succeeded)" in top_line(seen.text)
    seen.press("q")
    assert seen.ended() == 0


def test_a_run_is_followed_to_its_verdict(runs: Runs, terminal: Open) -> None:
    hang = ("sleep", "--steps", "30", "--step-time", "50ms", "--after", "12", "--times", "9")
    run = runs.spawned("--hang-timeout", "1s", "--grace", "1s", "--max-restarts", "1", *FTHANG, *hang)
    seen = terminal("--run-dir", str(run.run_dir), "--interval", "100ms")
    seen.until("Rank 0 would be suspected in")
    text = seen.until("the run is over; q quits")
    assert run.wait() == 195
    assert "attempt 1" in text
    assert "attempt 2" in text
    assert "ended with 195 (hang-limit)" in text
    seen.terminal.resize(30, 120)  # it stays, and draws
    seen.until("the run is over; q quits", since=len(seen.text))
    seen.press("q")
    assert seen.ended() == 0


@pytest.mark.parametrize("words", [[], ["--once"]])
def test_without_a_terminal_one_frame_or_object_is_printed(over: str, words: list[str]) -> None:
    done = subprocess.run([*FTCTL, "top", "--run-dir", over, *words], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith(b"ftrun: ended with 0 (succeeded)")
    assert b"\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) <= 24
    done = subprocess.run([*FTCTL, "top", "--run-dir", over, "--json", *words], capture_output=True, timeout=60)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["verdict"] == "succeeded"
    assert done.returncode == 0


@pytest.mark.parametrize(("words", "code"), [(["--interval", "1ms"], 2), (["--interval", "soon"], 2), ([], 1)])
def test_errors_are_one_line(words: list[str], code: int) -> None:
    done = subprocess.run([*FTCTL, "top", "--run-dir", "/no/where", *words], capture_output=True, timeout=60)
    assert done.returncode == code
    assert done.stderr.count(b"\n") == 1
    assert done.stdout == b""


def test_keys_open_the_help_and_choose_an_order(terminal: Open, over: str) -> None:
    seen = terminal("--run-dir", over)
    seen.until("? shows all keys")
    assert not seen.terminal.modes()[3] & (termios.ECHO | termios.ICANON)
    assert "ended with 0 (succeeded)" in top_line(seen.text)
    seen.press("?")
    seen.until("sort the ranks by the next column")
    closed = len(seen.text)
    seen.press("q")  # closes the help only
    seen.until("? shows all keys", closed)
    seen.press("\x1b[B")
    seen.press("q")
    assert seen.ended() == 0
    assert seen.restored()
