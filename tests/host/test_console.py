"""ftrun's own lines: each message is a single line, coloured only if requested, and never blocks."""

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
SPEAK = f"""
import sys
sys.path[:0] = [{str(HOUSE / "supervisor")!r}, {str(HOUSE / "hooks")!r}]
from ftrun.host.console import Console
console = Console(*eval(sys.argv[1]))
console.attempt = 2
for words in sys.argv[2:]:
    console.print(*eval(words))
"""
EVIL = "\x1b]0;title\x07\x1b[2J\r\nfake\x00\x9b\x85\u2028\u202e\udc80 ü"


def spoken(
    console: object, *says: object, stderr: int = subprocess.PIPE, code: str = SPEAK, **environment: str
) -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", code, repr(console), *map(repr, says)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={"PATH": os.environ["PATH"], **environment},
        timeout=60,
        check=True,
    )
    return done.stderr or b""


def on_terminal(console: object, *says: object, width: int = 0, **environment: str) -> bytes:
    master, slave = pty.openpty()
    try:
        termios.tcsetwinsize(slave, (24, width))
        spoken(console, *says, stderr=slave, **environment)
        return os.read(master, 65536)
    finally:
        os.close(master)
        os.close(slave)


def parsed(content: bytes) -> list[dict[str, Any]]:
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def test_a_line_is_prefixed() -> None:
    assert spoken((), ("rank 3 stopped",)) == b"[ftrun] rank 3 stopped\n"


def test_on_a_terminal_a_line_begins_at_the_margin_wherever_the_command_left_the_cursor() -> None:
    """Blanks for a whole line take the cursor over its end but from the first column; the rest is the terminal's."""
    said = on_terminal((), ("trouble",), width=40, TERM="vt100", NO_COLOR="1")
    assert said == b" " * 40 + b"\r[ftrun] trouble\r\n"
    assert on_terminal((), ("trouble",), width=40, TERM="dumb") == b"[ftrun] trouble\r\n"
    assert on_terminal((1, True), ("trouble",), width=40, TERM="vt100").startswith(b"{")


@pytest.mark.parametrize(("level", "heard"), [(0, 1), (1, 2), (2, 3)])
def test_levels(level: int, heard: int) -> None:
    said = spoken((level,), ("always", 0), ("troubles", 1), ("all", 2))
    assert said.splitlines() == [b"[ftrun] always", b"[ftrun] troubles", b"[ftrun] all"][:heard]


def test_foreign_text_can_neither_break_a_line_nor_act_on_a_terminal() -> None:
    said = spoken((), (f"ValueError: {EVIL}",))
    assert said.count(b"\n") == 1
    shown = said.decode("utf-8").removesuffix("\n")
    assert shown.isprintable()
    assert shown.startswith(r"[ftrun] ValueError: \x1b]0;title\x07\x1b[2J\r\nfake\x00")
    assert shown.endswith(" ü")
    # On a terminal the only escapes are our own.
    coloured = on_terminal((), (EVIL,), TERM="xterm")
    assert coloured.count(b"\x1b") == 2


@pytest.mark.parametrize("said", ["x" * 10_000, "ü" * 10_000, "\x1b" * 10_000])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_long_line_is_cut_and_stays_a_line(said: str, as_json: bool) -> None:
    content = spoken((1, as_json), (said,))
    assert len(content) <= 4096
    assert content.endswith(b"\n")
    assert content.count(b"\n") == 1
    assert "..." in (parsed(content)[0]["message"] if as_json else content.decode())


# --- colours ----------------------------------------------------------------------------------------------------------


def test_colours_on_a_terminal_red_for_a_verdict() -> None:
    said = on_terminal((), ("trouble",), ("ended with 195", 1, "error"), ("ended with 0", 1, "info"), TERM="xterm")
    trouble, verdict, well = said.splitlines()
    assert trouble == b"\x1b[1;33m[ftrun]\x1b[0m trouble"
    assert verdict == b"\x1b[1;31m[ftrun]\x1b[22m ended with 195\x1b[0m"
    assert well == b"\x1b[1m[ftrun]\x1b[0m ended with 0"


@pytest.mark.parametrize(
    "environment", [{"TERM": "dumb"}, {}, {"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "xterm", "NO_COLOR": "no"}]
)
def test_no_colours_on_a_terminal_without_them_or_with_no_color(environment: dict[str, str]) -> None:
    assert on_terminal((), ("trouble",), width=0, **environment) == b"[ftrun] trouble\r\n"


def test_an_empty_no_color_is_ignored() -> None:
    assert b"\x1b" in on_terminal((), ("trouble",), TERM="xterm", NO_COLOR="")


def test_no_colours_in_a_pipe_whatever_wants_them() -> None:
    assert spoken((), ("trouble",), TERM="xterm", FORCE_COLOR="1", CLICOLOR_FORCE="1") == b"[ftrun] trouble\n"


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_has_the_same_keys_in_every_line() -> None:
    first, second = parsed(spoken((1, True), (EVIL,), ("ended with 195", 1, "error"), TERM="xterm"))
    assert list(first) == list(second) == ["time", "level", "source", "attempt", "message"]
    assert (first["level"], first["source"], first["attempt"]) == ("warning", "ftrun", 2)
    assert first["message"].isprintable()
    assert first["time"].endswith("Z")
    assert (second["level"], second["message"]) == ("error", "ended with 195")


def test_json_has_no_colours_on_a_terminal() -> None:
    said = on_terminal((1, True), ("trouble",), TERM="xterm")
    assert json.loads(said)["message"] == "trouble"


def test_a_record_has_its_fields() -> None:
    fields = (("rank", 3), ("age", 41.23456789), ("none", None), ("why", "no I/O\n"), ("command", ["a", "b c"]))
    code = SPEAK.replace("console.print(*eval(words))", "console.record(*eval(words))")
    record = ("2026-01-02T03:04:05.678Z", "hang", fields)
    text = spoken((2, False), record, code=code)
    assert text == b'[ftrun] 2026-01-02T03:04:05.678Z hang rank=3 age=41.2346 why="no I/O\\n" command="a b c"\n'
    (found,) = parsed(spoken((2, True), record, code=code))
    assert found["time"] == "2026-01-02T03:04:05.678Z"
    assert (found["level"], found["event"]) == ("debug", "hang")
    assert found["fields"] == {"rank": 3, "age": 41.23456789, "why": "no I/O\n", "command": ["a", "b c"]}
    long = parsed(spoken((2, True), ("t", "exited", (("why", "x" * 5000),)), code=code))[0]
    assert (long["event"], "fields" in long) == ("exited", False)
    assert spoken((1, True), record, code=code) == b""


# --- never in the way -------------------------------------------------------------------------------------------------


def test_a_full_pipe_does_not_block_and_lines_are_never_partial() -> None:
    reader, writer = os.pipe()
    try:
        code = SPEAK.replace("for words in sys.argv[2:]:", "for words in sys.argv[2:] * 5000:")
        spoken((), ("x" * 300,), stderr=writer, code=code)  # 1.5 MB: a pipe holds 64 KiB
        os.close(writer)
        said = b"".join(iter(lambda: os.read(reader, 65536), b""))
    finally:
        os.close(reader)
    assert set(said.splitlines(keepends=True)) == {b"[ftrun] " + b"x" * 300 + b"\n"}


def test_a_pipe_without_a_reader_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        spoken((), ("trouble",), stderr=writer)
    finally:
        os.close(writer)


def test_nothing_is_written_to_a_file_that_reuses_descriptor_2(tmp_path: Path) -> None:
    """The first file that is opened gets number 2 then: the signal pipe, of which every byte is a signal."""
    words = [sys.executable, str(HOUSE / "bin" / "ftrun"), "--run-dir", str(tmp_path / "run"), "-v", "true"]
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *words], timeout=60, check=False)
    assert done.returncode == 0
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events[-1] == "ended"
