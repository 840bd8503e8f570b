"""The places of a lease in a folder: each is taken once, whatever the folder does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.messenger import lease_clerk
from ftrun.helpers.messenger.lease_clerk import KEPT, Clerk
from ftrun.host.helpers import CODE
from support.runs import HOUSE


def place(number: int, life: str) -> dict[str, Any]:
    return {"number": number, "life": life}


@pytest.fixture
def clerk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Clerk]:
    monkeypatch.setattr(lease_clerk, "say", lambda what: None)

    def make(rank: int) -> Clerk:
        made = Clerk(str(tmp_path / "lease"), str(rank))
        made.look()
        return made

    return make


def test_of_two_that_take_one_place_one_has_it(clerk: Callable[[int], Clerk]) -> None:
    zero, one = clerk(0), clerk(1)
    assert zero.take(place(1, "zero")) == {"taken": 1}
    assert one.take(place(1, "one")) == {"seen": place(1, "zero")}
    assert one.look() is None  # it knows that already
    assert clerk(2).look() is None
    assert one.take(place(2, "one")) == {"taken": 2}
    assert zero.take(place(2, "zero")) == {"seen": place(2, "one")}


def test_an_attempt_whose_reply_was_lost_has_succeeded(
    clerk: Callable[[int], Clerk], monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, link = clerk(0), os.link

    def lost(*names: str) -> None:
        link(*names)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", lost)
        assert zero.take(place(1, "zero")) == {"taken": 1}
    assert zero.take(place(1, "zero")) == {"taken": 1}  # as when the first reply came too late


def test_a_storage_without_links_gives_no_lease(clerk: Callable[[int], Clerk], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*names: str) -> None:
        raise OSError(1, "Operation not permitted")

    zero = clerk(0)
    monkeypatch.setattr(os, "link", refused)
    assert zero.take(place(1, "zero")) == {"failed": "Operation not permitted"}


def test_who_takes_an_old_place_for_the_newest_gets_nothing(tmp_path: Path, clerk: Callable[[int], Clerk]) -> None:
    zero, late = clerk(0), clerk(1)
    for number in range(1, KEPT + 10):
        assert zero.take(place(number, "zero")) == {"taken": number}
    assert late.take(place(KEPT, "late")) == {"seen": place(KEPT, "zero")}
    assert late.take(place(4, "late")) == {"failed": "a newer place is taken, or this is not the folder of the group"}
    assert not (tmp_path / "lease" / "4").exists()
    assert late.look() == place(KEPT + 9, "zero")


def test_a_folder_that_was_emptied_is_used_again(tmp_path: Path, clerk: Callable[[int], Clerk]) -> None:
    zero = clerk(0)
    assert zero.take(place(1, "zero")) == {"taken": 1}
    for one in (tmp_path / "lease").iterdir():
        one.unlink()
    assert zero.take(place(2, "zero")) == {"taken": 2}


def test_no_place_is_taken_in_a_folder_that_is_not_the_shared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a mount is lost, its empty mount point is there: who renews a lease in that is alone with it."""
    monkeypatch.setattr(lease_clerk, "say", lambda what: None)
    state, away = tmp_path / "state", tmp_path / "away"
    zero = Clerk(str(state / "lease"), "0")
    zero.look()
    assert zero.take(place(1, "zero")) == {"taken": 1}
    state.rename(away)
    state.mkdir()
    for attempt in (zero.look, lambda: zero.take(place(2, "zero"))):
        with pytest.raises(OSError, match="another folder"):
            attempt()
    assert not list(state.iterdir())
    fresh = Clerk(str(state / "lease"), "0")  # of a clerk that was started again
    fresh.look()
    assert "failed" in fresh.take(place(2, "zero"))
    assert not [one for one in (state / "lease").iterdir() if one.name.isdigit()]
    state.rename(tmp_path / "shadow")
    away.rename(state)
    assert zero.take(place(2, "zero")) == {"taken": 2}


def test_a_folder_that_is_none_is_said_once_and_a_bad_line_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = CODE.format(name="messenger.lease_clerk")
    words = [sys.executable, "-c", code, f"{HOUSE}/supervisor", str(tmp_path / "file"), "0", "0.1"]
    sent = b"no json\n" + json.dumps(place(1, "zero")).encode() + b"\n"
    done = subprocess.run(words, input=sent, capture_output=True, timeout=60)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert 0 < len(said) <= 3
    assert all("failed" in one for one in said), said
