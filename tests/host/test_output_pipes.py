"""Captured output from end to end: a real command, real pipes, the real helper, and PID 1's part of it."""

import array
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftrun.host import output_pipes
from support.runs import MOUNTS, alive, end_process, need_mounts, wait_for

CAPTURING = (sys.executable, str(Path(__file__).resolve().parents[1] / "support" / "capturing.py"))
PIPEFUL = 65536
# With an argument it pauses after each MiB until the file of that name exists.
COUNT = """
import array, os, sys, time
for first in range(0, {size}, 1 << 16):
    if sys.argv[1:] and first % (1 << 20) == 0 and not os.path.exists(sys.argv[1]): time.sleep(0.1)
    left = array.array("Q", range(first, first + (1 << 16), 8)).tobytes()
    while left: left = left[os.write(1, left):]
"""
SAME = """
import sys
for n in range(20000):
    stream = (sys.stdout, sys.stderr)[n % 2]
    stream.write(f"{n}\\n")
    stream.flush()
"""
MODES = """
import fcntl, json, os, sys
def mode(n):
    try: return fcntl.fcntl(n, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError: return "closed"
open(sys.argv[1], "w").write(json.dumps([mode(n) for n in range(3)]))
"""


OURS = b"[ftrun] a line of ours\n"


def counted(size: int) -> bytes:
    """What COUNT writes."""
    return array.array("Q", range(0, size, 8)).tobytes()


class Captured:
    """A command whose output is captured, with its helper."""

    def __init__(self, folder: Path, words: Sequence[str], attempts: int, **more: Any) -> None:
        self.folder = folder
        prefix = more.pop("prefix", ())
        self.process = subprocess.Popen([*prefix, *CAPTURING, str(folder), str(attempts), *words], **more)

    def wait(self) -> int:
        return self.process.wait(90)

    @property
    def helper(self) -> int:
        def pid() -> int:
            try:
                return int((self.folder / "pid").read_text() or 0)
            except FileNotFoundError:
                return 0

        return int(wait_for(pid, "the helper"))

    def named(self, event: str) -> list[dict[str, Any]]:
        """The messages of that name that PID 1 received."""
        messages = [json.loads(line) for line in (self.folder / "messages").read_text().splitlines()]
        return [message for message in messages if message["event"] == event]

    @property
    def log(self) -> bytes:
        return (self.folder / "output.log").read_bytes()


Start = Callable[..., Captured]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Nothing is left behind."""
    made = []

    def start(*words: str, attempts: int = 1, **more: Any) -> Captured:
        made.append(Captured(tmp_path, words, attempts, **more))
        return made[-1]

    yield start
    for run in made:
        run.process.kill()
        run.process.wait()
        assert (tmp_path / "log").read_text() == ""
        if (tmp_path / "pid").exists():
            wait_for(lambda: not alive(run.helper), "the end of the helper")  # noqa: B023


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def until_end(fd: int) -> bytes:
    """The complete content of a pipe whose other end another process has."""
    found = bytearray()
    while content := os.read(fd, 1 << 20):
        found += content
    os.close(fd)
    return bytes(found)


# --- the content ------------------------------------------------------------------------------------------------------


def test_both_streams_are_passed_on_completely(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(32 << 20))
    files = [tmp_path / "out", tmp_path / "err"]
    readers = [subprocess.Popen(["sh", "-c", f"cat > {path}"], stdin=subprocess.PIPE) for path in files]
    run = start("sh", "-c", f"cat {data} & cat {data} >&2; wait", stdout=readers[0].stdin, stderr=readers[1].stdin)
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.close()
    assert [reader.wait(90) for reader in readers] == [0, 0]
    assert run.wait() == 0
    assert [subprocess.run(["cmp", data, path], check=False).returncode for path in files] == [0, 0]
    assert run.named("finished") == [{"event": "finished", "well": True}]


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_two_streams_that_are_one_file_keep_their_order(start: Start, tmp_path: Path, kind: str) -> None:
    end, target = os.pipe() if kind == "pipe" else (-1, os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT))
    run = start(*python(SAME), stdout=target, stderr=target)
    os.close(target)
    seen = until_end(end) if kind == "pipe" else b""
    assert run.wait() == 0
    seen = seen or (tmp_path / "out").read_bytes()
    assert seen == run.log == b"".join(b"%d\n" % n for n in range(20000))


def test_output_of_other_processes_is_not_overwritten(start: Start, tmp_path: Path) -> None:
    """ftrun's own lines go through the same open file."""
    target = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    run = start(*python(COUNT.format(size=4 << 20)), stdout=target)
    written = 0
    while run.process.poll() is None:
        written += os.write(target, OURS)
    os.close(target)
    seen = (tmp_path / "out").read_bytes()
    assert len(seen) == written + (4 << 20)
    assert seen.count(OURS) == written // len(OURS)
    assert seen.replace(OURS, b"") == counted(4 << 20)


def test_output_of_a_command_that_ends_before_the_helper_runs_is_kept(start: Start) -> None:
    end, target = os.pipe()
    run = start("sh", "-c", "echo usage: it; exit 2", stdout=target)
    os.close(target)
    assert until_end(end) == b"usage: it\n"
    assert run.wait() == 2
    assert run.named("last_lines")[0]["lines"] == ["usage: it"]


# --- the streams ------------------------------------------------------------------------------------------------------


def test_the_command_has_its_streams_and_no_other_descriptor(start: Start) -> None:
    code = "import os; print(sorted(os.listdir('/proc/self/fd'))[:-1], os.get_blocking(1)); os.set_blocking(1, False)"
    end, target = os.pipe()
    run = start(*python(code), attempts=2, stdout=target, stdin=subprocess.DEVNULL)
    os.close(target)
    assert until_end(end) == b"['0', '1', '2'] True\n" * 2
    assert run.wait() == 0


def test_a_terminal_is_not_captured(start: Start) -> None:
    master, slave = pty.openpty()
    end, target = os.pipe()
    run = start(
        *python("import os; print([os.isatty(n) for n in (0, 1, 2)])"), stdin=slave, stdout=target, stderr=slave
    )
    os.close(target)
    assert until_end(end) == b"[True, False, True]\n"
    assert run.wait() == 0
    os.close(slave)
    os.close(master)


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&-", "</dev/null 1</dev/null"])
def test_a_stream_that_is_closed_stays_closed(start: Start, tmp_path: Path, closed: str) -> None:
    """And a file that ftrun opens under its number is not captured."""
    shell, null, modes = ["sh", "-c", f'exec "$@" {closed}', "sh"], subprocess.DEVNULL, tmp_path / "modes"
    words = python(MODES, str(modes))
    subprocess.run([*shell, *words], check=True, stdin=null, stdout=null, stderr=null)
    bare = json.loads(modes.read_text())
    run = start(*words, prefix=shell, stdin=null, stdout=null, stderr=null)
    assert run.wait() == 0
    assert json.loads(modes.read_text()) == bare


# --- the helper is killed ---------------------------------------------------------------------------------------------


def kill_again_and_again(run: Captured, out: Path) -> None:
    """Whenever it has passed on more, at an arbitrary moment."""
    killed = before = 0
    while run.process.poll() is None and killed < 5:
        time.sleep(0.001)
        if out.stat().st_size > before:
            pid = run.helper
            end_process(pid)  # it may have ended by now
            killed += 1
            wait_for(lambda: run.process.poll() is not None or run.helper != pid, "another one")  # noqa: B023
            before = out.stat().st_size
    (run.folder / "enough").touch()
    assert killed == 5


def test_a_killed_helper_loses_and_duplicates_nothing_of_a_pipe(start: Start, tmp_path: Path) -> None:
    size = 32 << 20
    out = tmp_path / "out"
    out.touch()
    reader = subprocess.Popen(["sh", "-c", f"cat > {out}"], stdin=subprocess.PIPE)
    run = start(*python(COUNT.format(size=size), str(tmp_path / "enough")), stdout=reader.stdin)
    assert reader.stdin is not None
    reader.stdin.close()
    kill_again_and_again(run, tmp_path / "out")
    assert run.wait() == 0
    assert reader.wait(90) == 0
    assert out.read_bytes() == counted(size)


def test_a_killed_helper_loses_nothing_of_a_file(start: Start, tmp_path: Path) -> None:
    """At most the content of a pipe is duplicated."""
    size = 32 << 20
    with (tmp_path / "out").open("ab") as out:
        run = start(*python(COUNT.format(size=size), str(tmp_path / "enough")), stdout=out)
    kill_again_and_again(run, tmp_path / "out")
    assert run.wait() == 0
    seen, data = (tmp_path / "out").read_bytes(), counted(size)
    at = to = 0
    while to < size:  # up to where a helper was killed, then from where the next one continued
        piece = seen[at : at + PIPEFUL]  # the last one may be shorter
        if piece and piece == data[to : to + PIPEFUL]:
            at, to = at + len(piece), to + len(piece)
            continue
        while seen[at : at + 1] == data[to : to + 1]:
            at, to = at + 1, to + 1
        again = data.index(seen[at : at + 16], max(0, to - PIPEFUL), to + 16)
        assert to - PIPEFUL <= again < to
        to = again
    assert at == len(seen)


def test_output_arrives_even_if_pid_1_is_killed(start: Start, tmp_path: Path) -> None:
    end, target = os.pipe()
    run = start(
        *python(f"import os, time; os.write(1, b'x' * 1000); open('{tmp_path}/go', 'w'); time.sleep(3600)"),
        stdout=target,
    )
    os.close(target)
    helper = run.helper
    os.kill(helper, signal.SIGSTOP)
    wait_for((tmp_path / "go").exists, "it is written")
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    os.kill(helper, signal.SIGCONT)
    assert until_end(end) == b"x" * 1000
    wait_for(lambda: not alive(helper), "its end")


# --- readers ----------------------------------------------------------------------------------------------------------


def test_a_late_reader_gets_the_output_after_the_end_of_ftrun(start: Start) -> None:
    end, target = os.pipe()
    run = start(
        *python(f"import os; os.write(1, b'x' * {PIPEFUL}); os.write(1, b'y' * 1000)"),
        stdout=target,
        env=os.environ | {"CAPTURING_EXIT_HOOKS": "0.3"},
    )
    os.close(target)
    assert run.wait() == 0
    assert run.named("finished")[0]["well"] is False
    assert until_end(end) == b"x" * PIPEFUL + b"y" * 1000


# --- disks ------------------------------------------------------------------------------------------------------------


def test_with_a_full_disk_only_the_log_is_incomplete(start: Start, tmp_path: Path) -> None:
    """When there is room again the log continues, with the number of bytes that are missing."""
    need_mounts()
    disk, log, kept = tmp_path / "disk", tmp_path / "output.log", tmp_path / "kept"
    disk.mkdir()
    log.touch()
    mount = f'mount -t tmpfs -o size=64k none {disk}; touch {disk}/file; mount --bind {disk}/file {log}; exec "$@"'
    code = f"""{COUNT.format(size=8 << 20)}
import time
while os.stat("{log}").st_size < 1 << 16: time.sleep(0.01)
seen = b""
while b"the end" not in seen:
    os.truncate("{log}", 0)
    os.write(1, b"the end\\n")
    time.sleep(0.1)
    seen = open("{log}", "rb").read()
open("{kept}", "wb").write(seen)
"""
    end, target = os.pipe()
    run = start(*python(code), prefix=(*MOUNTS, "sh", "-ec", mount, "sh"), stdout=target)
    os.close(target)
    seen = until_end(end)
    assert run.wait() == 0
    assert seen.rstrip(b"the end\n") == counted(8 << 20).rstrip(b"the end\n")
    assert b" bytes are missing here: " in kept.read_bytes()
    (problem,) = run.named("problem")
    assert "output.log cannot be written (No space left on device)" in problem["what"]


def test_all_descriptors_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    captured = output_pipes.OutputPipes(output_pipes.RankOutput(ranks=3, kept=True))
    captured.close_writers()
    captured.close_readers()
    assert captured.streams(1) == {}
    assert list(captured.descriptors) == []
    assert len(os.listdir("/proc/self/fd")) == before
    assert output_pipes.OutputPipes(output_pipes.RankOutput()).streams() == {}
