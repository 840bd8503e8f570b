"""Helpers as PID 1 runs them: no failure of a helper has an effect other than a record."""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ftrun_hooks  # noqa: F401 - where a helper finds it
from ftrun.host import helpers as module
from ftrun.host.helpers import FIRST_DELAY, HelperLine, Helpers
from ftrun.messages.helpers import LINE_LIMIT
from support.runs import state_of, wait_for

HEAD = """import sys
import json, os, signal, time
def say(what): sys.stdout.write(json.dumps({{"event": what}}) + "\\n"); sys.stdout.flush()
"""


def line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Host:
    """The part of PID 1 that runs helpers, with a clock that may be ahead."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._poll, self.ahead = select.poll(), 0.0
        self.log = folder / "log"
        self._fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self.helpers = Helpers(self._poll, self._fd)
        self.lines: list[tuple[str, HelperLine]] = []
        self._patch = monkeypatch

    def run(self, code: str, **more: Any) -> None:
        self._patch.setattr(module, "CODE", HEAD + code.replace("{", "{{").replace("}", "}}"))
        self.helpers.add("it", **more)

    @property
    def now(self) -> float:
        return time.monotonic() + self.ahead

    def turn(self) -> None:
        ready = {fd for fd, _ in self._poll.poll(10)}
        for pid in self.helpers.pids:
            reaped, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if reaped and os.WIFSTOPPED(status):
                self.helpers.child_stopped(pid)
            elif reaped:
                self.reaped_at = self.now
                self.helpers.child_ended(pid, self.reaped_at, status == 0)
        self.lines += self.helpers.read_lines(ready, self.now)
        self.helpers.supervise(self.now)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        def turned() -> Any:
            self.turn()
            return condition()

        return wait_for(turned, what)

    def events(self) -> list[str]:
        return ["ended" if line is None else str(json.loads(line)["event"]) for _, line in self.lines]

    def wait(self, event: str, number: int = 1) -> None:
        self.until(lambda: self.events().count(event) >= number, event)

    def close(self) -> None:
        self.helpers.close()
        os.close(self._fd)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    before = len(os.listdir("/proc/self/fd"))
    made = Host(tmp_path, monkeypatch)
    yield made
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_line_may_be_long_and_arrive_in_parts(host: Host) -> None:
    host.run(
        'os.write(1, b\'{"event": "fir\')\n'
        "sys.stdin.readline()\n"
        'os.write(1, b\'st"}\\n{"ev\'); os.write(1, b\'ent": "next"}\\n\')\n'
        f"say('x' * {LINE_LIMIT - 100}); time.sleep(3600)"
    )
    host.until(lambda: host.helpers.is_running("it"), "its start")
    host.helpers.send("it", line({"go": "on"}))
    host.until(lambda: len(host.lines) == 3, "all lines")
    assert host.events() == ["first", "next", "x" * (LINE_LIMIT - 100)]
    assert host.helpers.deadline is None, "no reason to wake up"


def test_a_helper_that_writes_an_endless_line_is_ended(host: Host) -> None:
    host.run("while True: os.write(1, b'x' * 65536)")
    host.until(lambda: host.helpers.problems, "its end")
    assert host.helpers.problems == [("it", "it exited; ftrun restarts it")]
    assert host.events() == []


@pytest.mark.parametrize("paired", [False, True], ids=["two pipes", "one socket"])
def test_a_line_for_a_helper_that_has_just_died_raises_no_signal(host: Host, paired: bool) -> None:
    """PID 1 forwards what it receives to the command, which a SIGPIPE would end."""
    received: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, frame: received.append(number))
    try:
        host.run("say('up'); time.sleep(3600)", paired=paired)
        host.wait("up")
        host.helpers.send("it", line({"never": "read"}))
        (pid,) = host.helpers.pids
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: state_of(pid) == "Z", "its death, which PID 1 has not noticed yet")
        host.helpers.send("it", line({"go": "on"}))
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert received == []
    host.until(lambda: host.helpers.problems, "its end")


def test_a_helper_that_was_stopped_and_killed_is_no_error_of_ftrun(host: Host) -> None:
    """Both changes are collected at once, so that it is reaped before the first of them is handled."""
    host.run("say('up'); time.sleep(3600)")
    host.wait("up")
    (pid,) = host.helpers.pids
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    host.helpers.child_stopped(pid)
    host.helpers.child_ended(pid, host.now)
    assert [what for _, what in host.helpers.problems] == [
        "was stopped by a signal; ftrun continued it",
        "it exited; ftrun restarts it",
    ]


def test_a_large_output_is_read_in_bounded_parts(host: Host) -> None:
    host.run("while True: say('x' * 100)")
    host.until(lambda: len(host.lines) > 5000, "a flood")
    before = len(host.lines)
    host.turn()
    assert len(host.lines) - before <= module.READ / 100
    host.helpers.remove("it")
    after = len(host.lines)
    host.turn()
    assert len(host.lines) == after


def test_a_helper_that_dies_at_once_is_restarted_with_growing_delays(host: Host) -> None:
    host.run("say('born'); os._exit(1)")
    delays = []
    for number in range(1, 10):
        host.wait("born", number)
        due = host.until(lambda: host.helpers.deadline, "that it was reaped")
        delays.append(due - host.reaped_at)
        host.ahead += delays[-1]
    assert delays == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60])
    assert host.helpers.problems == [("it", "it exited; ftrun restarts it")], "reported once"


def test_a_helper_that_ran_long_is_restarted_at_once_and_reported(host: Host) -> None:
    host.run("say('born'); sys.stdin.readline(); os._exit(1)")
    for number in (1, 2, 3):
        host.wait("born", number)
        host.ahead += module.STABLE_AFTER + 1
        host.helpers.send("it", line({"die": True}))
        due = host.until(lambda: host.helpers.deadline, "its end")
        assert due - host.now <= FIRST_DELAY
        host.ahead += FIRST_DELAY
    assert len(host.helpers.problems) == 3


def test_the_final_lines_of_a_helper_that_runs_once_are_read(host: Host) -> None:
    host.run("[say(str(n)) for n in range(100)]; os._exit(3)", once=True)
    host.wait("ended")
    assert host.events() == [*map(str, range(100)), "ended"]
    assert host.helpers.deadline is None
    assert host.helpers.problems == []


def test_a_helper_that_exits_with_0_is_not_restarted(host: Host) -> None:
    host.run("say('none'); os._exit(0)")
    host.wait("none")
    host.until(lambda: not host.helpers.pids, "its end")
    assert host.helpers.deadline is None
    assert host.helpers.problems == []


def test_a_silent_helper_is_killed_and_reported_once(host: Host) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); say('born'); time.sleep(3600)"
    host.run(code, silence=25.0)
    for number in (1, 2, 3):
        host.wait("born", number)
        assert host.helpers.deadline is not None
        assert 20 < host.helpers.deadline - host.now <= 25
        host.ahead += 25
        host.until(lambda: not host.helpers.pids, "its end")
        host.ahead += 60
    assert [what for _, what in host.helpers.problems] == [
        "wrote nothing for 25 s; ftrun killed it",
        "it exited; ftrun restarts it",
    ]


def test_sending_to_a_helper_that_does_not_read_never_blocks(host: Host) -> None:
    host.run("say('born'); time.sleep(3600)")
    host.wait("born")
    began = time.monotonic()
    for _ in range(2000):
        host.helpers.send("it", line({"ask": "x" * 200}))
    assert time.monotonic() - began < 60
    host.turn()
    assert host.helpers.is_running("it"), "the lines are lost, without another effect"
    host.helpers.send("nobody", line({"ask": "x"}))


def test_a_helper_that_received_an_incomplete_line_is_ended(host: Host) -> None:
    """Otherwise the next line would be taken for the rest of it."""
    host.run("say('born'); time.sleep(3600)")
    host.wait("born")
    host.helpers.send("it", line({"ask": "x" * 200_000}))
    host.until(lambda: host.helpers.problems, "its end")


def test_a_helper_that_ignores_the_end_of_its_stdin_is_killed(host: Host) -> None:
    host.run("[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; say('born'); time.sleep(3600)")
    host.wait("born")
    (pid,) = host.helpers.pids
    host.helpers.remove("it")
    wait_for(lambda: state_of(pid) == "Z", "its end")
    assert host.helpers.pids == []
    os.waitpid(pid, 0)


def test_adding_a_helper_again_ends_the_old_process(host: Host) -> None:
    host.run("say('old'); time.sleep(3600)")
    host.wait("old")
    (old,) = host.helpers.pids
    host.run("say('new'); time.sleep(3600)")
    host.wait("new")
    assert len(host.helpers.pids) == 1
    assert os.waitpid(old, 0)[1] == signal.SIGKILL


def test_its_stderr_is_the_log_and_it_inherits_no_other_descriptor(host: Host) -> None:
    host.run("sys.stderr.write('oh'); sys.stderr.flush(); say(' '.join(os.listdir('/proc/self/fd'))); time.sleep(9)")
    host.until(lambda: host.lines, "its line")
    assert host.log.read_text() == "oh"
    assert host.events() == ["0 1 2 3"], "3 is the listing itself"


# --- stopped by a signal ----------------------------------------------------------------------------------------------

SPEAKER = """
for line in sys.stdin: say(json.loads(line)["ask"])
"""


def test_a_stopped_helper_is_continued(host: Host) -> None:
    host.run("say('up')" + SPEAKER)
    host.wait("up")
    for number in (1, 2):
        os.kill(host.helpers.pids[0], signal.SIGSTOP)
        host.helpers.send("it", line({"ask": "speak"}))
        host.wait("speak", number)
    assert host.events().count("up") == 1
    assert host.helpers.problems == [("it", "was stopped by a signal; ftrun continued it")]


def test_a_helper_that_is_stopped_repeatedly_is_replaced(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STOPS", 10)
    host.run("say('up')" + SPEAKER, prompt=True)
    host.wait("up")
    (first,) = host.helpers.pids

    def replaced() -> bool:
        if state_of(first) in ("R", "S"):
            os.kill(first, signal.SIGSTOP)
        return host.events().count("up") == 2

    host.until(replaced, "the next one")
    assert first not in host.helpers.pids
    assert ("it", "was stopped 10 times; ftrun killed it") in host.helpers.problems


def test_a_helper_that_is_stopped_during_finish_is_continued(host: Host, tmp_path: Path) -> None:
    done = tmp_path / "done"
    code = f"say('up'); sys.stdin.read(); os.kill(os.getpid(), signal.SIGSTOP); open({str(done)!r}, 'w')"
    host.run(code, lasting=True)
    host.wait("up")
    assert host.helpers.finish("it", 30.0)
    assert done.exists()
