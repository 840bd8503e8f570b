"""A program that comes by standard input is the same in each attempt, or there is no other attempt."""

import subprocess
from pathlib import Path

import pytest

from support.containers import PYTHON, Starter
from support.runs import wait_for

AGAIN = ("--restart-on", "hang,failure", "--backoff", "10ms")
# Fails at the first start, and says at the second one what is left of its input.
PROGRAM = b"""import os, sys
if os.environ["MA_PROC_START_CNT"] == "1":
    sys.exit(3)
print("second")
"""
SHELL = b'[ "$MA_PROC_START_CNT" = 1 ] && exit 3; echo second\n'
LINE = b"no restart can run the same program"


@pytest.mark.parametrize("command", [(*PYTHON, "-"), ("bash", "-s")])
def test_a_file_is_read_again_from_where_it_was(start: Starter, tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "program"
    file.write_bytes(b"exit 9 (read by somebody else)\n" + (SHELL if command[0] == "bash" else PROGRAM))
    with file.open("rb") as stream:
        stream.seek(len(b"exit 9 (read by somebody else)\n"))
        run = start(*command, options=AGAIN, stdin=stream)
        code, out, _ = run.finish()
    assert (code, out) == (0, b"second\n")
    assert len(run.named("spawned")) == 2


@pytest.mark.parametrize(
    ("command", "late"), [((*PYTHON, "-"), True), (("bash", "-s"), False)], ids=["late", "at once"]
)
def test_a_program_from_a_pipe_ends_with_the_failure_of_its_first_attempt(
    start: Starter, command: tuple[str, ...], late: bool
) -> None:
    run = start(*command, options=AGAIN, stdin=subprocess.PIPE)
    if late:
        run.until("spawned")
    code, out, err = run.finish(SHELL if command[0] == "bash" else PROGRAM)
    assert (code, out, err.count(LINE)) == (3, b"", 1), err
    assert len(run.named("spawned")) == 1


def test_a_hang_of_a_program_from_a_pipe_is_for_the_outer_scheduler(start: Starter) -> None:
    options = (*AGAIN, "--hang-timeout", "300ms", "--start-timeout", "300ms")
    run = start(*PYTHON, "-", options=options, stdin=subprocess.PIPE, grace="100ms")
    code, _, err = run.finish(b"import time\nwhile True: time.sleep(600)\n")
    assert (code, err.count(LINE)) == (195, 1), err
    assert len(run.named("spawned")) == 1


@pytest.mark.parametrize("given", ["idle", "unread", "closed"])
def test_a_pipe_that_is_not_read_prevents_no_restart(start: Starter, tmp_path: Path, given: str) -> None:
    file = tmp_path / "program.py"
    file.write_bytes(PROGRAM)
    run = start(*PYTHON, str(file), options=AGAIN, stdin=subprocess.PIPE)
    assert run.process.stdin is not None
    if given == "unread":
        run.process.stdin.write(b"not for this program")
        run.process.stdin.flush()
    if given == "closed":
        run.process.stdin.close()
    wait_for(lambda: run.process.poll() is not None, "the end")
    assert run.process.returncode == 0
    assert len(run.named("spawned")) == 2


RANKS = ("--nproc-per-node", "2")
OF_RANK = b'import os\nos.write(1, os.environ["RANK"].encode())\n'
FAILS_FIRST = b'if os.environ["MA_PROC_START_CNT"] == "1": os._exit(3)\n'


def test_each_rank_reads_the_whole_file_from_where_it_was(start: Starter, tmp_path: Path) -> None:
    file = tmp_path / "program"
    file.write_bytes(b"raise SystemExit(9)\n" + OF_RANK.replace(b"os.write", FAILS_FIRST + b"os.write"))
    with file.open("rb") as stream:
        stream.seek(len(b"raise SystemExit(9)\n"))
        run = start(*PYTHON, "-", options=(*AGAIN, *RANKS), stdin=stream)
        code, out, err = run.finish()
    assert (code, sorted(out)) == (0, sorted(b"01")), err
    assert len(run.named("spawned")) == 2


@pytest.mark.parametrize("command", [(*PYTHON, "-"), ("bash", "-s")])
def test_ranks_cannot_share_a_program_from_a_pipe(start: Starter, command: tuple[str, ...]) -> None:
    run = start(*command, options=RANKS, stdin=subprocess.PIPE)
    code, out, err = run.finish(OF_RANK)
    assert (code, out, err.count(b"\n")) == (2, b"", 1), err
    assert b"the ranks cannot each read their program from standard input: it is a pipe or a socket" in err


def test_ranks_that_do_not_read_a_pipe_start(start: Starter) -> None:
    run = start(*PYTHON, "-c", OF_RANK, options=RANKS, stdin=subprocess.PIPE)
    code, out, err = run.finish(b"")
    assert (code, sorted(out)) == (0, sorted(b"01")), err
