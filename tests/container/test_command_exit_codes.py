"""The exit code is the command's own, or shows why it could not run."""

import os
import signal
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


def codes(start: Starter, mode: Mode, scripts: Sequence[str]) -> list[int]:
    """The exit codes of ftrun for these shell scripts; four run at a time."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda script: start("sh", "-c", script, mode=mode).finish()[0], scripts))


@pytest.mark.parametrize(
    "expected", [(1, 128, 255), pytest.param(range(256), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_every_exit_code_is_passed_on(start: Starter, mode: Mode, expected: Sequence[int]) -> None:
    assert codes(start, mode, [f"exit {code}" for code in expected]) == list(expected)


@pytest.mark.parametrize("numbers", [DEADLY[::12], pytest.param(DEADLY, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_deadly_signal_is_128_and_its_number(start: Starter, mode: Mode, numbers: list[int]) -> None:
    found = codes(start, mode, [f"ulimit -c 0; kill -{number} $$; sleep 60" for number in numbers])
    # `unshare` ends itself by the signal of its child only if the child was killed; ftrun exits.
    assert found == [128 + number for number in numbers]


@pytest.mark.parametrize("descriptors", [9, 12])
def test_without_free_descriptors_ftrun_prints_one_line_and_leaves_no_beat_folder(
    descriptors: int, tmp_path: Path
) -> None:
    words = ["sh", "-c", f"ulimit -n {descriptors}; exec {FTRUN} --run-dir {tmp_path}/run true"]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    stderr = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 125
    assert "Too many open files" in stderr
    assert "Traceback" not in stderr
    assert not list(Path("/dev/shm").glob(f"ftrun-beats-*-{process.pid}-*"))


# The command, where {} is a folder with the files of the test, and the exit code.
CANNOT_START = {
    "directory": ("{}", 126),
    "no x bit": ("{}/plain", 126),
    "no program of this machine": ("{}/foreign", 126),
    "interpreter": ("{}/lost", 127),
    "not found": ("no-such-command-anywhere", 127),
    "empty": ("", 127),
    "newline": ("a\nb", 127),
    "no UTF-8": ("\udcff\udcfe", 127),
}


@pytest.mark.parametrize(("word", "expected"), CANNOT_START.values(), ids=CANNOT_START.keys())
def test_a_command_that_cannot_start_is_one_line_even_when_quiet(
    start: Starter, tmp_path: Path, word: str, expected: int
) -> None:
    for name, content, bits in (
        ("plain", "#!/bin/sh\n", 0o644),
        ("foreign", "\x7fELF\x02\x01\x01\0", 0o755),
        ("lost", "#!/no/x\n", 0o755),
    ):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(bits)
    word = word.format(tmp_path)
    run = start(os.fsencode(word), options=["-q"])
    code, out, err = run.finish()
    assert (code, out, err.count(b"\n")) == (expected, b"", 1), err
    assert err.startswith(b"[ftrun] ")
    assert b"Traceback" not in err
    assert not word.isprintable() or word.encode() in err
    assert run.named("ended")[0]["exit_code"] == expected
    assert not run.named("spawned")
