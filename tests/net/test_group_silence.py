"""Members without contact to rank 0: training that progresses continues, and a verdict is only about its own member."""

import signal
from collections.abc import Callable

from support.group_runs import Group
from support.hosts import Container, Hosts
from support.runs import wait_for

Make = Callable[[int], Hosts]
QUICK = ("--steps", "100000", "--step-time", "0.02")
SHORT = ("--peer-timeout", "5s")


def prints(one: Container, what: str) -> None:
    wait_for(lambda: what in one.stderr or one.ended, f"{what!r} of {one.rank}")
    assert what in one.stderr, one.log()


def test_rank_0_without_its_network_ends_no_command(hosts: Make) -> None:
    """The ranks communicate another way (here a shared disk), and progress."""
    here = hosts(3)
    group = Group(here, *QUICK, wait="5m", options=SHORT)
    zero, *others = group.begin()
    group.until_step(1)
    here.hosts[0].cut(silent=True)
    for one in others:
        prints(one, "the command keeps running")
    group.until_step(group.book.step + 10)
    here.hosts[0].restore()
    for one in others:
        prints(one, "contact with the coordinator is restored after")
    assert not zero.named("lost")
    group.must_succeed(epochs=[1])


def test_a_member_that_receives_nothing_is_lost_alone(hosts: Make) -> None:
    """Large packets are lost one way.  The verdict ends that container only; the others keep theirs, and wait."""
    here = hosts(3)
    group = Group(here, *QUICK, wait="5m", options=SHORT)
    others = [group.start(rank) for rank in (0, 2)]
    wait_for(lambda: all("waiting for the other members" in one.stderr for one in others), "two members that wait")
    cut_off = group.start(1, options=("--wait-peer", "12s"))  # also the time in which it has to reach rank 0
    group.gone.add(1)
    group.until_step(1)
    here.hosts[1].narrow(300)
    prints(cut_off, "the command keeps running")
    assert cut_off.wait() == 195
    assert "there was no reply from rank 0" in cut_off.verdict["message"]
    for one in reversed(others):  # rank 0 last, because all end with it
        one.until("exited")
        assert not one.ended
        one.ask(signal.SIGTERM)
        assert one.wait() == 143
    assert group.book.epochs == [1]
    assert not list(group.book.wrong())
