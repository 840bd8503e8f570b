"""`@ft.recoverable`, against a PID 1 that these tests play: rounds, and an interruption at any moment."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.beat_file import BeatDir
from support.runs import wait_for

VARIABLES = {"RANK": "0", "WORLD_SIZE": "1"}


class Rank:
    """A process that is local rank 0 of such a job, and its connection."""

    def __init__(self, beats: BeatDir, code: str, **env: str) -> None:
        self.beats = beats
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(beats.folder / "ranks.sock"))
            listener.listen(1)
            listener.settimeout(120)
            words = [sys.executable, "-c", f"import ftrun_hooks as ft\n{code}"]
            variables = beats.environment(LOCAL_RANK="0", **VARIABLES, **env)
            self.process = subprocess.Popen(
                words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self.connection, _ = listener.accept()
        self.connection.settimeout(120)

    def receive(self) -> dict[str, Any]:
        packet = self.connection.recv(4096)
        return json.loads(packet) if packet else {}

    def expect(self, kind: str) -> dict[str, Any]:
        message = self.receive()
        assert message.get("type") == kind, (message, self.process.poll())
        return message

    def fence(self, number: int) -> None:
        self.connection.send(json.dumps({"type": "fence_rank", "round": number, "why": "a test"}).encode())

    def go(self, number: int, step: int | None = None, reason: str = "retry") -> None:
        variables = {**VARIABLES, "WORLD_SIZE": "3", "MASTER_PORT": str(1000 + number), "FTRUN_ROUND": str(number)}
        restore = None if step is None else {"step": step, "source": 0, "shard": ""}
        order = {"type": "begin_round", "round": number, "variables": variables, "restore": restore, "reason": reason}
        self.connection.send(json.dumps(order).encode())

    def slot(self, name: str) -> int:
        return self.beats.slot()[name]

    def steps(self, number: int) -> None:
        """Wait until it has done so many steps more than before."""
        before = self.slot("step")
        wait_for(lambda: self.slot("step") >= before + number, "steps")

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.connection.close()


@pytest.fixture
def ranks(beats: BeatDir) -> Iterator[list[Rank]]:
    started: list[Rank] = []
    yield started
    for rank in started:
        rank.close()


LOOP = """
import os, sys, time
@ft.recoverable
def train(run):
    step = run.restore()
    print(run.round, run.reason, run.world_size, os.environ.get("MASTER_PORT"), step, os.getpid(), flush=True)
    while run.round < 4:
        try:
            step += 1
            with ft.section("step"):
                ft.beat(step)
            run.keep(step, state=b"x" * step)
        except Exception:
            pass
    return "returned"
print(train())
"""


def test_outside_of_such_a_job_the_function_runs_once(beats: BeatDir) -> None:
    code = """
@ft.recoverable
def train(run, value, *, more):
    "What it does."
    assert (run.round, run.rank, run.world_size, run.reason) == (1, 0, 1, "first")
    assert run.restore(model=object()) == 0
    assert run.restore(checkpoint=lambda: 7) == 7
    assert not run.keep(1, model=object())
    run.check()
    return value, more
assert train(1, more=2) == (1, 2)
assert train.__doc__ == "What it does."
@ft.recoverable
def fails(run):
    try:
        raise ft.Retry("for a reason")
    except Exception:
        pass
fails()
"""
    done = beats.run(code)
    assert done.returncode == 1
    assert "Retry: for a reason" in done.stderr
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize(("quiet", "lines"), [("", 1), ("1", 0)])
def test_a_rank_says_that_it_leaves_its_round_unless_ftrun_is_quiet(
    beats: BeatDir, ranks: list[Rank], quiet: str, lines: int
) -> None:
    code = "@ft.recoverable\ndef train(run):\n    if run.round == 1: raise ft.Retry('why')\ntrain()"
    ranks.append(rank := Rank(beats, code, FTRUN_QUIET=quiet))
    rank.expect("said_hello")
    rank.expect("asked_retry")
    rank.expect("left_round")
    rank.go(2)
    rank.expect("function_finished")
    ended, _, err = rank.finish()
    assert (ended, err.count("[ftrun] rank 0 leaves round 1")) == (0, lines), err


def test_a_rank_is_called_again_until_it_returns(beats: BeatDir, ranks: list[Rank]) -> None:
    ranks.append(rank := Rank(beats, LOOP))
    hello = rank.expect("said_hello")
    assert (hello["local_rank"], hello["held"]) == (0, [])
    for number in (1, 2, 3):
        rank.steps(4)
        rank.fence(number - 1)  # one of an earlier round changes nothing
        rank.fence(number)
        barrier = rank.expect("left_round")
        assert (barrier["round"], barrier["problem"]) == (number, None)
        steps = [one["step"] for one in barrier["held"]]
        assert len(steps) == 2
        assert steps[0] + 1 == steps[1]
        rank.fence(number)  # again: harmless
        rank.go(number + 1, steps[0], "rank" if number == 2 else "retry")
    assert rank.expect("function_finished")["round"] == 4
    code, out, err = rank.finish()
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[:4] for line in lines[:4]] == [
        ["1", "first", "1", "None"],
        ["2", "retry", "3", "1002"],
        ["3", "rank", "3", "1003"],
        ["4", "retry", "3", "1004"],
    ]
    assert {line[5] for line in lines[:4]} == {str(rank.process.pid)}
    assert lines[4] == ["returned"]


def test_no_moment_is_wrong_for_an_interruption(beats: BeatDir, ranks: list[Rank]) -> None:
    """Fifty rounds that end at once, in the first heartbeat too: all of the hooks works afterwards."""
    code = LOOP.replace("run.round < 4", "run.round < 51")
    ranks.append(rank := Rank(beats, code))
    rank.expect("said_hello")
    step: int | None = None
    for number in range(1, 51):
        if number % 3 == 0:
            rank.steps(number % 7)
        rank.fence(number)
        held = rank.expect("left_round")["held"]
        assert step is None or not held or held[-1]["step"] >= step, "a snapshot was lost"
        step = held[-1]["step"] if held else None
        rank.go(number + 1, step)
    rank.expect("function_finished")
    assert rank.finish()[0] == 0
    assert rank.slot("depth") == 0
    assert rank.slot("sequence") % 2 == 0


def test_the_first_heartbeat_is_not_lost_by_an_interruption(beats: BeatDir, ranks: list[Rank]) -> None:
    code = """
import ftrun_hooks._beat as slot, time
claim = slot.Slot._claim
def slow(self, rank):
    print("claiming", flush=True)
    time.sleep(1)  # the fence arrives here
    claim(self, rank)
slot.Slot._claim = slow
@ft.recoverable
def train(run):
    if run.round == 1:
        ft.beat(1)
        time.sleep(3600)
    ft.beat(2)
train()
"""
    ranks.append(rank := Rank(beats, code))
    rank.expect("said_hello")
    assert rank.process.stdout is not None
    assert rank.process.stdout.readline() == "claiming\n"
    rank.fence(1)
    rank.expect("left_round")
    rank.go(2)
    rank.expect("function_finished")
    assert rank.slot("step") == 3  # as the file stores it: one more


def test_what_raises_leaves_the_round_or_ends_the_process(beats: BeatDir, ranks: list[Rank]) -> None:
    code = """
@ft.recoverable
def train(run):
    if run.round == 1:
        try:
            raise ft.Retry("a passing fault")
        except Exception:
            pass
    if run.round == 2:
        raise BrokenPipeError("a peer is gone")
    raise ValueError("of the program")
train()
"""
    ranks.append(rank := Rank(beats, code))
    rank.expect("said_hello")
    assert rank.expect("asked_retry") == {
        "type": "asked_retry",
        "local_rank": 0,
        "round": 1,
        "why": "a passing fault",
    }
    rank.expect("left_round")
    rank.go(2)
    assert rank.expect("asked_retry")["collective"]
    rank.expect("left_round")
    rank.go(3)
    assert rank.receive() == {}
    code_, _, err = rank.finish()
    assert code_ == 1
    assert "ValueError: of the program" in err


def test_code_that_catches_everything_is_interrupted_again_but_no_cleanup_is(beats: BeatDir, ranks: list[Rank]) -> None:
    code = """
import time
@ft.recoverable
def train(run):
    if run.round > 1:
        return
    caught = 0
    try:
        while True:
            try:
                ft.beat()
                time.sleep(3600)
            except BaseException:
                caught += 1
                if caught == 2:
                    raise
    finally:
        until = time.monotonic() + 0.5  # longer than the time between two signals
        while time.monotonic() < until:
            time.sleep(0.01)
        print("cleaned up after", caught, flush=True)
train()
"""
    ranks.append(rank := Rank(beats, code))
    rank.expect("said_hello")
    wait_for(lambda: rank.slot("moved_at"), "the first heartbeat")
    rank.fence(1)
    rank.expect("left_round")
    rank.go(2)
    rank.expect("function_finished")
    assert rank.finish() == (0, "cleaned up after 2\n", "")


def test_what_the_function_held_is_released_before_the_next_round(beats: BeatDir, ranks: list[Rank]) -> None:
    code = """
import weakref
class Big:
    pass
kept = []
@ft.recoverable
def train(run):
    if run.round == 2:
        print("alive", sum(one() is not None for one in kept), flush=True)
        return
    big, cycle = Big(), Big()
    cycle.own = cycle
    kept.extend([weakref.ref(big), weakref.ref(cycle)])
    try:
        raise ValueError(big)
    except ValueError as error:
        raise ft.Retry("again") from error
train()
"""
    ranks.append(rank := Rank(beats, code))
    for kind in ("said_hello", "asked_retry", "left_round"):
        rank.expect(kind)
    rank.go(2)
    rank.expect("function_finished")
    assert rank.finish()[1] == "alive 0\n"


def test_a_rank_that_has_returned_says_that_it_cannot_come_back(beats: BeatDir, ranks: list[Rank]) -> None:
    code = """
import time
train = ft.recoverable(lambda run: None)
train()
train()
time.sleep(3600)
"""
    ranks.append(rank := Rank(beats, code))
    rank.expect("said_hello")
    rank.expect("function_finished")
    rank.fence(1)
    assert rank.expect("left_round")["problem"] == "its training function has returned already"


def test_without_ftrun_a_rank_at_the_barrier_ends(beats: BeatDir, ranks: list[Rank]) -> None:
    code = "@ft.recoverable\ndef train(run):\n    raise ft.Retry('why')\ntrain()"
    ranks.append(rank := Rank(beats, code))
    for kind in ("said_hello", "asked_retry", "left_round"):
        rank.expect(kind)
    rank.connection.shutdown(socket.SHUT_RDWR)
    code_, _, err = rank.finish()
    assert code_ == 1
    assert "the training function was left (Retry: why), and ftrun has ended the recovery" in err


def test_a_forked_child_is_no_rank(beats: BeatDir, ranks: list[Rank]) -> None:
    code = """
import os, time
@ft.recoverable
def train(run):
    if run.round == 1:
        if os.fork() == 0:
            try:
                raise ft.Retry("in the child")
            except ft.Retry:
                os._exit(5)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        ft.beat()
        time.sleep(3600)
train()
"""
    ranks.append(rank := Rank(beats, code))
    rank.expect("said_hello")
    wait_for(lambda: rank.slot("moved_at"), "the first heartbeat")
    rank.fence(1)
    rank.expect("left_round")
    rank.go(2)
    rank.expect("function_finished")
    assert rank.finish() == (0, "5\n", "")
