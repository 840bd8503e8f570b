"""A stopped helper does not affect the command: it is continued at once."""

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.containers import PYTHON, Starter
from support.runs import FTRUN, helpers, state_of, wait_for

SIZE = 8 << 20  # bytes, many times what a pipe holds
# Writes nothing until `begin` is there, and beats all the time.
CHATTY = f"""
import os, sys, time
touch, begin = os.environ["FTRUN_BEAT_DIR"] + "/touch", sys.argv[1]
while not os.path.exists(begin):
    os.utime(touch)
    time.sleep(0.01)
for _ in range({SIZE} >> 12):
    os.utime(touch)
    os.write(1, b"x" * 4096)
sys.exit(5)
"""
OPTIONS = ["--hang-timeout", "10s", "--idle-timeout", "60s", "--metrics", "127.0.0.1:0"]
HELPERS = {"output", "messenger", "sampler", "checkpoint_watcher", "metrics"}


@pytest.fixture
def chatty(start: Starter, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    words = [*FTRUN, "--log-dir", str(tmp_path / "logs"), "--progress", str(tmp_path / "*.pt"), *OPTIONS]
    process = subprocess.Popen(
        [*words, *PYTHON, "-c", CHATTY, str(tmp_path / "begin")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=start.environment(),
    )
    yield process
    process.kill()
    process.communicate()
    assert wait_for(lambda: not start.living() or None, "the end of all")


def test_every_helper_continues_after_sigstop(chatty: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    wait_for(lambda: set(helpers(chatty.pid)) >= HELPERS, "all helpers", 60)
    (tmp_path / "begin").touch()
    for name, pid in helpers(chatty.pid).items():
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda pid=pid: state_of(pid) in ("R", "S"), f"{name} goes on")  # type: ignore[misc]
    seen, _ = chatty.communicate(timeout=90)
    assert chatty.returncode == 5
    assert seen == b"x" * SIZE
    (log,) = tmp_path.glob("logs/*/run.log")
    assert "was stopped by a signal; ftrun continued it" in log.with_name("events.jsonl").read_text()


def test_sigstop_in_a_loop(chatty: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    """The process that passes on the output is stopped again and again: the output is slow, and complete."""
    wait_for(lambda: "output" in helpers(chatty.pid), "the helper", 60)
    assert chatty.stdout is not None
    output = chatty.stdout.fileno()
    (tmp_path / "begin").touch()
    seen = 0

    def through() -> bool:
        nonlocal seen
        if (pid := helpers(chatty.pid).get("output")) and state_of(pid) in ("R", "S"):
            os.kill(pid, signal.SIGSTOP)
        while select.select([output], [], [], 0)[0] and (more := os.read(output, 1 << 16)):
            seen += len(more)
        return seen == SIZE

    wait_for(through, "all of it", 90)
    assert chatty.wait(60) == 5
