"""What the courier says, as PID 1 takes it."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.core import events as ev
from ftrun.core.policy import Policy
from ftrun.grouping import Group
from ftrun.pid1.clients.group_messenger import GroupMessenger
from ftrun.wire import messenger as messages


@pytest.mark.parametrize("taken", [False, True])
def test_a_refusal_for_good_ends_only_who_was_never_taken(taken: bool) -> None:
    """A rank 0 that is new, with another version or secret, says nothing against the others of a group."""
    group = Group(2, 1, "127.0.0.1:29470", None, 600.0, "job", "options")
    helpers, place = SimpleNamespace(want=lambda *words, **more: None), SimpleNamespace(path="/run-dir")
    context: Any = SimpleNamespace(
        policy=Policy(), group=group, helpers=helpers, place=place, beat_dir="/beats", records=[]
    )
    client = GroupMessenger(context)
    if taken:
        client.handle(messages.Contact(0.0), time.monotonic())
    heard = client.handle(messages.Refused("it has another secret than this node", True), time.monotonic())
    assert [isinstance(event, ev.CutOff) for event in heard] == ([] if taken else [True])
    assert [record for record, _, _ in context.records] == ["problem"]
