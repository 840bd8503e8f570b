"""The output helper forwards what the command writes: unmodified, whatever happens to the log."""

import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ftrun.helpers.output.log import LIMIT
from ftrun.helpers.output.tail import LENGTH, LINES, SIZE, Tail
from ftrun.host import spawn
from ftrun.messages.helpers import LINE_LIMIT
from support.runs import HOUSE, state_of, wait_for

PIPEFUL = 65536
DEADLINE = 60.0
CODE = """import sys
sys.path.insert(0, sys.argv[1])
from ftrun.helpers.output import program, relay
program.PATIENCE, program.LOG_PATIENCE = {patience}  # s; long, so that a busy machine does not matter
{patch}
sys.exit(program.main(sys.argv[2:]))"""
SOON, LATE = (0.3, 0.3), (DEADLINE, DEADLINE)
NOTE = re.compile(rb"\n--- (\d+) bytes are missing here: [a-z ,]+ ---\n")
NO_TEE = "relay._libc = type('', (), {'tee': lambda *words: -1})"


class Forwarding:
    """The helper with pipes as PID 1 makes them.  `ends` are what the command would write to."""

    def __init__(self, log: Path, targets: dict[int, int], patch: str, patience: tuple[float, float]) -> None:
        self.log, self.events = log, list[dict[str, Any]]()
        self._rest = b""
        pipes = {stream: os.pipe2(os.O_CLOEXEC) for stream in targets}
        self.sources = {stream: pipe[0] for stream, pipe in pipes.items()}
        self.ends = {stream: pipe[1] for stream, pipe in pipes.items()}
        command = [
            sys.executable,
            "-I",
            "-c",
            CODE.format(patch=patch, patience=patience),
            f"{HOUSE}/supervisor",
            str(log),
        ]
        passed = [fd for stream, target in targets.items() for fd in (self.sources[stream], target)]
        errors = log.with_name("errors")
        self._errors = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        self.errors = errors.read_text
        self.pid, self._output, self._held = spawn.spawn_helper(
            command + [str(stream) for stream in targets], self._errors, passed, True
        )

    def ask(self, **request: object) -> None:
        os.write(self._held, json.dumps(request).encode() + b"\n")

    def event(self, event: str, number: int = 1) -> dict[str, Any]:
        """The `number`th of that name."""
        until = time.monotonic() + DEADLINE
        while len(found := [line for line in self.events if line["event"] == event]) < number:
            left = until - time.monotonic()
            assert select.select([self._output], [], [], max(0.0, left))[0], f"no {event}: {self.events}"
            content = os.read(self._output, 65536)
            assert content, f"ended without {event}: {self.events} {self.errors()}"
            *lines, self._rest = (self._rest + content).split(b"\n")
            assert all(len(line) < LINE_LIMIT for line in lines)
            self.events += map(json.loads, lines)
        return found[number - 1]

    def attempt(self, number: int, mono: float | None = None) -> None:
        self.ask(ask="attempt_begins", number=number, mono=mono or time.monotonic())

    def tail(self) -> list[str]:
        asked = sum(line["event"] == "last_lines" for line in self.events)
        self.ask(ask="get_tail")
        lines: list[str] = self.event("last_lines", asked + 1)["lines"]
        return lines

    def write(self, data: bytes, stream: int = 1) -> None:
        while data:
            data = data[os.write(self.ends[stream], data) :]

    def end(self, *streams: int) -> None:
        """The process tree of the command is dead."""
        for stream in streams or tuple(self.ends):
            os.close(self.ends.pop(stream))

    def close_source(self, stream: int) -> None:
        """What PID 1 does when the stream has no reader any more."""
        os.close(self.sources.pop(stream))

    def close_stdin(self) -> None:
        os.close(self._held)
        self._held = -1

    def wait(self) -> int:
        """The exit code, once all pipes and its stdin have ended."""
        if self._held >= 0:
            self.close_stdin()
        pid, self.pid = self.pid, 0
        wait_for(lambda: state_of(pid) == "Z", "its end", DEADLINE)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        for fd in (self._held, self._output, self._errors, *self.ends.values(), *self.sources.values()):
            if fd >= 0:
                os.close(fd)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class Reader(Thread):
    """Reads all that comes to a pipe or a socket."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd, self.seen = fd, bytearray()
        self.start()

    def run(self) -> None:
        while content := os.read(self._fd, PIPEFUL):
            self.seen += content
        os.close(self._fd)

    def all(self) -> bytes:
        self.join(DEADLINE)
        assert not self.is_alive()
        return bytes(self.seen)


@contextmanager
def forwarding(
    folder: Path, *targets: int, patch: str = "", patience: tuple[float, float] = LATE
) -> Iterator[Forwarding]:
    """The first target is that of stdout, the second of stderr; they belong to the helper from here on."""
    made = Forwarding(folder / "output.log", dict(enumerate(targets, 1)), patch, patience)
    for target in targets:
        os.close(target)
    try:
        yield made
    finally:
        made.close()


def null() -> int:
    return os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)


def filled(target: int) -> None:
    """Until it takes no more."""
    os.set_blocking(target, False)
    try:
        while os.write(target, b"-" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(target, True)


def open_target(kind: str, folder: Path) -> tuple[int, Reader | None]:
    if kind == "pipe":
        end, target = os.pipe2(os.O_CLOEXEC)
        return target, Reader(end)
    if kind == "socket":
        one, other = socket.socketpair()
        return one.detach(), Reader(other.detach())
    return os.open(folder / "out", os.O_WRONLY | os.O_CREAT | (os.O_APPEND if kind == "append" else 0)), None


@pytest.mark.parametrize("patch", ["", NO_TEE], ids=["tee", "no tee"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "file", "append"])
def test_bytes_are_forwarded_unmodified(tmp_path: Path, kind: str, patch: str) -> None:
    data = os.urandom(4 << 20)
    target, reader = open_target(kind, tmp_path)
    with forwarding(tmp_path, target, patch=patch) as helper:
        helper.write(data)
        helper.end()
        assert helper.wait() == 0, helper.errors()
        assert (reader.all() if reader else (tmp_path / "out").read_bytes()) == data
        assert (tmp_path / "output.log").read_bytes() == data
        assert helper.errors() == ""


def test_a_line_is_forwarded_before_the_next_is_written(tmp_path: Path) -> None:
    end, target = os.pipe2(os.O_CLOEXEC)
    with forwarding(tmp_path, target) as helper:
        for number in range(20):
            helper.write(b"%d" % number)
            assert os.read(end, 100) == b"%d" % number
        assert select.select([end], [], [], 0)[0] == []
    os.close(end)


# --- the last lines ---------------------------------------------------------------------------------------------------


def test_the_last_lines_include_what_is_still_in_the_pipe(tmp_path: Path) -> None:
    """With a full pipe it replies when it has read that."""
    with forwarding(tmp_path, null(), null()) as helper:
        helper.write(b"first\n")
        assert helper.tail() == ["first"]
        os.kill(helper.pid, signal.SIGSTOP)
        wait_for(lambda: state_of(helper.pid) == "T", "it is stopped")
        helper.write(b"x" * (PIPEFUL - 20) + b"\nlast\n")
        helper.write(b"error\n", 2)
        helper.ask(ask="get_tail")
        os.kill(helper.pid, signal.SIGCONT)
        assert {"error", "last"} < set(helper.event("last_lines", 2)["lines"])


def test_the_last_lines_do_not_wait_for_a_reader(tmp_path: Path) -> None:
    end, target = os.pipe2(os.O_CLOEXEC)
    filled(target)
    with forwarding(tmp_path, target, patience=SOON) as helper:
        helper.write(b"stuck\n")
        began = time.monotonic()
        assert helper.tail() == ["stuck"]
        assert time.monotonic() - began >= SOON[0], "more may arrive"
    os.close(end)


def test_each_attempt_has_last_lines_of_its_own(tmp_path: Path) -> None:
    """Also what it writes before the helper is informed."""
    end, target = os.pipe2(os.O_CLOEXEC)
    reader = Reader(end)
    with forwarding(tmp_path, target) as helper:
        helper.attempt(0)
        helper.write(b"one\nunended")
        assert helper.tail() == ["one", "unended"]
        helper.attempt(2)
        assert helper.tail() == []
        helper.write(b"two\n")
        assert helper.tail() == ["two"]
        began = time.monotonic()
        helper.write(b"three\n")
        assert helper.tail() == ["two", "three"]
        helper.attempt(3, began)
        assert helper.tail() == ["three"]
        helper.end()
        assert helper.wait() == 0
    assert (tmp_path / "output.log").read_text() == "one\nunended\n--- attempt 2 ---\ntwo\nthree\n--- attempt 3 ---\n"
    assert reader.all() == b"one\nunendedtwo\nthree\n"


@pytest.mark.parametrize("patch", ["", NO_TEE], ids=["tee", "no tee"])
def test_an_attempt_that_is_announced_before_its_output_is_marked_before_it(tmp_path: Path, patch: str) -> None:
    """On a busy machine the helper may find both at once, and its thread for the output may run first."""
    expected = b""
    with forwarding(tmp_path, null(), patch=patch) as helper:
        for number in range(2, 42):
            os.kill(helper.pid, signal.SIGSTOP)
            wait_for(lambda: state_of(helper.pid) == "T", "it is stopped")
            helper.attempt(number)
            helper.write(b"line of %d\n" % number)
            os.kill(helper.pid, signal.SIGCONT)
            assert helper.tail() == [f"line of {number}"]
            expected += b"--- attempt %d ---\nline of %d\n" % (number, number)
        helper.end()
        assert helper.wait() == 0
    assert (tmp_path / "output.log").read_bytes() == expected


NUMBERS = [str(n) for n in range(1000)]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([(1, b"out "), (2, b"err "), (1, b"put\nmore"), (2, b"or\n")], ["out put", "err or", "more"]),
        ([(1, b" 10%\r 20%\r 30%\r"), (1, b"\nwindows\r\n")], [" 30%", "windows"]),  # a progress bar
        ([(1, b"\xff\xc3\n" + "é".encode() * 2000 + b"\n")], ["��", "é" * LENGTH]),
        ([(1, b"x" * (1 << 20) + b"\nlast")], ["x" * LENGTH, "last"]),
        ([(1, line.encode() + b"\n") for line in NUMBERS], NUMBERS[-LINES:]),
    ],
    ids=["two streams", "carriage return", "not UTF-8", "long line", "many lines"],
)
def test_the_tail_has_the_last_lines_as_a_terminal_shows_them(
    chunks: list[tuple[int, bytes]], lines: list[str]
) -> None:
    tail = Tail()
    for stream, data in chunks:
        tail.add(0.0, stream, data)
    assert tail.lines() == lines


def test_a_verbose_stream_does_not_displace_the_other() -> None:
    made = Tail(2)
    made.add(0.0, 2, b"Traceback\nRuntimeError\n")
    for number in range(1000):
        made.add(1.0, 1, b"step %d\n" % number)
    assert made.lines() == ["Traceback", "RuntimeError", *(f"step {n}" for n in range(1000 - LINES // 2, 1000))]


@pytest.mark.parametrize("content", [b"\0", b"\xff", b"\\", b'"', b"\n", b"\r", "💥".encode()])
def test_a_reply_is_never_too_long_for_pid_1(content: bytes) -> None:
    made = Tail()
    for _ in range(100):
        made.add(0.0, 1, content * 300 + b"\n" + content * 500)
    assert len(json.dumps({"event": "last_lines", "lines": made.lines()})) < LINE_LIMIT / 2
    assert sum(map(len, made.lines())) <= SIZE


# --- errors of the log -----------------------------------------------------------------------------------------------


def test_a_dead_disk_delays_only_the_log_and_missing_bytes_are_counted(tmp_path: Path) -> None:
    """Opening a FIFO without a reader blocks."""
    os.mkfifo(tmp_path / "output.log")
    end, target = os.pipe2(os.O_CLOEXEC)
    reader, data = Reader(end), os.urandom(4 * LIMIT).replace(b"\n", b"x")
    with forwarding(tmp_path, target) as helper:
        helper.write(data)
        wait_for(lambda: len(reader.seen) == len(data), "all of it")
        log = Reader(os.open(tmp_path / "output.log", os.O_RDONLY))

        def room() -> bool:
            helper.write(b".")
            return log.seen.endswith(b".")

        wait_for(room, "that there is room again")
        helper.end()
        assert helper.wait() == 0
    (first, *rest), missing = NOTE.split(log.all())[::2], NOTE.findall(log.all())
    assert data.startswith(first)
    assert LIMIT // 2 < len(first) <= LIMIT
    assert len(first) + sum(map(len, rest)) + sum(map(int, missing)) == len(reader.all())
    assert reader.all().rstrip(b".") == data.rstrip(b".")


def test_it_ends_with_a_dead_disk(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "output.log")
    with forwarding(tmp_path, null(), patience=SOON) as helper:
        helper.write(b"x")
        helper.end()
        assert helper.wait() == 0


# --- errors of the destination ---------------------------------------------------------------------------------------


def test_the_command_gets_EPIPE_when_its_reader_has_gone(tmp_path: Path) -> None:
    """At its next write, even if the reader closed while nothing was written."""
    end, target = os.pipe2(os.O_CLOEXEC)
    with forwarding(tmp_path, target, null()) as helper:
        helper.write(b"seen")
        assert os.read(end, 100) == b"seen"
        os.close(end)
        assert helper.event("broken")["stream"] == 1
        helper.close_source(1)
        with pytest.raises(BrokenPipeError):
            os.write(helper.ends[1], b"x")
        helper.write(b"still here\n", 2)
        assert helper.tail() == ["still here", "seen"]


def test_a_fifo_may_get_a_new_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    end = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with forwarding(tmp_path, os.open(tmp_path / "fifo", os.O_WRONLY)) as helper:
        assert helper.tail() == []
        os.close(end)
        assert helper.tail() == []
        reader = Reader(os.open(tmp_path / "fifo", os.O_RDONLY))
        helper.write(b"hello again")
        helper.end()
        assert helper.wait() == 0
        assert reader.all() == b"hello again"
        assert [line["event"] for line in helper.events] == ["last_lines", "last_lines"]


@pytest.mark.parametrize("kind", ["pipe", "fifo", "socket"])
def test_a_blocked_write_ends_when_the_reader_goes(tmp_path: Path, kind: str) -> None:
    if kind == "socket":
        target, end = (one.detach() for one in socket.socketpair())
    elif kind == "fifo":
        os.mkfifo(tmp_path / "fifo")
        end = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        target = os.open(tmp_path / "fifo", os.O_WRONLY)
    else:
        end, target = os.pipe2(os.O_CLOEXEC)
    filled(target)
    with forwarding(tmp_path, target, patience=SOON) as helper:
        helper.write(b"x" * PIPEFUL)
        assert len(helper.tail()) == 1
        os.close(end)
        assert helper.event("broken")["stream"] == 1
        helper.close_source(1)
        with pytest.raises(BrokenPipeError):
            os.write(helper.ends[1], b"x")


@pytest.mark.parametrize("blocking", [True, False])
def test_a_slow_reader_slows_the_command_and_gets_everything(tmp_path: Path, blocking: bool) -> None:
    end, target = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(target, blocking)
    data = os.urandom(1 << 20)
    with forwarding(tmp_path, target) as helper:
        os.set_blocking(helper.ends[1], False)
        written = 0

        def blocked() -> bool:
            nonlocal written
            try:
                written += os.write(helper.ends[1], data[written : written + 4096])
            except BlockingIOError:
                return not select.select([], [helper.ends[1]], [], 0.5)[1]
            return False

        wait_for(blocked, "it is held up")
        assert written <= 3 * PIPEFUL
        reader = Reader(end)
        os.set_blocking(helper.ends[1], True)
        helper.write(data[written:])
        helper.end()
        assert helper.wait() == 0
    assert reader.all() == data


# --- ends -------------------------------------------------------------------------------------------------------------


def test_signals_to_all_processes_do_not_end_it(tmp_path: Path) -> None:
    with forwarding(tmp_path, null()) as helper:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGTSTP, signal.SIGXCPU):
            os.kill(helper.pid, number)
        helper.write(b"here\n")
        assert helper.tail() == ["here"]
