"""Signals reach the command as if ftrun were not there."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.containers import NAMESPACE, PYTHON, Recorder, Run, Starter, afresh, either, fill, on_a_terminal_or_not
from support.runs import Mode, alive, children, state_of, wait_for
from support.short import quick

OWN = {"KILL", "STOP", "CHLD"}
FORWARDED = sorted(int(s) for s in signal.valid_signals() - {getattr(signal, f"SIG{name}") for name in OWN})
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)

# --- forwarding -------------------------------------------------------------------------------------------------------


@on_a_terminal_or_not
def test_every_signal_is_forwarded_once(start: Starter, mode: Mode, tty: bool, recorder: Recorder) -> None:
    run = start(*recorder.alone, mode=mode, tty=tty)
    recorder.ready()
    # Those that request the end come last: ftrun then only waits for the end.
    order = [s for s in FORWARDED if s not in ENDING] + [signal.SIGQUIT, signal.SIGINT, signal.SIGTERM]
    for index, number in enumerate(order):
        run.kill(number)
        assert recorder.got(index + 1) == order[: index + 1]
    assert run.wait() == 0
    assert len(run.named("spawned")) == 1


@either
def test_real_time_signals_are_not_merged(start: Starter, mode: Mode, recorder: Recorder) -> None:
    run = start(*recorder.alone, mode=mode)
    recorder.ready()
    for number in REAL_TIME:
        for _ in range(5):
            run.kill(number)
    got = recorder.got(5 * len(REAL_TIME))
    assert sorted(got) == sorted(list(REAL_TIME) * 5)
    run.kill(signal.SIGTERM)
    assert run.wait() == 0


@either
def test_the_processes_of_the_command_get_no_signal(start: Starter, mode: Mode, recorder: Recorder) -> None:
    run = start(*recorder.with_child, mode=mode)
    recorder.ready()
    recorder.got(0, of_child=True)
    order = [signal.SIGUSR1, signal.SIGHUP, REAL_TIME[3], signal.SIGWINCH, signal.SIGINT, signal.SIGTERM]
    for index, number in enumerate(order):
        run.kill(number)
        assert recorder.got(index + 1) == order[: index + 1]
    assert run.wait() == 0
    # After the command ftrun ends what it has left.
    assert recorder.got(1, of_child=True) in ([signal.SIGTERM], [signal.SIGTERM, signal.SIGCONT])


@either
def test_a_signal_to_the_process_group_of_ftrun_reaches_the_command_once(
    start: Starter, mode: Mode, recorder: Recorder
) -> None:
    run = start(*recorder.alone, mode=mode)
    recorder.ready()
    group = os.getpgid(run.pid)
    assert group != os.getpgrp(), "not that of this test"
    os.killpg(group, signal.SIGWINCH)  # which leaves the `unshare` around it alone
    recorder.got(1)  # of two that wait, SIGTERM would come first
    run.kill(signal.SIGTERM)
    assert recorder.got(2) == [signal.SIGWINCH, signal.SIGTERM]
    assert run.wait() == 0


# On SIGTERM it needs ten more answers of its worker, which has no handler of its own, before it saves.
SAVER = """
import multiprocessing, os, signal, sys
def work(requests):
    while True: requests.send(requests.recv())
asked = []
worker, folder = multiprocessing.get_context("fork"), sys.argv[1]
mine, other = worker.Pipe()
worker.Process(target=work, args=(other,), daemon=True).start()
other.close()
signal.signal(signal.SIGTERM, lambda *about: asked.append(1))
mine.send(0), mine.recv()
open(folder + "/ready", "w").close()
while not asked: mine.poll(0.02)
for number in range(10):
    mine.poll(0.02)
    mine.send(number), mine.recv()
with open(folder + "/saved", "w") as file: file.write(str(len(asked)))
"""
SHELL = ("sh", "-c", '"$@"; exit $?', "script")


@pytest.mark.parametrize(("wrapper", "code"), quick([((), 0), (SHELL, 143), ((*SHELL, *SHELL), 143)], 2))
@either
def test_a_program_can_save_with_the_help_of_its_workers(
    start: Starter, mode: Mode, tmp_path: Path, wrapper: tuple[str, ...], code: int
) -> None:
    """Also below a shell, which ends at once and passes nothing on."""
    run = start(*wrapper, *PYTHON, "-c", SAVER, str(tmp_path), mode=mode, grace="60s")
    wait_for((tmp_path / "ready").exists, "the worker")
    run.kill(signal.SIGTERM)
    assert run.wait() == code
    assert (tmp_path / "saved").read_text() == "1"


CRASH = """
import ctypes, os, signal, sys
from ftrun.host import early_signals, signals
early_signals.block_all()
assert signals.Signals().watch_faults() is not None
ctypes.string_at(0) if sys.argv[1] == "read" else os.abort()
"""


@pytest.mark.parametrize(("what", "number"), [("read", signal.SIGSEGV), ("abort", signal.SIGABRT)])
def test_a_crash_of_ftrun_itself_ends_it(what: str, number: int, tmp_path: Path) -> None:
    program = [sys.executable, "-c", CRASH, what]
    ended = subprocess.run(["sh", "-c", 'ulimit -c 0; exec "$@"', "sh", *program], cwd=tmp_path, timeout=60)
    assert ended.returncode == -number


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    quick(
        [*ENDING, signal.SIGHUP, signal.SIGABRT, signal.SIGSEGV, signal.SIGUSR1, signal.SIGRTMIN],
        (signal.SIGTERM, signal.SIGSEGV, signal.SIGRTMIN),
    ),
)
def test_the_default_action_of_a_signal_is_128_and_its_number(start: Starter, mode: Mode, number: int) -> None:
    run = start("sh", "-c", "ulimit -c 0; exec sleep 600", mode=mode)
    run.kill(number)
    assert run.wait() == 128 + number
    assert len(run.named("spawned")) == 1


@on_a_terminal_or_not
def test_the_exit_code_of_a_command_that_handles_sigterm_is_kept(
    start: Starter, mode: Mode, tty: bool, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 5' TERM; : > {ready}; while :; do sleep 600 & wait $!; done"
    run = start("sh", "-c", script, mode=mode, tty=tty)
    wait_for(ready.exists, "the trap")
    run.kill(signal.SIGTERM)
    assert run.wait() == 5


@either
def test_stop_grace_ends_a_command_that_ignores_sigterm(start: Starter, mode: Mode, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; : > {ready}; while :; do sleep 1; done"
    run = start("sh", "-c", script, mode=mode, options=["--stop-grace", "300ms"])
    wait_for(ready.exists, "the trap")
    command = run.command
    run.kill(signal.SIGTERM)
    assert run.wait() == 137
    assert not alive(command)


@either
def test_without_stop_grace_ftrun_waits_for_the_command(start: Starter, mode: Mode, tmp_path: Path) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    script = f"trap '' TERM; : > {ready}; while ! [ -e {go} ]; do sleep 0.02; done; exit 6"
    run = start("sh", "-c", script, mode=mode, grace="100ms")
    wait_for(ready.exists, "the trap")
    run.kill(signal.SIGTERM)
    run.until("stopping")
    time.sleep(0.5)  # longer than --grace, which does not count here
    assert run.process.poll() is None
    go.touch()
    assert run.wait() == 6


@either
def test_only_signals_that_request_the_end_have_an_effect_during_the_backoff(start: Starter, mode: Mode) -> None:
    run = start("sh", "-c", "exit 3", mode=mode, options=["--restart-on", "failure", "--backoff", "60s"])
    run.until("exited")
    wait_for(lambda: not children(run.pid), "the wait")
    for other in (signal.SIGUSR1, signal.SIGHUP, signal.SIGPIPE, signal.SIGRTMIN, signal.SIGWINCH):
        run.kill(other)
    run.kill(signal.SIGINT)
    assert run.wait() == 130
    assert len(run.named("spawned")) == 1


# --- stopped by the user ----------------------------------------------------------------------------------------------

# Touches its touch file from when `begin` exists; ends with 9 when `end` exists.
TOUCHER = """
import os, sys, time
touch, folder = os.environ["FTRUN_BEAT_DIR"] + "/touch", sys.argv[1]
open(folder + "/up", "w").close()
while not os.path.exists(folder + "/begin"):
    time.sleep(0.01)
while not os.path.exists(folder + "/end"):
    os.utime(touch)
    time.sleep(0.01)
sys.exit(9)
"""


@either
def test_a_stopped_command_is_not_a_hang(start: Starter, mode: Mode, tmp_path: Path) -> None:
    """It is stopped for longer than the start timeout before its first heartbeat, then for longer than the timeout."""
    options = ["--hang-timeout", "3s", "--start-timeout", "3s"]
    run = start(*PYTHON, "-c", TOUCHER, str(tmp_path), mode=mode, options=options)
    wait_for((tmp_path / "up").exists, "the command")
    for number in (signal.SIGTSTP, signal.SIGTTIN):
        run.kill(number)
        wait_for(lambda: state_of(run.command) == "T", "the stop")
        until = time.monotonic() + 3.3
        while time.monotonic() < until:
            assert state_of(run.command) == "T"
            time.sleep(0.05)
        (tmp_path / "begin").touch()
        run.kill(signal.SIGCONT)
        wait_for(lambda: state_of(run.command) in ("R", "S"), "that it continues")
        run.until("first_beat")
    (tmp_path / "end").touch()
    assert run.wait() == 9
    assert not run.named("hang")
    assert len(run.named("spawned")) == 1


@either
def test_a_stopped_command_can_be_ended(start: Starter, mode: Mode) -> None:
    """SIGTERM to a stopped process waits for SIGCONT, as without ftrun."""
    run = start("sleep", "600", mode=mode)
    run.kill(signal.SIGTSTP)
    wait_for(lambda: state_of(run.command) == "T", "the stop")
    run.kill(signal.SIGTERM)
    run.until("stopping")
    run.kill(signal.SIGCONT)
    assert run.wait() == 143


# --- dispositions and mask --------------------------------------------------------------------------------------------

SHOWN = ("SigBlk", "SigIgn", "SigCgt")


def shown(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs if name in SHOWN}


def ignore(*numbers: int) -> Callable[[], None]:
    def prepare() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    return prepare


def block(*numbers: int) -> Callable[[], None]:
    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    return prepare


def both() -> None:
    keys = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
    ignore(signal.SIGHUP, signal.SIGABRT, signal.SIGTRAP, *keys, *REAL_TIME)()
    block(signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN + 1)()


def everything_blocked() -> None:
    block(*signal.valid_signals())()


GIVEN: dict[str, Callable[[], None]] = {
    "nohup": ignore(signal.SIGHUP),
    "no children": ignore(signal.SIGCHLD),
    "both": both,
    "everything blocked": everything_blocked,
}


@pytest.mark.parametrize("given", GIVEN)
def test_dispositions_and_mask_are_inherited(start: Starter, mode: Mode, given: str) -> None:
    # `unshare` sets SIGCHLD for itself, so the disposition has to be set again below it.
    above = ["env", "--ignore-signal=CHLD"] if given == "no children" else []
    command = [*(NAMESPACE if mode == "pid1" else ()), *above, "cat", "/proc/self/status"]
    plain = subprocess.run(command, preexec_fn=afresh(GIVEN[given]), stdout=subprocess.PIPE, check=True, text=True)
    code, out, err = start("cat", "/proc/self/status", mode=mode, before=GIVEN[given], above=above).finish()
    assert code == 0, err
    assert shown(out.decode()) == shown(plain.stdout)
    assert int(shown(out.decode())["SigCgt"], 16) == 0


def test_a_broken_pipe_ends_the_command_as_without_ftrun(start: Starter, mode: Mode) -> None:
    code, out, _ = start("sh", "-c", "yes | head -1; kill -PIPE $$; exit 3", mode=mode).finish()
    assert (code, out) == (128 + signal.SIGPIPE, b"y\n")


@pytest.mark.parametrize("given", ["no children", "everything blocked"])
def test_ftrun_works_with_any_inherited_signal_settings(start: Starter, mode: Mode, given: str) -> None:
    script = "[ $MA_PROC_START_CNT = 1 ] && exit 1; exit 44"
    options = ["--restart-on", "failure", "--backoff", "10ms"]
    run = start(
        "sh",
        "-c",
        script,
        mode=mode,
        options=[*options, "--max-restarts", "1"],
        before=GIVEN[given],
        above=["env", "--ignore-signal=CHLD"] if given == "no children" else [],
    )
    code, _, err = run.finish()
    assert code == 93, err
    assert [e["code"] for e in run.named("exited")] == [1, 44]


# --- signals that writes of ftrun raise -------------------------------------------------------------------------------


def assert_only_sent_signals_arrive(run: Run, recorder: Recorder) -> None:
    recorder.ready()
    for number in range(1, 6):
        run.kill(signal.SIGUSR1)
        recorder.got(number)
    run.kill(signal.SIGTERM)
    assert recorder.got(6) == [signal.SIGUSR1] * 5 + [signal.SIGTERM]


def test_a_broken_pipe_of_ftrun_has_no_effect_on_the_command(start: Starter, recorder: Recorder) -> None:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.close(reader)
    with open(writer, "wb") as broken:
        run = start(*recorder.alone, options=["-v"], stdout=broken, stderr=broken)
    assert_only_sent_signals_arrive(run, recorder)
    assert run.wait() == 0


def test_a_file_size_limit_that_ftrun_reaches_has_no_effect_on_the_command(
    start: Starter, recorder: Recorder, tmp_path: Path
) -> None:
    limit = 1 << 20  # more than the beat file needs
    run_dir = tmp_path / "full"
    run_dir.mkdir()
    for name in ("events.jsonl", "run.log", "termination"):
        (run_dir / name).write_bytes(b"\n" * limit)
    with open(tmp_path / "errors", "ab") as errors:
        run = start(
            *recorder.alone,
            run_dir=run_dir,
            options=["-v"],
            stderr=errors,
            before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
    recorder.ready()
    os.kill(run.pid, signal.SIGUSR1)
    assert recorder.got(1) == [signal.SIGUSR1]
    os.kill(run.pid, signal.SIGTERM)
    assert recorder.got(2) == [signal.SIGUSR1, signal.SIGTERM]
    assert run.wait() == 0
    assert (tmp_path / "errors").read_text().count("cannot be written") == 1


def test_a_full_pipe_on_stderr_does_not_block(start: Starter) -> None:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    fill(writer)
    options = ["--log-format=json", "-v", "--restart-on", "failure", "--backoff", "1ms"]
    with open(writer, "wb") as full:
        run = start("sh", "-c", "exit 3", options=options, stderr=full)
    assert run.wait() == 93
    os.close(reader)


def test_ftrun_works_with_closed_standard_streams(start: Starter) -> None:
    def close() -> None:
        for fd in (0, 1, 2):
            os.close(fd)

    run = start("sh", "-c", "exit 4", options=["-v"], before=close)
    assert run.wait() == 4
