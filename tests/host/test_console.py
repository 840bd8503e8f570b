"""ftrun's own lines: each message is a single line, coloured only on a terminal, and never blocks."""

import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

HOUSE = Path(__file__).resolve().parents[2]
PRINT = f"""
import sys
sys.path[:0] = [{str(HOUSE / "supervisor")!r}, {str(HOUSE / "hooks")!r}]
from ftrun.host.console import Console
console = Console(*eval(sys.argv[1]))
console.attempt = 2
for arguments in sys.argv[2:]:
    console.print(*eval(arguments))
"""
EVIL = "\x1b]0;title\x07\x1b[2J\r\nfake\x00\x9b\x85\u2028\u202e\udc80 ü"


def printed(
    console: object, *messages: object, stderr: int = subprocess.PIPE, code: str = PRINT, **environment: str
) -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", code, repr(console), *map(repr, messages)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={"PATH": os.environ["PATH"], **environment},
        timeout=60,
        check=True,
    )
    return done.stderr or b""


def on_terminal(console: object, *messages: object, width: int = 0, **environment: str) -> bytes:
    master, slave = pty.openpty()
    try:
        termios.tcsetwinsize(slave, (24, width))
        printed(console, *messages, stderr=slave, **environment)
        return os.read(master, 65536)
    finally:
        os.close(master)
        os.close(slave)


def parsed(content: bytes) -> list[dict[str, Any]]:
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def test_on_a_terminal_a_line_begins_at_the_margin_wherever_the_command_left_the_cursor() -> None:
    """Blanks for a complete line move the cursor past its end unless it is in the first column."""
    content = on_terminal((), ("problem",), width=40, TERM="vt100", NO_COLOR="1")
    assert content == b" " * 40 + b"\r[ftrun] problem\r\n"
    assert on_terminal((), ("problem",), width=40, TERM="dumb") == b"[ftrun] problem\r\n"
    assert on_terminal((1, True), ("problem",), width=40, TERM="vt100").startswith(b"{")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_level_selects_the_lines(level: int) -> None:
    lines = printed((level,), ("always", 0), ("problems", 1), ("all", 2)).splitlines()
    assert lines == [b"[ftrun] always", b"[ftrun] problems", b"[ftrun] all"][: level + 1]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_long_line_is_cut_and_stays_a_line(as_json: bool) -> None:
    content = printed((1, as_json), *((letter * 10_000,) for letter in ("x", "ü", "\x1b")))
    lines = content.splitlines(keepends=True)
    assert len(lines) == 3
    for line in lines:
        assert len(line) <= 4096
        assert line.endswith(b"\n")
        assert "..." in (parsed(line)[0]["message"] if as_json else line.decode())


# --- colours ----------------------------------------------------------------------------------------------------------


def test_on_a_terminal_a_line_has_the_colour_of_its_severity() -> None:
    lines = on_terminal((), ("problem",), ("ended with 195", 1, "error"), ("ended with 0", 1, "info"), TERM="xterm")
    problem, verdict, success = lines.splitlines()
    assert problem == b"\x1b[1;33m[ftrun]\x1b[0m problem"
    assert verdict == b"\x1b[1;31m[ftrun]\x1b[22m ended with 195\x1b[0m"
    assert success == b"\x1b[1m[ftrun]\x1b[0m ended with 0"


def test_without_a_colour_terminal_or_with_no_color_there_are_no_colours() -> None:
    without: list[dict[str, str]] = [{"TERM": "dumb"}, {}, {"TERM": "xterm", "NO_COLOR": "no"}]
    for environment in without:
        assert on_terminal((), ("problem",), width=0, **environment) == b"[ftrun] problem\r\n"
    assert b"\x1b" in on_terminal((), ("problem",), TERM="xterm", NO_COLOR=""), "an empty value is ignored"
    assert printed((), ("problem",), TERM="xterm", FORCE_COLOR="1", CLICOLOR_FORCE="1") == b"[ftrun] problem\n", (
        "a pipe has no colours"
    )


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_has_the_same_keys_in_every_line() -> None:
    first, second = parsed(printed((1, True), (EVIL,), ("ended with 195", 1, "error"), TERM="xterm"))
    assert list(first) == list(second) == ["time", "level", "source", "attempt", "message"]
    assert (first["level"], first["source"], first["attempt"]) == ("warning", "ftrun", 2)
    assert first["message"].isprintable()
    assert first["time"].endswith("Z")
    assert (second["level"], second["message"]) == ("error", "ended with 195")


def test_a_record_has_its_fields() -> None:
    fields = (("rank", 3), ("age", 41.23456789), ("none", None), ("why", "no I/O\n"), ("command", ["a", "b c"]))
    code = PRINT.replace("console.print(*eval(arguments))", "console.record(*eval(arguments))")
    record = ("2026-01-02T03:04:05.678Z", "hang", fields)
    text = printed((2, False), record, code=code)
    assert text == b'[ftrun] 2026-01-02T03:04:05.678Z hang rank=3 age=41.2346 why="no I/O\\n" command="a b c"\n'
    (found,) = parsed(printed((2, True), record, code=code))
    assert found["time"] == "2026-01-02T03:04:05.678Z"
    assert (found["level"], found["event"]) == ("debug", "hang")
    assert found["fields"] == {"rank": 3, "age": 41.23456789, "why": "no I/O\n", "command": ["a", "b c"]}
    long = parsed(printed((2, True), ("t", "exited", (("why", "x" * 5000),)), code=code))[0]
    assert (long["event"], "fields" in long) == ("exited", False)
    assert printed((1, True), record, code=code) == b""


# --- problems of stderr -----------------------------------------------------------------------------------------------


def test_a_full_pipe_does_not_block_and_lines_are_never_partial() -> None:
    reader, writer = os.pipe()
    try:
        code = PRINT.replace("for arguments in sys.argv[2:]:", "for arguments in sys.argv[2:] * 5000:")
        printed((), ("x" * 300,), stderr=writer, code=code)  # 1.5 MB: a pipe holds 64 KiB
        os.close(writer)
        content = b"".join(iter(lambda: os.read(reader, 65536), b""))
    finally:
        os.close(reader)
    assert set(content.splitlines(keepends=True)) == {b"[ftrun] " + b"x" * 300 + b"\n"}


def test_a_pipe_without_a_reader_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        printed((), ("problem",), stderr=writer)
    finally:
        os.close(writer)


def test_nothing_is_written_to_a_file_that_reuses_descriptor_2(tmp_path: Path) -> None:
    """The first file that is opened gets number 2 then: the signal pipe, of which every byte is a signal."""
    words = [sys.executable, str(HOUSE / "bin" / "ftrun"), "--run-dir", str(tmp_path / "run"), "-v", "true"]
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *words], timeout=60, check=False)
    assert done.returncode == 0
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events[-1] == "ended"
