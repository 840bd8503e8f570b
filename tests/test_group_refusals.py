"""What the courier says, as PID 1 takes it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftrun.core import events as ev
from ftrun.core.policy import Policy
from ftrun.grouping import Group
from ftrun.peers import Peers


@pytest.mark.parametrize("taken", [False, True])
def test_a_refusal_for_good_ends_only_who_was_never_taken(taken: bool) -> None:
    """A rank 0 that is new, with another version or secret, says nothing against the others of a group."""
    group = Group(2, 1, "127.0.0.1:29470", None, 600.0, "job", "options")
    peers = Peers(group, Policy(), cast(Any, SimpleNamespace()), 0.0)
    if taken:
        peers.hear({"event": "contact", "age": 0.0}, 1.0)
    heard = peers.hear({"event": "refused", "why": "it has another secret than this node", "misfit": True}, 2.0)
    assert isinstance(heard, ev.CutOff) is not taken
    assert [what for what, _ in peers.problems] == ["courier"]
