"""Signals reach the command as if ftrun were not there."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.containers import NAMESPACE, PYTHON, Recorder, Run, Starter, afresh, fill
from support.runs import Mode, alive, children, state_of, status, wait_for

OWN = {"KILL", "STOP", "CHLD", "SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP", "SYS"}
FORWARDED = sorted(int(s) for s in signal.valid_signals() - {getattr(signal, f"SIG{name}") for name in OWN})
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)

# --- forwarding -------------------------------------------------------------------------------------------------------


def test_every_signal_arrives_once(start: Starter, mode: Mode, tty: bool, recorder: Recorder) -> None:
    run = start(*recorder.alone, mode=mode, tty=tty)
    recorder.ready()
    # Those that ask for the end come last: after them only the end is awaited.
    order = [s for s in FORWARDED if s not in ENDING] + [signal.SIGQUIT, signal.SIGINT, signal.SIGTERM]
    for index, number in enumerate(order):
        run.kill(number)
        assert recorder.got(index + 1) == order[: index + 1]
    assert run.wait() == 0
    assert len(run.named("spawned")) == 1


def test_real_time_signals_are_not_merged(start: Starter, mode: Mode, tty: bool, recorder: Recorder) -> None:
    run = start(*recorder.alone, mode=mode, tty=tty)
    recorder.ready()
    for number in REAL_TIME:
        for _ in range(5):
            run.kill(number)
    got = recorder.got(5 * len(REAL_TIME))
    assert sorted(got) == sorted(list(REAL_TIME) * 5)
    run.kill(signal.SIGTERM)
    assert run.wait() == 0


def test_without_a_terminal_the_group_gets_it(start: Starter, mode: Mode, recorder: Recorder) -> None:
    run = start(*recorder.with_child, mode=mode)
    recorder.ready()
    recorder.got(0, of_child=True)
    order = [signal.SIGUSR1, signal.SIGHUP, REAL_TIME[3], signal.SIGWINCH, signal.SIGINT, signal.SIGTERM]
    for index, number in enumerate(order):
        run.kill(number)
        assert recorder.got(index + 1) == order[: index + 1]
        assert recorder.got(index + 1, of_child=True) == order[: index + 1]
    assert run.wait() == 0


def test_with_a_terminal_the_command_alone_gets_it(start: Starter, mode: Mode, recorder: Recorder) -> None:
    """Its keys reach the whole group anyway: twice would be once too often."""
    run = start(*recorder.with_child, mode=mode, tty=True)
    recorder.ready()
    recorder.got(0, of_child=True)
    run.kill(signal.SIGUSR1)
    assert recorder.got(1) == [signal.SIGUSR1]
    run.kill(signal.SIGTERM)  # ends the recorder, and then ftrun ends the child with a SIGTERM of its own
    assert run.wait() == 0
    assert recorder.got(1, of_child=True) in ([signal.SIGTERM], [signal.SIGTERM, signal.SIGCONT])


# --- the end ----------------------------------------------------------------------------------------------------------


def test_default_action_of_sigterm_is_143(start: Starter, mode: Mode, tty: bool) -> None:
    run = start("sleep", "600", mode=mode, tty=tty)
    run.kill(signal.SIGTERM)
    assert run.wait() == 143
    assert len(run.named("spawned")) == 1


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGRTMIN])
def test_default_action_of_another_is_128_and_its_number(start: Starter, mode: Mode, number: int) -> None:
    run = start("sh", "-c", "ulimit -c 0; exec sleep 600", mode=mode)
    run.kill(number)
    assert run.wait() == 128 + number
    assert len(run.named("spawned")) == 1


def test_a_command_that_handles_sigterm_has_its_own_code(start: Starter, mode: Mode, tty: bool, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    run = start(
        "sh", "-c", f"trap 'exit 5' TERM; : > {ready}; while :; do sleep 600 & wait $!; done", mode=mode, tty=tty
    )
    wait_for(ready.exists, "the trap")
    run.kill(signal.SIGTERM)
    assert run.wait() == 5


def test_stop_grace_ends_one_that_ignores_sigterm(start: Starter, mode: Mode, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; : > {ready}; while :; do sleep 1; done"
    run = start("sh", "-c", script, mode=mode, options=["--stop-grace", "300ms"])
    wait_for(ready.exists, "the trap")
    command = run.command
    run.kill(signal.SIGTERM)
    assert run.wait() == 137
    assert not alive(command)


def test_without_stop_grace_it_is_waited_for(start: Starter, mode: Mode, tmp_path: Path) -> None:
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


def test_sigterm_while_a_restart_waits_is_143(start: Starter, mode: Mode) -> None:
    run = start("sh", "-c", "exit 3", mode=mode, options=["--restart-on", "failure", "--backoff", "60s"])
    run.until("exited")
    wait_for(lambda: not children(run.pid), "the wait")
    run.kill(signal.SIGTERM)
    assert run.wait() == 143
    assert len(run.named("spawned")) == 1


def test_other_signals_while_a_restart_waits_do_nothing(start: Starter, mode: Mode) -> None:
    run = start("sh", "-c", "exit 3", mode=mode, options=["--restart-on", "failure", "--backoff", "60s"])
    run.until("exited")
    wait_for(lambda: not children(run.pid), "the wait")
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGPIPE, signal.SIGRTMIN, signal.SIGWINCH):
        run.kill(number)
    run.kill(signal.SIGINT)
    assert run.wait() == 130


# --- stopped by the user ----------------------------------------------------------------------------------------------

# Touches its touch file all the time, but at first only once `begin` is there; ends with 9 when `end` is there.
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


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU], ids=lambda s: s.name)
def test_a_stopped_command_is_not_a_hang(start: Starter, mode: Mode, tmp_path: Path, number: int) -> None:
    limit = 1.5
    options = ["--hang-timeout", f"{limit}s", "--start-timeout", f"{limit}s"]
    run = start(*PYTHON, "-c", TOUCHER, str(tmp_path), mode=mode, options=options)
    if number != signal.SIGTSTP:  # both timeouts with this one, a single one with the others
        (tmp_path / "begin").touch()
    wait_for((tmp_path / "up").exists, "the command")
    for _ in range(2 if number == signal.SIGTSTP else 1):
        run.kill(number)
        wait_for(lambda: state_of(run.command) == "T", "the stop")
        until = time.monotonic() + limit + 0.3
        while time.monotonic() < until:
            assert state_of(run.command) == "T"
            time.sleep(0.05)
        (tmp_path / "begin").touch()
        run.kill(signal.SIGCONT)
        wait_for(lambda: state_of(run.command) in ("R", "S"), "its going on")
        run.until("first_beat")
    (tmp_path / "end").touch()
    assert run.wait() == 9
    assert not run.named("hang")
    assert len(run.named("spawned")) == 1


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
    ignore(signal.SIGHUP, signal.SIGINT, *REAL_TIME)()
    block(signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN + 1)()


def everything_blocked() -> None:
    block(*signal.valid_signals())()


GIVEN: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "nohup": ignore(signal.SIGHUP),
    "background": ignore(signal.SIGINT, signal.SIGQUIT),
    "no job control": ignore(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    "no children": ignore(signal.SIGCHLD),
    "faults": ignore(signal.SIGABRT, signal.SIGTRAP),
    "both": both,
    "blocked child signal": block(signal.SIGCHLD, signal.SIGUSR1),
    "everything blocked": everything_blocked,
}


@pytest.mark.parametrize("given", GIVEN)
def test_dispositions_and_mask_are_those_given(start: Starter, mode: Mode, given: str) -> None:
    # `unshare` wants to hear of its child itself, so what it was given for SIGCHLD has to be said again below it.
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
def test_ftrun_works_whatever_was_ignored_or_blocked(start: Starter, mode: Mode, given: str) -> None:
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


def test_an_ignored_signal_stays_ignored(start: Starter, mode: Mode, tmp_path: Path) -> None:
    run = start("sleep", "600", mode=mode, before=ignore(signal.SIGHUP))
    for _ in range(3):
        run.kill(signal.SIGHUP)
    assert int(status(run.command)["SigIgn"], 16) & 1
    run.kill(signal.SIGTERM)
    assert run.wait() == 143


# --- what ftrun's own writes raise is its own affair ------------------------------------------------------------------


def quiet_to_the_end(run: Run, recorder: Recorder) -> None:
    recorder.ready()
    for number in range(1, 6):
        run.kill(signal.SIGUSR1)
        recorder.got(number)
    run.kill(signal.SIGTERM)
    assert recorder.got(6) == [signal.SIGUSR1] * 5 + [signal.SIGTERM]


def test_a_broken_pipe_is_not_the_commands(start: Starter, mode: Mode, recorder: Recorder) -> None:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.close(reader)
    with open(writer, "wb") as broken:
        run = start(*recorder.alone, mode=mode, options=["-v"], stdout=broken, stderr=broken)
    quiet_to_the_end(run, recorder)
    assert run.wait() == 0


def test_a_file_size_limit_is_not_the_commands(start: Starter, mode: Mode, recorder: Recorder, tmp_path: Path) -> None:
    limit = 1 << 20  # more than the beats take
    run_dir = tmp_path / "full"
    run_dir.mkdir()
    for name in ("events.jsonl", "run.log", "termination"):
        (run_dir / name).write_bytes(b"\n" * limit)
    with open(tmp_path / "errors", "ab") as errors:
        run = start(
            *recorder.alone,
            mode=mode,
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


def test_no_space_for_beats_under_a_file_size_limit_is_one_clear_message(start: Starter, mode: Mode) -> None:
    before = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # noqa: E731
    code, _, err = start("true", mode=mode, before=before).finish()
    assert (code, err.count(b"\n")) == (125, 1), err
    assert b"Traceback" not in err


@pytest.mark.parametrize("option", ["-v", "--log-format=json"])
def test_a_full_pipe_does_not_block(start: Starter, mode: Mode, option: str) -> None:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    fill(writer)
    with open(writer, "wb") as full:
        run = start(
            "sh",
            "-c",
            "exit 3",
            mode=mode,
            options=[option, "-v", "--restart-on", "failure", "--backoff", "1ms"],
            stderr=full,
        )
    assert run.wait() == 93
    os.close(reader)


def test_closed_standard_files(start: Starter, mode: Mode) -> None:
    def close() -> None:
        for fd in (0, 1, 2):
            os.close(fd)

    run = start("sh", "-c", "exit 4", mode=mode, options=["-v"], before=close)
    assert run.wait() == 4
