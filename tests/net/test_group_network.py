"""A bad network, and strangers on it, do not disturb a group."""

import signal
import subprocess
import sys
from collections.abc import Callable

from support.group_runs import Group
from support.hosts import PORT, Hosts

Make = Callable[[int], Hosts]
QUICK = ("--steps", "100000", "--step-time", "0.02")


def test_strangers_are_refused_and_a_stop_from_outside_stops_all_members(hosts: Make) -> None:
    here = hosts(3)
    group = Group(here, *QUICK, size=2)
    members = group.begin()
    group.until_step(5)
    other = here.folder / "other"
    other.touch(mode=0o600)
    other.write_text("0" * 64)
    strangers = {
        "secret": group.start(2, options=("--group-rank", "1", "--group-secret-file", str(other))),
        "member 1 is there already": group.start(2, options=("--group-rank", "1")),
        "a group of 3": group.start(2, options=("--group-rank", "1", "--group-size", "3")),
    }
    garbage = f"import os, socket; socket.create_connection({(here.hosts[0].address, PORT)}).sendall(os.urandom(4096))"
    subprocess.run([*here.hosts[2].network.enter, sys.executable, "-c", garbage], check=True)
    group.gone.add(2)
    for why, stranger in strangers.items():
        assert why in stranger.until("problem")["what"]
        if why == "a group of 3":
            assert stranger.wait() == 2  # it can never join this group
            assert why in stranger.verdict["message"]
        else:
            stranger.kill()
    group.until_step(group.book.step + 5)
    for member in members:
        member.ask(signal.SIGTERM)
    group.must_end(143, epochs=[1])


def test_two_jobs_on_one_port_do_not_mix_and_a_waiting_job_can_be_stopped(hosts: Make) -> None:
    group = Group(hosts(2), size=3)
    waiting = [group.start(rank, options=("--group-job", "one")) for rank in (0, 1)]
    other = group.start(1, options=("--group-rank", "2", "--group-job", "another"))
    for one in (waiting[0], other):
        what = one.until("problem")["what"]
        assert "was refused" in what or "this node" in what
        assert "it belongs to the job another" in what
    other.kill()
    for one in waiting:
        one.ask(signal.SIGTERM)
    assert [one.wait() for one in waiting] == [143, 143]
    assert not group.book.lines
