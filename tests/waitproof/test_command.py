"""`waitproof PID`, on real processes, from a bare checkout."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.evidence_job import NO_PTRACE, READY, Job, need_no_ptrace, needs_spy
from support.evidence_job import job as job
from support.proving import HEAD, silent_server
from support.runs import HOUSE, children, state_of, wait_for
from waitproof import command, procfs, stacks

LOCKS = (
    "a, b = threading.Lock(), threading.Lock(); both = threading.Barrier(2)\n"
    "def other():\n    with b:\n        both.wait()\n        with a: pass\n"
    "thread(other, name='loader')\nwith a:\n    both.wait(); ready()\n    with b: pass"
)


def waitproof(*arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    program = [*prefix, sys.executable, str(HOUSE / "bin" / "waitproof"), *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)


def twice(look: Callable[[], subprocess.CompletedProcess[str]], code: int) -> subprocess.CompletedProcess[str]:
    """An answer with this exit code: soon, but a busy machine may delay the wait."""

    def found() -> subprocess.CompletedProcess[str] | None:
        answers.append(look())
        return answers[-1] if answers[-1].returncode == code else None

    answers = list[subprocess.CompletedProcess[str]]()
    try:
        result: subprocess.CompletedProcess[str] = wait_for(found, f"exit code {code}")
        return result
    except AssertionError as error:
        raise AssertionError(f"{error}; {answers[-1]}") from None


@needs_spy
def test_a_deadlock_is_told_with_each_thread_and_its_place(job: Job) -> None:
    job.start(HEAD + LOCKS, "0")
    done = twice(lambda: waitproof(job.pid, "--seconds", 0.3), 3)
    first, *threads = done.stdout.split("\n\n")[0].splitlines()
    assert first == f"process {job.pid} (python)" or first.startswith(f"process {job.pid} (")
    assert [line.split(":")[0] for line in threads] == ["  main thread", "  thread 'loader'"]
    assert all("waits for a lock at <string>:" in line and "nothing can end that" in line for line in threads)
    assert f"\ndeadlock: process {job.pid} (" in done.stdout
    assert done.stdout.endswith("Nothing can end this wait.\n")
    assert done.stderr == ""


@needs_spy
def test_what_may_end_is_told_with_what_may_end_it(job: Job) -> None:
    with silent_server() as port:
        job.start_asleep(HEAD + "c = connect(); ready(); c.recv(1)", str(port))
        done = waitproof(job.pid, "--seconds", 0.1)
    assert done.returncode == 0, done.stderr
    assert f"127.0.0.1:{port}, which is outside the job" in done.stdout
    assert "\nThis wait may end: " in done.stdout


@needs_spy
def test_the_stopped_child_is_the_culprit_also_as_json(job: Job) -> None:
    job.start(HEAD + "p = subprocess.Popen(['sleep', '900']); p.send_signal(19); ready(); p.wait()", "0")
    (child,) = wait_for(lambda: children(job.pid), "the child")
    wait_for(lambda: state_of(child) == "T", "its stop")
    found = json.loads(twice(lambda: waitproof(job.pid, "--json", "--seconds", 0.3), 3).stdout)
    assert (found["ends"], found["culprit"]) == (False, {"pid": child, "rank": None})
    assert found["mechanism"].startswith(f"process {child} (sleep) is stopped by SIGSTOP")
    parent, stopped = found["processes"]
    assert (parent["pid"], stopped["pid"], stopped["parent"]) == (job.pid, child, job.pid)
    assert [thread["ends"] for thread in (*parent["threads"], *stopped["threads"])] == [False, False]
    assert child in parent["threads"][0]["wakers"]
    os.kill(child, signal.SIGCONT)
    found = json.loads(twice(lambda: waitproof(job.pid, "--json", "--seconds", 0.3), 0).stdout)
    assert found["culprit"] is None
    assert "waits for a timer" in found["why"]


@needs_spy
def test_a_rank_below_that_waits_for_ever_is_enough(job: Job) -> None:
    code = "import subprocess, sys, os, time\nos.environ['RANK'] = '3'\n"
    stuck = "import threading; l = threading.Lock(); l.acquire(); l.acquire()"
    job.start(f"{code}p = subprocess.Popen([sys.executable, '-c', {stuck!r}])\n{READY}time.sleep(900)")
    done = twice(lambda: waitproof(job.pid, "--seconds", 0.3), 3)
    (child,) = children(job.pid)
    assert f"rank 3, process {child}\n" in done.stdout
    assert f"deadlock: rank 3 (process {child}, main thread) waits for a lock at <string>:1" in done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The only line."""
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("waitproof: ")
    return line


@needs_spy
def test_bad_input_is_one_line(job: Job) -> None:
    assert "the following arguments are required: PID" in refused(waitproof())
    assert "invalid int value: 'train.py'" in refused(waitproof("train.py"))
    assert "--seconds: not between" in refused(waitproof(1, "--seconds", "nan"))
    assert "there is no process 0" in refused(waitproof(0))
    job.start(f"{READY}raise SystemExit")
    wait_for(lambda: state_of(job.pid) == "Z", "its end")
    assert f"process {job.pid} (" in (line := refused(waitproof(job.pid)))
    assert "has ended, and its parent" in line
    job.processes[0].wait()
    assert f"there is no process {job.pid}" in refused(waitproof(job.pid))


@needs_spy
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_an_answer_that_cannot_be_written_is_one_line(job: Job, words: tuple[str, ...]) -> None:
    job.start(HEAD + "ready(); time.sleep(900)", "0")
    program = [sys.executable, str(HOUSE / "bin" / "waitproof"), str(job.pid), "--seconds", "0.1", *words]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "waitproof: cannot write: No space left on device\n")


@needs_spy
def test_a_thread_is_told_from_its_process(job: Job) -> None:
    job.start(HEAD + "thread(stuck); ready(); stuck()", "0")
    (thread,) = {int(name) for name in os.listdir(f"/proc/{job.pid}/task")} - {job.pid}
    assert refused(waitproof(thread)) == f"waitproof: {thread} is a thread of process {job.pid}"


@needs_spy
def test_a_thread_of_the_kernel_is_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in /proc/2/stat; in a container there is none."""
    content = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 4 0 0 20 0 1 0 3 0 0" + b" 0" * 28
    monkeypatch.setattr(procfs, "read", lambda path, *rest, **named: content if path == "/proc/2/stat" else None)
    assert command.main(["2"]) == 2
    assert capsys.readouterr().err == "waitproof: process 2 (kthreadd) is a thread of the kernel: it runs no program\n"


def test_a_process_that_may_not_be_read_is_one_line(job: Job) -> None:
    need_no_ptrace()
    job.start(f"import ctypes, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n{READY}time.sleep(900)", prefix=NO_PTRACE)
    assert "permission denied; run waitproof as" in refused(waitproof(job.pid, prefix=NO_PTRACE))


def test_without_py_spy_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(stacks, "program", lambda: None)
    assert command.main([str(os.getpid())]) == 2
    assert capsys.readouterr().err.endswith("pip install py-spy\n")
