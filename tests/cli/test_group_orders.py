"""Two ftruns of one group on loopback: a request of the operator and a device fault of one apply to both."""

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.device.nvml import SPINNING, FakeNvml
from support.device.rig import SOON
from support.ports import free_port
from support.runs import Run, Runs, descendants, python, wait_for

STEPS = "import time\nn = 1000 * ft.attempt().start_cnt\nwhile True:\n    n += 1; ft.beat(n); time.sleep(0.02)"
# In step 1020 it sleeps for longer than the test may last, so that ftrun finds a hang.
HANGS_ONCE = STEPS.replace("time.sleep(0.02)", "time.sleep(3600 if n == 1020 else 0.02)")
# The main thread waits for ever, and another one writes: not so little that it is taken for nothing.
LOGS = """import threading, time
def log():
    while True:
        with open("log", "ab") as file: file.write(b"x" * 4096)
        time.sleep(0.05)
threading.Thread(target=log, daemon=True).start()
threading.Event().wait({})"""


class Pair:
    def __init__(self, runs: Runs) -> None:
        self.runs, self.folder = runs, runs.folder
        (self.folder / "secret").write_text("x" * 32)
        self.endpoint = f"127.0.0.1:{free_port()}"

    def start(self, rank: int, *options: str, code: str = STEPS, **more: Any) -> Run:
        group = ["--group-size", "2", "--group-rank", str(rank), "--group-endpoint", self.endpoint]
        group += ["--group-secret-file", str(self.folder / "secret"), "--node-name", f"node-{rank}", "--grace", "1s"]
        group += ["--termination-log", str(self.folder / f"message-{rank}")]
        return self.runs.start(*group, *options, *python(code), run_dir=self.folder / f"run-{rank}", **more)

    def both(self, *options: str) -> tuple[Run, Run]:
        first, second = self.start(0, *options), self.start(1, *options)
        for run in (first, second):
            run.until("first_beat")
        return first, second

    def message(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"message-{rank}").read_text())
        return found


@pytest.fixture
def pair(runs: Runs) -> Pair:
    return Pair(runs)


def test_request_to_one_member_applies_to_all(pair: Pair) -> None:
    first, second = pair.both()
    second.told("pause")
    assert first.until("paused")["for"] is None
    second.told("resume")
    first.until("resumed")
    assert len(second.named("paused")) == 1
    second.told("restart")
    assert second.until("restart")["reason"] == "manual"
    again = first.until("restart")
    assert (again["reason"], again["start_cnt"], again["epoch"], again["consecutive"]) == ("peer", 2, 2, 0)
    wait_for(lambda: "node-1" in first.stderr, "the line on the terminal")
    first.until("first_beat", 2)
    first.told("stop")
    assert (first.wait(), second.wait()) == (143, 143)
    assert {pair.message(rank)["node"] for rank in (0, 1)} == {"node-0"}


def test_a_hang_of_one_member_is_one_notification_and_one_report_of_the_group(pair: Pair) -> None:
    """Member 0 sends it, since its coordinator decides that all members start again."""
    seen = pair.folder / "seen"
    notify = ("--on-event", f"cat >> {seen}; echo >> {seen}", "--hang-timeout", "3s")
    first, second = pair.start(0, *notify), pair.start(1, *notify, code=HANGS_ONCE)
    for run in (first, second):
        run.until("first_beat", 2)
    wait_for(seen.exists, "the notification")
    assert all("node-1" in run.told("report") for run in (first, second))
    assert first.told("report").startswith("hang on member 1 (node-1): member 1 (node-1): ")
    assert json.loads(first.told("report", "--json"))["node"] == "node-1"
    assert re.search(r"incident +.* hang in attempt 1: member 1", " ".join(first.told("status").split()))
    first.told("stop")
    assert (first.wait(), second.wait()) == (143, 143)
    found = [json.loads(line) for line in seen.read_text().splitlines()]
    assert [(one["event"], one["node"]) for one in found] == [("restart", "node-0"), ("ended", "node-0")], found
    about = found[0]["incident"]
    assert (about["cause"], about["node"], about["member"], about["left"]) == ("hang", "node-1", 1, 2)
    assert "hang on node-1" in found[0]["text"]
    assert "; all members were started again, here as attempt 2; 2 restarts left without progress;" in found[0]["text"]


def test_status_shows_the_state_of_the_group(pair: Pair) -> None:
    first = pair.start(0)
    wait_for(lambda: "waiting for the other members" in first.stderr, "that it says so")
    shown = first.told("status")
    assert "The next start, once all members of the group are ready." in shown
    second = pair.start(1)
    first.until("first_beat")
    assert "epoch 1, running" in first.told("status")
    first.process.terminate()
    assert (first.wait(), second.wait()) == (143, 195)
    assert "member 0 (node-0) has left" in pair.message(1)["message"]


def test_others_say_that_a_platform_has_stopped_a_member_and_until_when_they_wait_for_it(pair: Pair) -> None:
    first, second = (pair.start(rank, "--wait-peer", "300s") for rank in (0, 1))
    for run in (first, second):
        run.until("first_beat")
    second.process.terminate()
    second.wait()
    wait_for(lambda: "stops the command here, too" in first.stderr, "the end of the command of member 0")
    assert "member 1 (node-1) has left: stopped from outside by signal 15 (SIGTERM); ftrun stops" in first.stderr
    words = r"next +Member 1 is lost; the group waits [0-9ms ]+ more for it, then the job ends with 195\."
    wait_for(lambda: re.search(words, first.told("status")), "until when member 0 waits")
    first.told("stop")
    assert first.wait() == 143


def test_lost_device_ends_all_members_and_isolates_its_node(pair: Pair) -> None:
    fake = FakeNvml(pair.folder)
    first = pair.start(0, "--probe", "off")
    second = pair.start(1, "--probe", "nvidia", program=SOON, **fake.environment())
    for run in (first, second):
        run.until("first_beat")
    path = Path(second.run_dir, "devices.json")
    wait_for(path.exists, "a look at the devices")

    def noticed() -> bool:
        fake.xid(0, 79)  # one that comes before the first look is not new
        return bool(second.named("fault"))

    wait_for(noticed, "the fault")
    assert (first.wait(), second.wait()) == (197, 197)
    messages = [pair.message(rank) for rank in (0, 1)]
    assert [one["node"] for one in messages] == ["node-1", "node-1"]
    assert [one["isolate"] for one in messages] == [False, True]
    assert "79" in messages[0]["message"]


@pytest.mark.parametrize("still", [True, False])
def test_idle_accelerators_of_all_members_are_a_hang(pair: Pair, still: bool) -> None:
    """The rule of ModelArts over all instances, which ignores the output of the processes."""
    options = ("--idle-timeout", "1s", "--no-auto-beat", "--restart-on", "none", "--probe", "nvidia")
    fakes = []
    for rank in (0, 1):
        (pair.folder / f"gpu-{rank}").mkdir()
        fakes.append(FakeNvml(pair.folder / f"gpu-{rank}"))
        fakes[rank].set(0, **SPINNING)
    for number in range(0 if still else 80):
        fakes[1].later(0.1 * number, 0, util=100 - 9 * (number % 3))
    command = LOGS.format(3600 if still else 4)
    both = [pair.start(rank, *options, code=command, **fake.environment()) for rank, fake in enumerate(fakes)]
    code = 195 if still else 0
    assert [run.wait() for run in both] == [code, code], [run.log() for run in both]
    assert {record["rule"] for run in both for record in run.named("hang")} == ({"idle"} if still else set())


ENDS = "import time, os\nwhile not os.path.exists('enough'): ft.beat(); time.sleep(0.02)\nos._exit(93)"


def test_a_refused_duplicate_ends_with_195_whatever_the_group_ends_with(pair: Pair) -> None:
    first, second = (pair.start(rank, "--max-restarts", "0", code=ENDS) for rank in (0, 1))
    for run in (first, second):
        run.until("first_beat")
    message = pair.folder / "message-other"
    options = ("--run-dir", str(pair.folder / "run-other"), "--termination-log", str(message))
    other = pair.start(1, *options, code=ENDS)
    wait_for(lambda: "member 1 is there already, on node-1" in other.stderr, "the refusal")
    (pair.folder / "enough").touch()
    assert [run.wait() for run in (first, second, other)] == [93, 93, 195]
    why = "does not take this node: member 1 is there already, on node-1; the group has ended"
    assert json.loads(message.read_text())["message"].endswith(why)


def test_a_wrong_secret_ends_both_sides_within_seconds_and_both_say_so(pair: Pair) -> None:
    wrong = pair.folder / "wrong"
    wrong.write_text("y" * 32)
    first, second = pair.start(0), pair.start(1, "--group-secret-file", str(wrong))
    assert (second.wait(), first.wait()) == (2, 195)
    assert "has a different secret from this node" in pair.message(1)["message"]
    why = "127.0.0.1 has a different secret from this group, and has given up; member 1 has not joined"
    assert pair.message(0)["message"].startswith(why)
    assert not first.named("spawned")
    assert not second.named("spawned")


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_that_was_suspended_as_a_whole_goes_on(pair: Pair, lost: bool) -> None:
    """For longer than its leases, and its waits: here one of them is 6 s.  `lost`: while it waits for a lost member."""
    options = ("--peer-timeout", "3s", "--wait-peer", "3s" if not lost else "8s")
    first, second = pair.both(*options)
    if lost:
        second.process.kill()
        first.until("exited")
    runs = [first] if lost else [first, second]
    job = [pid for run in runs for pid in (run.process.pid, *descendants(run.process.pid))]
    began = time.monotonic()
    for pid in job:
        with contextlib.suppress(ProcessLookupError):  # of a lost member's peer some end by themselves
            os.kill(pid, signal.SIGSTOP)
    time.sleep(8)  # the suspension itself, which has to be longer than each timeout above; nothing happens in it
    for pid in reversed(job):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    if lost:
        (pair.folder / "run-1").rename(pair.folder / "run-earlier")
        second = pair.start(1, *options)
        first.until("first_beat", 2)
    else:
        resumed = time.monotonic()
        wait_for(lambda: time.monotonic() > resumed + 7, "the time in which it has to make contact")
        assert [len(run.named("spawned")) for run in (first, second)] == [1, 1]
        assert not [record for run in (first, second) for record in run.named("group") if record["mono"] > began]
    first.told("stop")
    assert [run.wait() for run in (first, second)] == [143, 143]
