"""The activity of a real process tree: what counts as work, while processes start and end."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.helpers.sampler.counters import NOTHING, Count, activity, counts
from ftrun.host import procfs
from support.helper_process import HelperProcess
from support.runs import state_of, wait_for

WORK = 1 << 22  # bytes that a busy process reads at once
# A command that evaluates each line of its stdin, and prints the result.
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


class Activity:
    """Seconds of CPU and bytes since the last call."""

    def __init__(self, command: Command) -> None:
        self._command, self._before = command, counts(command.tree())

    def __call__(self) -> tuple[float, int]:
        before, self._before = self._before, counts(self._command.tree())
        return activity(before, self._before)


def test_work_is_measured_and_an_idle_tree_has_none(command: Command) -> None:
    since = Activity(command)
    command.do(f"read({WORK})")
    assert WORK <= since()[1] < 2 * WORK
    command.do("burn(0.3)")
    cpu, io = since()
    assert 0.25 < cpu < 0.6
    assert io < 16_384
    assert since() == (0.0, 0)


def test_earlier_work_of_a_child_does_not_count_when_it_ends(command: Command) -> None:
    pid = command.do(f"child(lambda: read({WORK}), lambda: burn(0.3), lambda: time.sleep(3600))")
    wait_for(lambda: state_of(int(pid)) == "S" and Activity(command)()[0] == 0.0, "it did its work")
    since = Activity(command)
    command.do(f"os.kill({pid}, 9)")
    wait_for(lambda: state_of(int(pid)) == "Z", "its end")
    assert since()[1] < 16_384, "a zombie"
    command.do(f"os.waitpid({pid}, 0)")
    cpu, io = since()
    assert io < 16_384, "and when it is waited for"
    assert cpu < 0.15


def test_ended_child_does_not_hide_the_work_of_others(command: Command) -> None:
    pid = command.do(f"child(lambda: read({4 * WORK}), lambda: time.sleep(3600))")
    other = command.do(f"child(lambda: time.sleep(1), lambda: read({WORK}), lambda: time.sleep(3600))")
    wait_for(lambda: io_of(int(pid)) >= 4 * WORK, "it did its work")
    command.do("__import__('signal').signal(17, 1)")  # SIGCHLD is ignored: nobody inherits
    since = Activity(command)
    command.do(f"os.kill({pid}, 9)")
    wait_for(lambda: not state_of(int(pid)) and io_of(int(other)) >= WORK, "its end, and the work of the other")
    assert since()[1] >= WORK / 2


def io_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines[:2])


def test_work_of_children_that_end_within_a_period_is_measured(command: Command) -> None:
    """As of a shell loop, all of whose work is done by processes that no sample contains."""
    since = Activity(command)
    command.do(f"[os.waitpid(child(lambda: read({WORK}), lambda: burn(0.1)), 0) for _ in range(3)]")
    cpu, io = since()
    assert cpu >= 0.25
    assert io >= 3 * WORK
    command.do("subprocess.run(['true'])")  # a watchdog that runs a tool
    cpu, io = since()
    assert cpu < 0.05 * 60
    assert io < 16_384 * 60
    assert since() == (0.0, 0)


def test_work_of_a_grandchild_counts_once(command: Command) -> None:
    since = Activity(command)
    command.do(f"os.waitpid(child(lambda: os.waitpid(child(lambda: read({WORK})), 0)), 0)")
    assert WORK <= since()[1] < 2 * WORK


def test_polling_stays_far_below_work(command: Command) -> None:
    command.do(
        "child(lambda: [(os.write(os.open('/dev/null', 1), b'still waiting'), time.sleep(0.02)) for _ in range(9999)])"
    )
    since, began = Activity(command), time.monotonic()
    wait_for(lambda: time.monotonic() > began + 1.0, "a second")
    cpu, io = since()
    assert 0 < io < 16_384
    assert cpu < 0.05


def test_threads_count_by_what_they_read_and_not_by_their_cpu(command: Command) -> None:
    """Pollers and watchdogs burn; a data loader's thread reads.  Those that ended count as well."""
    command.do("[threading.Thread(target=time.sleep, args=(3600,), daemon=True).start() for _ in range(200)]")
    since = Activity(command)
    code = f"lambda: (burn(0.3), read({WORK}))"
    command.do(f"[(t.start(), t.join()) for t in [threading.Thread(target={code}) for _ in range(2)]]")
    cpu, io = since()
    assert cpu < 0.15, "not the main thread"
    assert io >= 2 * WORK


def test_process_without_permission_to_read_its_io_counts_by_its_cpu() -> None:
    """Nothing is known of its I/O, nor of what its parent inherits."""
    hidden = Count(1.0, 1.0, 0.0, None, 0)
    parent = Count(0.0, 0.0, 0.0, 100, 0)
    before, after = {(1, 1): parent, (2, 2): hidden}, {(1, 1): parent, (2, 2): hidden._replace(main=3.0, all=9.0)}
    assert activity(before, after) == (2.0, 0)
    assert activity(before, {(1, 1): parent}) == (0.0, 0)
    assert activity({}, {(3, 3): NOTHING._replace(io=None)}) == (0.0, 0)


# --- the program ----------------------------------------------------------------------------------------------------


class Sampler(HelperProcess):
    def __init__(self, period: float = 0.1) -> None:
        super().__init__("sampler", str(period))

    def tree(self, root: int, *spared: int) -> None:
        self.ask(ask="sampled_tree", root=root, spared=spared)


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    with Sampler() as sampler:
        yield sampler
        assert sampler.end() == 0


def test_samples_are_rates_of_the_tree_without_the_spared_processes(sampler: Sampler, command: Command) -> None:
    sampler.tree(command.process.pid)
    first = sampler.event("sample")
    assert (first["root"], first["processes"], first["cpu"], first["io"]) == (command.process.pid, 1, 0.0, 0.0)
    assert first["seconds"] >= 0.1
    pid = int(command.do(f"child(lambda: [(read({WORK}), time.sleep(0.01)) for _ in range(9999)])"))
    sampler.event("sample", lambda sample: sample["processes"] == 2 and sample["io"] > WORK)
    sampler.tree(command.process.pid, pid)
    sampler.event("sample", lambda sample: sample["processes"] == 1)


def test_new_root_starts_a_new_period(sampler: Sampler, command: Command) -> None:
    sampler.tree(command.process.pid)
    sampler.event("sample")
    other = Command()
    other.do(f"read({8 * WORK})")
    sampler.tree(other.process.pid)
    first = sampler.event("sample", lambda sample: sample["root"] == other.process.pid)
    assert first["io"] < 16_384, "earlier work is not of this period"
    other.end()
    last = sampler.event("sample", lambda sample: sample["processes"] == 0)
    assert (last["cpu"], last["io"]) == (0.0, 0.0)


def test_root_that_is_named_more_often_than_once_a_period_is_sampled(sampler: Sampler, command: Command) -> None:
    """Each helper that is started is named to the sampler, and one may be restarted again and again."""
    named = 0

    def sampled() -> bool:
        nonlocal named
        sampler.tree(command.process.pid, named := named + 1)
        sampler.read(0.02)
        return any(line["event"] == "sample" for line in sampler.lines)

    wait_for(sampled, "a sample")


def test_new_tree_is_confirmed_at_once(command: Command) -> None:
    """Where no attempt is as long as a period, the sampler is not silent: PID 1 would regard it as stuck."""
    with Sampler(3600) as sampler:
        for root in (command.process.pid, os.getpid()):
            sampler.tree(root)
            assert sampler.event("begun")["root"] == root
