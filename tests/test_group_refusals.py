"""What the messenger says, as PID 1 takes it."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.config.group_config import Group
from ftrun.core.machine import events as ev
from ftrun.core.rules.policy import Policy
from ftrun.messages import messenger as messages
from ftrun.pid1.clients.group_messenger import GroupMessenger


@pytest.mark.parametrize("taken", [False, True])
def test_a_refusal_for_good_ends_only_who_was_never_taken(taken: bool) -> None:
    """A rank 0 that is new, with another version or secret, says nothing against the others of a group."""
    group = Group(2, 1, "127.0.0.1:29470", None, 600.0, "job", "options")
    helpers, place = SimpleNamespace(add=lambda *arguments, **more: None), SimpleNamespace(path="/run-dir")
    context: Any = SimpleNamespace(
        policy=Policy(), group=group, helpers=helpers, place=place, beat_dir="/beats", records=[]
    )
    client = GroupMessenger(context)
    if taken:
        client.handle(messages.Contact(0.0), time.monotonic())
    heard = client.handle(messages.Refused("it has another secret than this node", True), time.monotonic())
    assert [isinstance(event, ev.CoordinatorLost) for event in heard] == ([] if taken else [True])
    assert [record for record, _, _ in context.records] == ["problem"]
