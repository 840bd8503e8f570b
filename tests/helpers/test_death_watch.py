"""Whether the ftrun of a member is dead, as its machine shows it."""

import time
from collections.abc import Iterator

import pytest

from ftrun.helpers.messenger.coordinator_link import RESTARTING
from ftrun.helpers.messenger.death_watch import FIRST, DeathWatch
from ftrun.host.ports import LifeSign
from support.ports import free_port
from support.runs import wait_for


@pytest.fixture
def life() -> Iterator[LifeSign]:
    made = LifeSign()
    yield made
    made.close()


def settle(watch: DeathWatch[str]) -> list[str]:
    """What it finds until it has nothing more to do, or for half a second."""
    found, until = list[str](), time.monotonic() + 0.5
    while not found and watch.due < until:
        time.sleep(max(0.0, watch.due - time.monotonic()))
        found += watch.process(time.monotonic())
    return found


def test_a_port_that_is_refused_after_it_accepted_shows_that_its_process_is_dead(life: LifeSign) -> None:
    watch = DeathWatch[str]()
    watch.joined("member", "127.0.0.1", life.number, time.monotonic())
    assert settle(watch) == []
    watch.closed("member", time.monotonic())
    assert settle(watch) == []  # it lives
    life.close()
    assert wait_for(lambda: watch.process(time.monotonic()), "the death") == ["member"]
    assert watch.process(time.monotonic()) == []
    assert watch.due == float("inf")


def test_a_member_lives_as_long_as_its_port_accepts_although_nobody_reads_the_connections(life: LifeSign) -> None:
    """Its PID 1 reads them when its messenger has contact."""
    watch, now = DeathWatch[str](), time.monotonic()
    watch.joined("member", "127.0.0.1", life.number, now)
    settle(watch)
    assert not watch.lives("member")  # its connection is open: nobody has asked
    watch.closed("member", now)
    until = now + RESTARTING
    while now < until:
        now = max(now, watch.due)
        assert watch.process(now) == []
    assert watch.lives("member")
    life.close()
    wait_for(lambda: watch.process(time.monotonic() + RESTARTING), "the death")
    assert not watch.lives("member")


def test_a_port_that_always_refuses_shows_nothing() -> None:
    """As behind a firewall that rejects it."""
    watch, port = DeathWatch[str](), free_port()
    watch.joined("member", "127.0.0.1", port, time.monotonic())
    assert settle(watch) == []
    watch.closed("member", time.monotonic())
    assert settle(watch) == []
    assert FIRST > 1


def test_a_member_that_has_come_back_is_not_asked_any_more(life: LifeSign) -> None:
    watch = DeathWatch[str]()
    watch.joined("member", "127.0.0.1", life.number, time.monotonic())
    settle(watch)
    watch.closed("member", time.monotonic())
    watch.joined("member", "127.0.0.1", life.number, time.monotonic())
    life.close()
    assert settle(watch) == []


@pytest.mark.parametrize("host", ["", "no such host", "256.1.1.1"])
def test_an_address_that_is_none_is_no_error(host: str, life: LifeSign) -> None:
    watch = DeathWatch[str]()
    watch.joined("member", host, life.number, time.monotonic())
    assert settle(watch) == []
