"""The helper that passes on what the command writes: bytes as they are, whatever becomes of the log."""

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

from ftrun.helpers.output.__main__ import PATIENCE
from ftrun.helpers.output.log import LIMIT
from ftrun.helpers.output.tail import LENGTH, LINES, SIZE, Tail
from ftrun.host import spawn
from ftrun.messages.helpers import LINE_LIMIT
from support.runs import HOUSE, state_of, wait_for

PIPEFUL = 65536
DEADLINE = 60.0
CODE = """import sys
sys.path.insert(0, sys.argv[1])
from ftrun.helpers.output import relay
{patch}
from ftrun.helpers.output.__main__ import main
sys.exit(main(sys.argv[2:]))"""
NOTE = re.compile(rb"\n--- (\d+) bytes are missing here: [a-z ,]+ ---\n")
NO_TEE = "relay._libc = type('', (), {'tee': lambda *words: -1})"


class Passing:
    """The helper with pipes as PID 1 makes them.  `ends` are what the command would write to."""

    def __init__(self, log: Path, targets: dict[int, int], patch: str = "") -> None:
        self.log, self.said = log, list[dict[str, Any]]()
        self._rest = b""
        pipes = {stream: os.pipe2(os.O_CLOEXEC) for stream in targets}
        self.sources = {stream: pipe[0] for stream, pipe in pipes.items()}
        self.ends = {stream: pipe[1] for stream, pipe in pipes.items()}
        words = [sys.executable, "-I", "-c", CODE.format(patch=patch), f"{HOUSE}/supervisor", str(log)]
        passed = [fd for stream, target in targets.items() for fd in (self.sources[stream], target)]
        errors = log.with_name("errors")
        self._errors = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        self.errors = errors.read_text
        self.pid, self._output, self._held = spawn.spawn_helper(
            words + [str(s) for s in targets], self._errors, passed, True
        )

    def tell(self, **request: object) -> None:
        self.tell_bytes(json.dumps(request).encode())

    def tell_bytes(self, line: bytes) -> None:
        os.write(self._held, line + b"\n")

    def hear(self, event: str, number: int = 1) -> dict[str, Any]:
        """The `number`th of that name."""
        until = time.monotonic() + DEADLINE
        while len(found := [line for line in self.said if line["event"] == event]) < number:
            left = until - time.monotonic()
            assert select.select([self._output], [], [], max(0.0, left))[0], f"no {event}: {self.said}"
            content = os.read(self._output, 65536)
            assert content, f"ended without {event}: {self.said} {self.errors()}"
            *lines, self._rest = (self._rest + content).split(b"\n")
            assert all(len(line) < LINE_LIMIT for line in lines)
            self.said += map(json.loads, lines)
        return found[number - 1]

    def attempt(self, number: int, mono: float | None = None) -> None:
        self.tell(ask="attempt", number=number, mono=mono or time.monotonic())

    def tail(self) -> list[str]:
        asked = sum(line["event"] == "tail" for line in self.said)
        self.tell(ask="get_tail")
        lines: list[str] = self.hear("tail", asked + 1)["lines"]
        return lines

    def write(self, data: bytes, stream: int = 1) -> None:
        while data:
            data = data[os.write(self.ends[stream], data) :]

    def end(self, *streams: int) -> None:
        """The command and its tree are dead."""
        for stream in streams or tuple(self.ends):
            os.close(self.ends.pop(stream))

    def let_go(self, stream: int) -> None:
        """What PID 1 does when nobody reads any more."""
        os.close(self.sources.pop(stream))

    def hang_up(self) -> None:
        os.close(self._held)
        self._held = -1

    def wait(self) -> int:
        """The exit code, once all pipes and its stdin have ended."""
        if self._held >= 0:
            self.hang_up()
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
def passing(folder: Path, *targets: int, patch: str = "") -> Iterator[Passing]:
    """The first target is that of stdout, the second of stderr; they belong to the helper from here on."""
    made = Passing(folder / "output.log", dict(enumerate(targets, 1)), patch)
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
def test_bytes_are_passed_on_as_they_are(tmp_path: Path, kind: str, patch: str) -> None:
    data = os.urandom(4 << 20)
    target, reader = open_target(kind, tmp_path)
    with passing(tmp_path, target, patch=patch) as helper:
        helper.write(data)
        helper.end()
        assert helper.wait() == 0, helper.errors()
        assert (reader.all() if reader else (tmp_path / "out").read_bytes()) == data
        assert (tmp_path / "output.log").read_bytes() == data
        assert helper.errors() == ""


def test_two_streams_go_two_ways(tmp_path: Path) -> None:
    targets = [os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("out", "err")]
    with passing(tmp_path, *targets) as helper:
        for number in range(1000):
            helper.write(b"out %d\n" % number, 1)
            helper.write(b"err %d\n" % number, 2)
        helper.end()
        assert helper.wait() == 0
    assert (tmp_path / "out").read_bytes() == b"".join(b"out %d\n" % n for n in range(1000))
    assert (tmp_path / "err").read_bytes() == b"".join(b"err %d\n" % n for n in range(1000))
    assert len((tmp_path / "output.log").read_bytes().splitlines()) == 2000


def test_a_line_is_passed_on_before_the_next_is_written(tmp_path: Path) -> None:
    end, target = os.pipe2(os.O_CLOEXEC)
    with passing(tmp_path, target) as helper:
        for number in range(20):
            helper.write(b"%d" % number)
            assert os.read(end, 100) == b"%d" % number
        assert select.select([end], [], [], 0)[0] == []
    os.close(end)


# --- the last lines ---------------------------------------------------------------------------------------------------


def test_the_last_lines_are_all_that_was_written(tmp_path: Path) -> None:
    """Asked while a pipeful waits, it answers when it has seen that."""
    with passing(tmp_path, null(), null()) as helper:
        helper.write(b"first\n")
        assert helper.tail() == ["first"]
        os.kill(helper.pid, signal.SIGSTOP)
        wait_for(lambda: state_of(helper.pid) == "T", "it is stopped")
        helper.write(b"x" * (PIPEFUL - 20) + b"\nlast\n")
        helper.write(b"error\n", 2)
        helper.tell(ask="get_tail")
        os.kill(helper.pid, signal.SIGCONT)
        assert {"error", "last"} < set(helper.hear("tail", 2)["lines"])


def test_the_last_lines_do_not_wait_for_a_reader(tmp_path: Path) -> None:
    end, target = os.pipe2(os.O_CLOEXEC)
    filled(target)
    with passing(tmp_path, target) as helper:
        helper.write(b"stuck\n")
        began = time.monotonic()
        assert helper.tail() == ["stuck"]
        assert time.monotonic() - began >= PATIENCE, "it may have more to see"
    os.close(end)


def test_another_attempt_has_last_lines_of_its_own(tmp_path: Path) -> None:
    end, target = os.pipe2(os.O_CLOEXEC)
    reader = Reader(end)
    with passing(tmp_path, target) as helper:
        helper.write(b"one\nunended")
        assert helper.tail() == ["one", "unended"]
        helper.attempt(2)
        assert helper.tail() == []
        helper.write(b"two\n")
        assert helper.tail() == ["two"]
        helper.end()
        assert helper.wait() == 0
    assert (tmp_path / "output.log").read_text() == "one\nunended\n--- attempt 2 ---\ntwo\n"
    assert reader.all() == b"one\nunendedtwo\n"


def test_what_an_attempt_says_before_the_helper_knows_of_it_is_its_own(tmp_path: Path) -> None:
    with passing(tmp_path, null()) as helper:
        helper.write(b"one\n")
        assert helper.tail() == ["one"]
        began = time.monotonic()
        helper.write(b"two\n")
        assert helper.tail() == ["one", "two"]
        helper.attempt(2, began)
        assert helper.tail() == ["two"]


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"ask": "wonder"}', b'{"ask": "attempt", "number": 1}', b"\xff", b"[" * 9000]
)
def test_a_request_that_is_none_is_told(tmp_path: Path, line: bytes) -> None:
    with passing(tmp_path, null()) as helper:
        helper.tell_bytes(line)
        assert "malformed request" in helper.hear("problem")["what"]
        assert helper.tail() == []


def tail(*chunks: bytes | tuple[int, bytes]) -> list[str]:
    made = Tail()
    for chunk in chunks:
        made.add(0.0, *(chunk if isinstance(chunk, tuple) else (1, chunk)))
    return made.lines()


def test_lines_of_two_streams_are_not_mixed() -> None:
    assert tail((1, b"out "), (2, b"err "), (1, b"put\nmore"), (2, b"or\n")) == ["out put", "err or", "more"]


def test_a_stream_that_says_much_hides_nothing_of_the_other() -> None:
    made = Tail(2)
    made.add(0.0, 2, b"Traceback\nRuntimeError\n")
    for number in range(1000):
        made.add(1.0, 1, b"step %d\n" % number)
    assert made.lines() == ["Traceback", "RuntimeError", *(f"step {n}" for n in range(1000 - LINES // 2, 1000))]


def test_a_progress_bar_is_what_it_shows_last() -> None:
    assert tail(b" 10%\r 20%\r 30%\r", b"\nwindows\r\n") == [" 30%", "windows"]


def test_what_is_no_utf8_is_replaced_and_long_lines_are_cut() -> None:
    assert tail(b"\xff\xc3\n" + "é".encode() * 2000 + b"\n") == ["��", "é" * LENGTH]


def test_so_many_lines_and_bytes_are_kept() -> None:
    assert tail(*(b"%d\n" % n for n in range(1000))) == [str(n) for n in range(1000 - LINES, 1000)]
    wide = [f"{n:0500}" for n in range(100)]
    kept = tail(*(line.encode() + b"\n" for line in wide))
    assert kept == wide[-len(kept) :]
    assert SIZE - 600 < sum(map(len, kept)) <= SIZE
    assert tail(b"x" * (1 << 20) + b"\nlast") == ["x" * LENGTH, "last"]


@pytest.mark.parametrize("content", [b"\0", b"\xff", b"\\", b'"', b"\n", b"\r", "💥".encode()])
def test_an_answer_is_never_too_long_for_pid_1(content: bytes) -> None:
    made = Tail()
    for _ in range(100):
        made.add(0.0, 1, content * 300 + b"\n" + content * 500)
    assert len(json.dumps({"event": "tail", "lines": made.lines()})) < LINE_LIMIT / 2


# --- trouble with the log ---------------------------------------------------------------------------------------------


def test_a_dead_disk_holds_nobody_up_and_what_is_missing_is_counted(tmp_path: Path) -> None:
    """Opening a FIFO that nobody reads takes for ever."""
    os.mkfifo(tmp_path / "output.log")
    end, target = os.pipe2(os.O_CLOEXEC)
    reader, data = Reader(end), os.urandom(4 * LIMIT).replace(b"\n", b"x")
    with passing(tmp_path, target) as helper:
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


def test_it_ends_though_the_disk_is_dead(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "output.log")
    with passing(tmp_path, null()) as helper:
        helper.write(b"x")
        helper.end()
        assert helper.wait() == 0


def test_a_log_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "output.log").symlink_to("/dev/full")
    end, target = os.pipe2(os.O_CLOEXEC)
    reader = Reader(end)
    with passing(tmp_path, target) as helper:
        helper.write(b"one\n")
        assert "cannot be written" in helper.hear("problem")["what"]
        helper.write(b"two\n")
        assert helper.tail() == ["one", "two"]
        helper.end()
        assert helper.wait() == 0
        assert len(helper.said) == 2
    assert reader.all() == b"one\ntwo\n"


# --- trouble with where it goes ---------------------------------------------------------------------------------------


def test_where_nobody_reads_any_more_the_command_feels_it(tmp_path: Path) -> None:
    """At its next write, even if the reader left while nothing was written."""
    end, target = os.pipe2(os.O_CLOEXEC)
    with passing(tmp_path, target, null()) as helper:
        helper.write(b"seen")
        assert os.read(end, 100) == b"seen"
        os.close(end)
        assert helper.hear("broken")["stream"] == 1
        helper.let_go(1)
        with pytest.raises(BrokenPipeError):
            os.write(helper.ends[1], b"x")
        helper.write(b"still here\n", 2)
        assert helper.tail() == ["still here", "seen"]


def test_a_fifo_may_get_another_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    end = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with passing(tmp_path, os.open(tmp_path / "fifo", os.O_WRONLY)) as helper:
        assert helper.tail() == []
        os.close(end)
        assert helper.tail() == []
        reader = Reader(os.open(tmp_path / "fifo", os.O_RDONLY))
        helper.write(b"hello again")
        helper.end()
        assert helper.wait() == 0
        assert reader.all() == b"hello again"
        assert [line["event"] for line in helper.said] == ["tail", "tail"]


@pytest.mark.parametrize("kind", ["pipe", "fifo", "socket"])
def test_what_nobody_took_is_no_endless_wait(tmp_path: Path, kind: str) -> None:
    """Blocked in a write when the reader leaves."""
    if kind == "socket":
        target, end = (one.detach() for one in socket.socketpair())
    elif kind == "fifo":
        os.mkfifo(tmp_path / "fifo")
        end = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        target = os.open(tmp_path / "fifo", os.O_WRONLY)
    else:
        end, target = os.pipe2(os.O_CLOEXEC)
    filled(target)
    with passing(tmp_path, target) as helper:
        helper.write(b"x" * PIPEFUL)
        assert len(helper.tail()) == 1
        os.close(end)
        assert helper.hear("broken")["stream"] == 1
        helper.let_go(1)
        with pytest.raises(BrokenPipeError):
            os.write(helper.ends[1], b"x")


def test_a_slow_reader_slows_the_command_and_gets_everything(tmp_path: Path) -> None:
    end, target = os.pipe2(os.O_CLOEXEC)
    data = os.urandom(1 << 20)
    with passing(tmp_path, target) as helper:
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


def test_a_target_that_does_not_block_is_waited_for(tmp_path: Path) -> None:
    end, target = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(target, False)
    data = os.urandom(1 << 20)
    with passing(tmp_path, target) as helper:
        helper.write(data[:PIPEFUL])
        helper.write(data[PIPEFUL : 2 * PIPEFUL])
        reader = Reader(end)
        helper.write(data[2 * PIPEFUL :])
        helper.end()
        assert helper.wait() == 0
    assert reader.all() == data


def test_a_full_disk_does_not_end_the_command(tmp_path: Path) -> None:
    """It would have seen ENOSPC, which a pipe cannot say; the log has it all."""
    with passing(tmp_path, os.open("/dev/full", os.O_WRONLY)) as helper:
        helper.write(b"one\n")
        assert helper.hear("problem")["what"] == "output is lost: No space left on device"
        helper.write(b"two\n")
        assert helper.tail() == ["one", "two"]
        helper.end()
        assert helper.wait() == 0
    assert (tmp_path / "output.log").read_bytes() == b"one\ntwo\n"


# --- ends -------------------------------------------------------------------------------------------------------------


def test_it_outlives_pid_1_until_nobody_can_write(tmp_path: Path) -> None:
    end, target = os.pipe2(os.O_CLOEXEC)
    reader = Reader(end)
    with passing(tmp_path, target) as helper:
        helper.write(b"before ")
        assert helper.tail() == ["before "]
        helper.hang_up()
        helper.write(b"after")
        wait_for(lambda: reader.seen == b"before after", "what an orphan writes")
        helper.end()
        assert helper.wait() == 0
    assert reader.all() == b"before after"


def test_signals_that_are_sent_to_all_do_not_end_it(tmp_path: Path) -> None:
    with passing(tmp_path, null()) as helper:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGTSTP, signal.SIGXCPU):
            os.kill(helper.pid, number)
        helper.write(b"here\n")
        assert helper.tail() == ["here"]
