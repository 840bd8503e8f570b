"""An address that has moved to another machine proves nothing about the ftrun that was reached there before."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.group.membership import StarterDied
from ftrun.core.group.messages import Starter
from ftrun.helpers.messenger import connections, coordinator_link
from ftrun.helpers.messenger.coordinator_link import CoordinatorLink
from ftrun.messages import peers
from support.ports import free_port
from support.recorded_lines import RecordedLines
from support.runs import wait_for

PORT = free_port()  # where nobody listens
ELSEWHERE = Starter("old", "another-node", "another-boot", "127.0.0.1", PORT, contained=True)


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinatorLink]:
    monkeypatch.chdir(tmp_path)  # the run dir, for a messenger
    address = peers.MemberAddress(2, 0, "127.0.0.1:0", None, 10.0, 1.0, 1.0, "", "new", "node", "boot")
    made = CoordinatorLink(address, str(tmp_path), RecordedLines())
    yield made
    made.close(False)


def dead(link: CoordinatorLink, starter: Starter, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a new coordinator takes it for dead."""
    decided = list[Any]()
    monkeypatch.setattr(link, "_decide", decided.append)
    link._coordinator = link._coordinator._replace(starters={starter.life: (starter, 0.0)})
    asked = list[float]()

    def look() -> bool:
        asked.append(time.monotonic())
        link._check_starters(asked[-1])
        return bool(decided) or asked[-1] > asked[0] + 1.0

    wait_for(look, "the answers of its machine")
    return any(isinstance(one, StarterDied) for one in decided)


def test_what_the_machine_of_an_earlier_member_0_refuses_shows_its_end(
    link: CoordinatorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dead(link, ELSEWHERE, monkeypatch)


def test_what_our_own_machine_refuses_at_the_address_of_another_one_shows_nothing(
    link: CoordinatorLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_link, "is_own", lambda host: host == ELSEWHERE.host)
    assert not dead(link, ELSEWHERE, monkeypatch)
    assert dead(link, ELSEWHERE._replace(life="rebooted", node="node"), monkeypatch)  # this machine, before it rebooted


def test_an_own_address_is_one_by_which_others_reach_this_machine() -> None:
    assert not connections.is_own("127.0.0.1")
    assert not connections.is_own("::1")
    assert not connections.is_own("192.0.2.1")
    assert connections.is_own("0.0.0.0")
