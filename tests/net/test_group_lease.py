"""Groups whose members share a folder: another member takes the place of a lost coordinator, on hosts of their own."""

import json
import re
import time
from collections.abc import Callable
from functools import partial

import pytest

from ftrun.core.group import lease
from ftrun.helpers.messenger.group_link import QUIET
from net.test_group_fewer import QUICK, members, until_spare
from net.test_group_view import ftctl
from support.group_runs import Group
from support.hosts import Hosts
from support.runs import wait_for

Make = Callable[[int], Hosts]
LENGTH = lease.length(5.0, 1.0 + 5.0)  # of --peer-timeout and --grace 1s


def sharing(here: Hosts, **options: str) -> tuple[str, ...]:
    state = here.folder / "state"
    state.mkdir()
    return ("--peer-timeout", "5s", "--state-dir", str(state))


def until_witnesses(group: Group, number: int) -> None:
    """Until the lease names so many witnesses."""
    (folder,) = wait_for(lambda: list((group.hosts.folder / "state").glob("lease-*")), "the folder of the lease")

    def witnesses() -> int:
        newest = max(int(one.name) for one in folder.iterdir() if one.name.isdigit())
        return len(json.loads((folder / str(newest)).read_text())["witnesses"])

    wait_for(lambda: witnesses() == number, "the witnesses of the lease")


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["dead", "cut off"])
@pytest.mark.parametrize("shape", ["spare", "fewer"])
def test_all_train_again_within_one_lease_after_the_loss_of_member_0(hosts: Make, shape: str, lost: str) -> None:
    """Its machine answers nothing any more.  One that is only cut off, and can still write to the folder, gives up its
    lease by itself, since it hears nobody."""
    here = hosts(4)
    options = (*sharing(here), *(("--spares", "1") if shape == "spare" else ()))
    group = Group(here, *QUICK, wait="600s", shape="" if shape == "spare" else "2:4", options=options)
    group.begin()
    group.until_started(1, nodes=3 if shape == "spare" else 4)
    until_witnesses(group, 3)
    began = time.monotonic()
    here.hosts[0].cut(silent=True)
    if lost == "dead":
        group.rank(0).kill()
    group.gone.add(0)
    told = (
        r"member 0 \(host-0\) is missing: no contact for .*; its lease in the shared folder ends at \S+ UTC, .* more,"
    )
    for rank in (1, 2, 3):
        status = partial(ftctl, group.rank(rank), "status")
        wait_for(lambda ask=status: re.search(told, ask().stdout), f"the status of {rank}")  # type: ignore[misc]
    group.until_started(2, nodes=3, timeout=LENGTH + 60)
    took = time.monotonic() - began
    print(f"loss of member 0 ({lost}), {shape}: {took:.1f} s with a lease of {LENGTH:.0f} s")
    assert took < LENGTH + 2.0 + (0.0 if lost == "dead" else QUIET)
    assert set(members(group, 2).values()) == {1, 2, 3}
    if lost == "cut off":
        assert group.rank(0).named("exited")
        here.hosts[0].restore()
        until_spare(group, 0)
    group.finish()
    group.must_end(0, epochs=[1, 2])
