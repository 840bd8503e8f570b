"""What a network does to a group, and who else is on it: nothing of that disturbs who is at work."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.group_runs import Group
from support.hosts import PORT, Hosts, children, is_messenger
from support.runs import end_process, wait_for

Make = Callable[[int], Hosts]
QUICK = ("--steps", "100000", "--step-time", "0.02")


def kill_messenger(group: Group, rank: int) -> None:
    """There is another one at the end."""
    one = group.rank(rank)
    killed = one.messenger
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: one.messenger != killed, "another messenger")


def test_a_bad_network_and_a_dead_messenger_disturb_nobody(hosts: Make) -> None:
    """200 ms each way, a stall, a link that is down for a while, connections that are cut, messengers that are
    killed."""
    here = hosts(2)
    proxy = here.proxy()
    group = Group(here, *QUICK, proxy=proxy)
    group.begin()
    group.until_step(5)
    kill_messenger(group, 0)
    kill_messenger(group, 1)
    group.until_step(group.book.step + 10)
    proxy.delay(0.2)
    proxy.stall()
    here.hosts[1].cut()
    time.sleep(1)
    proxy.flow()
    here.hosts[1].restore()
    proxy.cut()
    time.sleep(1)
    group.finish()
    group.must_end(0, epochs=[1])


def another_secret(here: Hosts) -> Path:
    """The file of a secret that is not the group's."""
    file = here.folder / "other"
    file.touch(mode=0o600)
    file.write_text("0" * 64)
    return file


def test_strangers_are_refused_and_a_stop_from_outside_is_one_for_all(hosts: Make) -> None:
    here = hosts(3)
    group = Group(here, *QUICK, size=2)
    everybody = group.begin()
    group.until_step(5)
    other = another_secret(here)
    strangers = {
        "secret": group.start(2, options=("--group-rank", "1", "--group-secret-file", str(other))),
        "member 1 is there already": group.start(2, options=("--group-rank", "1")),
        "a group of 3": group.start(2, options=("--group-rank", "1", "--group-size", "3")),
    }
    garbage = f"import os, socket; socket.create_connection({(here.hosts[0].address, PORT)}).sendall(os.urandom(4096))"
    subprocess.run([*here.hosts[2].network.enter, sys.executable, "-c", garbage], check=True)
    group.gone.add(2)
    for word, stranger in strangers.items():
        told = stranger.until("problem")["what"]
        assert word in told
        if word == "a group of 3":
            assert stranger.wait() == 2  # no start of it could be of this group
            assert word in stranger.verdict["message"]
        else:
            stranger.kill()
    group.until_step(group.book.step + 5)
    for one in everybody:
        one.ask(signal.SIGTERM)
    group.must_end(143, epochs=[1])


@pytest.mark.slow
def test_a_node_with_another_secret_ends_by_itself_and_alone(hosts: Make) -> None:
    here = hosts(3)
    group = Group(here, *QUICK, size=2)
    everybody = group.begin()
    group.until_step(5)
    other = another_secret(here)
    options = ("--group-rank", "1", "--group-secret-file", str(other), "--wait-peer", "10m")
    stranger = group.start(2, options=options)
    group.gone.add(2)
    wait_for(lambda: stranger.ended, "its end", 120)
    assert stranger.wait() == 2
    assert "has a different secret from this node" in stranger.verdict["message"]
    group.until_step(group.book.step + 5)
    for one in everybody:
        one.ask(signal.SIGTERM)
    group.must_end(143, epochs=[1])


def test_two_jobs_on_one_port_are_two_and_a_stop_finds_the_first_one_waiting(hosts: Make) -> None:
    group = Group(hosts(2), size=3)
    waiting = [group.start(rank, options=("--group-job", "one")) for rank in (0, 1)]
    other = group.start(1, options=("--group-rank", "2", "--group-job", "another"))
    for one in (waiting[0], other):
        told = one.until("problem")["what"]
        assert "was refused" in told or "this node" in told
        assert "it belongs to the job another" in told
    other.kill()
    for one in waiting:
        one.ask(signal.SIGTERM)
    assert [one.wait() for one in waiting] == [143, 143]
    assert not group.book.lines


@pytest.mark.slow
def test_who_waits_for_a_place_never_works_beside_who_had_it(hosts: Make) -> None:
    """Eight have its rank and the secret: its messenger is dead until one of them is taken in its place."""
    here = hosts(3)
    group = Group(here, *QUICK, size=2, wait="60s")
    zero, first = group.begin()
    group.until_step(5)
    waiting = [group.start(2, options=("--group-rank", "1"), RANK="1") for _ in range(8)]
    for one in waiting:
        one.until("problem")

    def is_taken() -> bool:
        for pid in children(first.pid):
            if is_messenger(pid):
                end_process(pid)
        return any(
            told["why"] == "member 1 (host-2) is back" for told in zero.named("group") if told["what"] == "noted"
        )

    wait_for(is_taken, "another in its place")
    group.until_started(2)
    ended = first.until("exited")["mono"]
    assert all(line["time"] > ended for line in group.book.named("start", epoch=2)), group.log()
    group.finish()
    assert zero.wait() == 0, group.log()
    assert group.book.epochs == [1, 2]
    assert not list(group.book.wrong()), group.log()
