"""The exit code is the command's own, or shows why it could not run."""

import os
import signal
import stat
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.containers import Starter
from support.runs import Mode

HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
DEADLY = sorted(int(s) for s in signal.valid_signals() - HARMLESS - STOPPING)

FTRUN = Path(__file__).resolve().parents[2] / "bin" / "ftrun"


def codes(start: Starter, mode: Mode, scripts: Sequence[str]) -> list[tuple[int, bytes]]:
    """Four at a time; codes and what was said."""

    def one(script: str) -> tuple[int, bytes]:
        code, out, err = start("sh", "-c", script, mode=mode).finish()
        return code, out + err

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, scripts))


@pytest.mark.parametrize("rest", [3, *(pytest.param(rest, marks=pytest.mark.slow) for rest in range(3))])
def test_every_code_passes_through(start: Starter, mode: Mode, rest: int) -> None:
    expected = range(rest, 256, 4)
    found = codes(start, mode, [f"exit {code}" for code in expected])
    assert [code for code, _ in found] == list(expected)


def test_a_deadly_signal_is_128_and_its_number(start: Starter, mode: Mode) -> None:
    found = codes(start, mode, [f"ulimit -c 0; kill -{number} $$; sleep 60" for number in DEADLY])
    # `unshare` ends itself by the signal of its child only if the child was killed; ftrun exits.
    assert [code for code, _ in found] == [128 + number for number in DEADLY]


@pytest.mark.parametrize("descriptors", [9, 11, 12])
def test_where_descriptors_run_out_nothing_is_left_behind(descriptors: int, tmp_path: Path) -> None:
    """One line, and the folder of the beats is gone again."""
    words = ["sh", "-c", f"ulimit -n {descriptors}; exec {FTRUN} --run-dir {tmp_path}/run true"]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 125
    assert "Too many open files" in said
    assert "Traceback" not in said
    assert not list(Path("/dev/shm").glob(f"ftrun-beats-*-{process.pid}-*"))


def program(path: Path, content: str, bits: int = 0o755) -> str:
    path.write_text(content)
    path.chmod(bits)
    return str(path)


CANNOT_START = {
    "directory": 126,
    "no x bit": 126,
    "no #!": 126,
    "interpreter": 127,
    "not found": 127,
    "no such path": 127,
    "below a file": 127,
    "empty": 127,
}


@pytest.mark.parametrize(("kind", "expected"), CANNOT_START.items())
def test_a_command_that_cannot_start(start: Starter, mode: Mode, tmp_path: Path, kind: str, expected: int) -> None:
    word = {
        "directory": str(tmp_path),
        "no x bit": program(tmp_path / "plain", "#!/bin/sh\n", 0o644),
        "no #!": program(tmp_path / "text", "true\n"),
        "interpreter": program(tmp_path / "lost", "#!/no/such/interpreter\n"),
        "not found": "no-such-command-anywhere",
        "no such path": str(tmp_path / "none" / "such"),
        "below a file": "/etc/passwd/x",
        "empty": "",
    }[kind]
    assert stat.S_ISDIR(os.stat(tmp_path).st_mode)
    run = start(word, mode=mode)
    code, out, err = run.finish()
    assert code == expected, err
    assert out == b""
    assert err.count(b"\n") == 1, err
    assert err.startswith(b"[ftrun] ")
    assert b"Traceback" not in err
    assert word.encode() in err
    assert run.named("ended")[0]["exit_code"] == expected
    assert not run.named("spawned")


def test_errors_are_printed_even_when_quiet(start: Starter, mode: Mode) -> None:
    code, _, err = start("no-such-command-anywhere", mode=mode, options=["-q"]).finish()
    assert (code, err.count(b"\n")) == (127, 1)


def test_no_command_is_usage(start: Starter, mode: Mode) -> None:
    code, _, err = start(mode=mode).finish()
    assert (code, err.count(b"\n")) == (2, 1)


@pytest.mark.parametrize("word", ["a\nb", "\udcff\udcfe", "é"], ids=["newline", "no UTF-8", "accent"])
def test_an_odd_name_is_one_line(start: Starter, word: str) -> None:
    code, _, err = start(os.fsencode(word)).finish()
    assert (code, err.count(b"\n")) == (127, 1)
    assert b"Traceback" not in err
