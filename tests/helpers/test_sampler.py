"""What the sampler makes of a real tree: what is work, what is not, whoever comes and goes."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.sampler.counters import NOTHING, Count, counts, done
from ftrun.host import procfs
from support.runs import HOUSE, permitted, state_of, wait_for

WORK = 1 << 22  # bytes that a busy one reads at once
DEADLINE = 60.0
Sample = dict[str, Any]
# A command that does what is written to it, a line at a time, and answers each with a line.
COMMAND = """
import os, subprocess, sys, threading, time
zeros, children = open("/dev/zero", "rb", buffering=0), []
def read(number): return sum(len(zeros.read(1 << 20)) for _ in range(number >> 20))
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
def child(*steps):
    pid = os.fork()
    if pid == 0:
        for step in steps: step()
        os._exit(0)
    children.append(pid)
    return pid
def end():
    for pid in children:
        try: os.kill(pid, 9)
        except OSError: pass
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class Command:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def do(self, code: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{code}\n")
        return self.process.stdout.readline().strip()

    def tree(self) -> list[procfs.Stat]:
        everyone = {s.pid: s for s in procfs.all_processes()}
        found = [everyone[self.process.pid]]
        for process in found:
            found += [s for s in everyone.values() if s.parent == process.pid]
        return found

    def end(self) -> None:
        self.do("end()")
        self.process.communicate()


@pytest.fixture
def command() -> Iterator[Command]:
    made = Command()
    made.do("0")
    yield made
    made.end()


class Twice:
    """What was done from one look to the next."""

    def __init__(self, command: Command) -> None:
        self._command, self._before = command, counts(command.tree())

    def __call__(self) -> tuple[float, int]:
        after = counts(self._command.tree())
        work, self._before = done(self._before, after), after
        return work.cpu, work.io


def test_work_is_seen_and_quiet_is_quiet(command: Command) -> None:
    look = Twice(command)
    command.do(f"read({WORK})")
    assert WORK <= look()[1] < 2 * WORK
    command.do("burn(0.3)")
    cpu, io = look()
    assert 0.25 < cpu < 0.6
    assert io < 16_384
    assert look() == (0.0, 0)


def test_what_a_child_did_long_ago_is_no_work_when_it_dies(command: Command) -> None:
    pid = command.do(f"child(lambda: read({WORK}), lambda: burn(0.3), lambda: time.sleep(3600))")
    wait_for(lambda: state_of(int(pid)) == "S" and Twice(command)()[0] == 0.0, "it did its work")
    look = Twice(command)
    command.do(f"os.kill({pid}, 9)")
    wait_for(lambda: state_of(int(pid)) == "Z", "its end")
    assert look()[1] < 16_384, "a zombie"
    command.do(f"os.waitpid({pid}, 0)")
    cpu, io = look()
    assert io < 16_384, "and when it is waited for"
    assert cpu < 0.05


def test_a_dead_child_does_not_hide_the_work_of_others(command: Command) -> None:
    pid = command.do(f"child(lambda: read({4 * WORK}), lambda: time.sleep(3600))")
    other = command.do(f"child(lambda: time.sleep(1), lambda: read({WORK}), lambda: time.sleep(3600))")
    wait_for(lambda: io_of(int(pid)) >= 4 * WORK, "it did its work")
    command.do("__import__('signal').signal(17, 1)")  # SIGCHLD is ignored: nobody inherits
    look = Twice(command)
    command.do(f"os.kill({pid}, 9)")
    wait_for(lambda: not state_of(int(pid)) and io_of(int(other)) >= WORK, "its end, and the work of the other")
    assert look()[1] >= WORK / 2


def io_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines[:2])


def test_children_that_live_less_than_a_period_are_seen(command: Command) -> None:
    """A shell loop: all its work is done by processes that no look ever meets."""
    look = Twice(command)
    command.do(f"[os.waitpid(child(lambda: read({WORK}), lambda: burn(0.1)), 0) for _ in range(3)]")
    cpu, io = look()
    assert cpu >= 0.25
    assert io >= 3 * WORK
    command.do("subprocess.run(['true'])")  # a watchdog that runs a tool
    cpu, io = look()
    assert cpu < 0.05 * 60
    assert io < 16_384 * 60
    assert look() == (0.0, 0)


def test_what_a_grandchild_did_is_counted_once(command: Command) -> None:
    look = Twice(command)
    command.do(f"os.waitpid(child(lambda: os.waitpid(child(lambda: read({WORK})), 0)), 0)")
    assert WORK <= look()[1] < 2 * WORK


def test_keep_alive_noise_stays_far_below_work(command: Command) -> None:
    command.do(
        "child(lambda: [(os.write(os.open('/dev/null', 1), b'still waiting'), time.sleep(0.02)) for _ in range(9999)])"
    )
    look, began = Twice(command), time.monotonic()
    wait_for(lambda: time.monotonic() > began + 1.0, "a second")
    cpu, io = look()
    assert 0 < io < 16_384
    assert cpu < 0.05


def test_threads_are_counted_by_what_they_read_and_not_by_their_cpu(command: Command) -> None:
    """Pollers and watchdogs burn; a data loader's thread reads.  Those that ended count as well."""
    command.do("[threading.Thread(target=time.sleep, args=(3600,), daemon=True).start() for _ in range(200)]")
    look = Twice(command)
    code = f"lambda: (burn(0.3), read({WORK}))"
    command.do(f"[(t.start(), t.join()) for t in [threading.Thread(target={code}) for _ in range(2)]]")
    cpu, io = look()
    assert cpu < 0.15, "not the main thread"
    assert io >= 2 * WORK


def test_a_process_that_we_may_not_read_is_no_trouble() -> None:
    """Its io is not for us: nothing is known of that, nor of what its parent inherits from it."""
    hidden = Count(1.0, 1.0, 0.0, None, 0)
    parent = Count(0.0, 0.0, 0.0, 100, 0)
    before, after = {(1, 1): parent, (2, 2): hidden}, {(1, 1): parent, (2, 2): hidden._replace(main=3.0, all=9.0)}
    assert done(before, after) == (2.0, 0, 2)
    assert done(before, {(1, 1): parent}) == (0.0, 0, 1)
    assert done({}, {(3, 3): NOTHING._replace(io=None)}).io == 0


def test_a_stranger_is_counted_by_his_cpu(command: Command) -> None:
    if os.getuid() != 0 or not permitted("setpriv", "--reuid", "65534", "--clear-groups", "true"):
        pytest.skip("needs root")
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    code = f"import sys; sys.path.insert(0, {str(HOUSE / 'supervisor')!r})\n"
    code += "from ftrun.host import procfs\nfrom ftrun.helpers.sampler.counters import counts\n"
    code += f"print(*counts([procfs.stat({command.process.pid})]).values())"
    told = subprocess.run([*words, sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert "io=None" in told.stdout, told.stderr


# --- the program ----------------------------------------------------------------------------------------------------


class Sampler:
    def __init__(self, period: float) -> None:
        environment = os.environ | {"PYTHONPATH": f"{HOUSE}/supervisor"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftrun.helpers.sampler", str(period)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
        )
        self._rest = b""

    def tell(self, line: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")

    def tree(self, root: int, *spared: int) -> None:
        self.tell({"ask": "tree", "root": root, "spared": spared})

    def until(self, condition: Callable[[Sample], object], event: str = "sample") -> Sample:
        until = time.monotonic() + DEADLINE
        assert self.process.stdout is not None
        while True:
            *lines, self._rest = self._rest.split(b"\n")
            for number, line in enumerate(lines):
                if (sample := json.loads(line))["event"] == event and condition(sample):
                    self._rest = b"\n".join([*lines[number + 1 :], self._rest])
                    return dict(sample)
            assert select.select([self.process.stdout], [], [], until - time.monotonic())[0], "no such sample"
            content = os.read(self.process.stdout.fileno(), 65536)
            assert content, "it ended"
            self._rest += content

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(DEADLINE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    made = Sampler(0.1)
    yield made
    assert made.end() == 0


def test_samples_are_rates_of_the_tree_that_was_named(sampler: Sampler, command: Command) -> None:
    sampler.tree(command.process.pid)
    quiet = sampler.until(lambda s: True)
    assert (quiet["root"], quiet["processes"], quiet["cpu"], quiet["io"]) == (command.process.pid, 1, 0.0, 0.0)
    assert quiet["seconds"] >= 0.1
    command.do(f"child(lambda: [(read({WORK}), time.sleep(0.01)) for _ in range(9999)])")
    sampler.until(lambda s: s["processes"] == 2 and s["io"] > WORK)


def test_a_new_root_begins_anew(sampler: Sampler, command: Command) -> None:
    sampler.tree(command.process.pid)
    sampler.until(lambda s: True)
    other = Command()
    other.do(f"read({8 * WORK})")
    sampler.tree(other.process.pid)
    first = sampler.until(lambda s: s["root"] == other.process.pid)
    assert first["io"] < 16_384, "what it did before is not of this period"
    other.end()
    gone = sampler.until(lambda s: s["processes"] == 0)
    assert (gone["cpu"], gone["io"]) == (0.0, 0.0)


def test_the_same_root_named_again_and_again_is_sampled_all_the_same(sampler: Sampler, command: Command) -> None:
    """Each helper that is started is told to it, and one may come again more often than a period is long."""
    until, named = time.monotonic() + DEADLINE, 0
    assert sampler.process.stdout is not None
    while not select.select([sampler.process.stdout], [], [], 0.02)[0]:
        sampler.tree(command.process.pid, named := named + 1)
        assert time.monotonic() < until, "no sample"
    assert sampler.until(lambda s: True)["root"] == command.process.pid


def test_a_new_tree_is_answered_at_once(command: Command) -> None:
    """Where no attempt is as long as a period it is not silent: PID 1 would take it for stuck."""
    slow = Sampler(2 * DEADLINE)
    for root in (command.process.pid, os.getpid()):
        slow.tree(root)
        assert slow.until(lambda s: True, "begun")["root"] == root
    assert slow.end() == 0


def test_garbage_is_passed_over(sampler: Sampler, command: Command) -> None:
    for line in (b"", b"{", b"[]", b"\xff\xfe", b'{"root": "x", "spared": []}', b'{"root": 5}', b"[" * 2000):
        sampler.tell(line)
    sampler.tree(command.process.pid)
    assert sampler.until(lambda s: True)["root"] == command.process.pid


def test_the_spared_are_no_part_of_it(sampler: Sampler, command: Command) -> None:
    pid = int(command.do(f"child(lambda: [(read({WORK}), time.sleep(0.01)) for _ in range(9999)])"))
    sampler.tree(command.process.pid, pid)
    assert sampler.until(lambda s: True)["processes"] == 1
    sampler.tree(command.process.pid)
    sampler.until(lambda s: s["processes"] == 2)


def test_it_sleeps_while_nothing_is_named(sampler: Sampler) -> None:
    def switches() -> int:
        text = Path(f"/proc/{sampler.process.pid}/status").read_text()
        return int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])

    slept: list[int] = []

    def sleeps() -> bool:
        slept.append(switches())
        return len(slept) > 50 and len(set(slept[-50:])) == 1

    wait_for(sleeps, "it sleeps on")
