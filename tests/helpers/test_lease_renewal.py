"""The holder of a lease decides nothing while that may be over, nor before somebody shares its folder."""

import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ftrun.core.group.messages import GroupEnd, GroupOrder
from ftrun.helpers.messenger import group_link
from ftrun.helpers.messenger.group_link import GroupLink
from ftrun.helpers.messenger.lease_keeper import LeaseKeeper
from ftrun.helpers.messenger.transport import RESUMED
from ftrun.messages import peers
from ftrun.messages.messenger import ChangedOrder
from support.recorded_lines import RecordedLines
from support.runs import wait_for

WITNESS = (1, "another")
LENGTH = 30.0  # s of the lease


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupLink]:
    monkeypatch.chdir(tmp_path)  # the run dir, for a messenger
    address = peers.MemberAddress(
        *(3, 0, "127.0.0.1:0", None, 10.0, 1.0, 1.0, "", "mine", "node", "boot", LENGTH, 1), folder=str(tmp_path)
    )
    made = GroupLink(address, str(tmp_path), RecordedLines())
    wait_for(lambda: processed(made) == "none" and cast("LeaseKeeper", made._keeper).holds, "the first place")
    taken(made)
    wait_for(lambda: processed(made) == "held", "the first lease")
    yield made
    made.close(False)


def processed(link: GroupLink, later: float = 0.0) -> str:
    """The state of the lease, once a messenger that runs so much later has processed what there is."""
    link.process(time.monotonic() + later)
    return state(link)


def state(link: GroupLink) -> str:
    assert link._leading is not None
    return link._leading.group.lease_state


def taken(link: GroupLink) -> LeaseKeeper:
    """Until a renewal has been answered, with a witness, which binds it from then on."""
    keeper = link._keeper
    assert keeper is not None
    keeper.take("127.0.0.1:1", 0, (), {WITNESS})
    wait_for(lambda: select.select([keeper.source], [], [], 0)[0], "the answer of the clerk")
    return keeper


def test_a_lease_whose_renewal_was_answered_after_its_end_starts_nothing(
    link: GroupLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have taken it over before that answer came."""
    keeper = taken(link)
    assert processed(link) == "held"
    later = [LENGTH + 0.5 * step for step in range(2 * int(RESUMED) + 2)]  # perhaps suspended, it may renew at first
    with monkeypatch.context() as patched:
        patched.setattr(keeper, "take", lambda *what: None)  # the folder stalls
        assert [processed(link, one) for one in later][-1] == "foreign"
    taken(link)
    decided = list[str]()
    assert link._leading is not None
    monkeypatch.setattr(link._leading, "process", lambda now: decided.append(state(link)))
    processed(link, later[-1] + 0.5)
    assert decided == ["foreign"]


def test_a_holder_that_was_suspended_renews_its_lease_before_it_decides_anything(
    link: GroupLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, decided = taken(link), list[Any]()
    assert processed(link) == "held"
    assert link._leading is not None
    monkeypatch.setattr(link._leading, "process", decided.append)
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + LENGTH)
    link.process(time.monotonic())
    assert (state(link), decided) == ("held", [])
    wait_for(lambda: processed(link) == "held" and decided, "a decision after the renewal")
    assert keeper.holds
    assert time.monotonic() < keeper.stops_at({}, set())


@pytest.mark.parametrize("who", [WITNESS, (1, "of an earlier schedule")])
def test_a_holder_that_was_suspended_until_its_group_had_ended_ends_like_that(
    link: GroupLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: tuple[int, str]
) -> None:
    """Another one had taken its place."""
    monkeypatch.setattr(group_link, "TOLD", 0.1)
    keeper, end = taken(link), GroupEnd(0, "succeeded", "all members have succeeded")
    assert processed(link) == "held"
    assert keeper.place is not None
    (folder,) = tmp_path.glob("lease-*")
    other = keeper.place._replace(rank=1, life=who[1], epoch=2, witnesses=())
    places: list[tuple[int, dict[str, Any]]] = [(1, {}), (2, {"over": True, "end": end})]
    for later, more in places:
        number = other.number + later
        content = peers.dump(other._replace(number=number, **more))
        (folder / f"{number}.new").write_bytes(content)
        (folder / f"{number}.new").rename(folder / str(number))
    lines = cast("RecordedLines", link._lines).sent

    def orders() -> list[GroupOrder]:
        link.process(time.monotonic())
        return [one.order for one in lines if isinstance(one, ChangedOrder) and one.order.what == "end"]

    if who == WITNESS:
        assert wait_for(orders, "the end") == [GroupOrder(2, "end", end.why, end=end)]
    else:  # whatever of this job has ended there, this group has not
        watch = wait_for(lambda: orders() or (keeper.place and keeper.place.over and keeper.watch), "its last place")
        wait_for(lambda: orders() or time.monotonic() > watch.since + 1.0, "the time in which it would have ended")
        assert not orders()


@pytest.mark.parametrize("stalls", [False, True])
def test_a_new_coordinator_decides_nothing_before_it_has_seen_the_folder_unless_that_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stalls: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    fields = (3, 0, "127.0.0.1:0", None, 10.0, 1.0, 1.0, "", "mine", "node", "boot", LENGTH, 1)
    link = GroupLink(peers.MemberAddress(*fields, folder=str(tmp_path)), str(tmp_path), RecordedLines())
    decided = list[bool]()
    keeper, now = cast("LeaseKeeper", link._keeper), link._began
    assert link._leading is not None
    monkeypatch.setattr(link._leading, "process", lambda now: decided.append(keeper.proved))

    def later() -> list[bool]:
        link.process(now)
        return decided

    try:
        if stalls:
            monkeypatch.setattr(keeper, "changes", lambda now: [])
            link.process(now + group_link.SEEN - 0.1)
            assert not decided
            link.process(now + group_link.SEEN)
        else:
            wait_for(later, "a decision")
        assert decided == [not stalls]
    finally:
        link.close(False)
