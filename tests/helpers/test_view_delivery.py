"""How the view of the group gets to its members: all of it, to all of them, and never much at once."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from ftrun.core.group import membership
from ftrun.core.group.losses import LossWait
from ftrun.helpers.messenger.group_view import BURST, RATE, CoordinatorSide, ViewDelivery
from ftrun.messages import group_view as messages
from ftrun.messages.group_view import GroupView
from helpers.test_view_messages import Connection, address, row
from support.recorded_lines import RecordedLines

Sent = list[tuple[int, bytes]]


def view(size: int) -> GroupView:
    rows = tuple(row(rank, health="h" * 250) for rank in range(size))
    return GroupView(1, size, 0, 1000.0, 4, "run", "", (), rows, loss=LossWait((1,), 1, 300.0, "end", code=195))


def delivered(size: int, step: float) -> tuple[Sent, list[int], float]:
    """What was sent, the bytes of each call, and the time of the last one."""
    sent: Sent = []

    def send(rank: int, content: bytes) -> bool:
        sent.append((rank, content))
        return True

    delivery = ViewDelivery(send)
    delivery.begin(view(size), range(1, size))
    now, each = 1000.0, list[int]()
    while delivery.due < math.inf:
        before = len(sent)
        delivery.process(now)
        each.append(sum(len(content) for _, content in sent[before:]))
        now += step
    return sent, each, now - step


def test_the_view_of_a_small_group_is_sent_at_once() -> None:
    sent, each, _ = delivered(8, 1.0)
    assert len(each) == 1
    assert [rank for rank, _ in sent] == list(range(1, 8))


def test_the_view_of_a_large_group_is_sent_little_by_little_to_all_members() -> None:
    sent, each, last = delivered(400, 0.5)
    assert max(each) <= BURST + 0.5 * RATE + messages.LIMIT
    assert sum(each) > 10 * BURST
    assert last - 1000.0 >= (sum(each) - BURST) / RATE - 1.0
    for member in (1, 200, 399):
        parts = [messages.load(GroupView, content) for rank, content in sent if rank == member]
        assert [one.rank for part in parts for one in part.rows] == list(range(400))


def test_what_is_sent_late_has_the_time_at_which_it_is_sent() -> None:
    sent, _, last = delivered(400, 0.5)
    newest = messages.load(GroupView, sent[-1][1])
    assert newest.now >= last - 1.0
    assert newest.loss is not None
    assert newest.loss.left == pytest.approx(300.0 - (newest.now - 1000.0))


def test_a_member_that_takes_nothing_delays_no_other() -> None:
    sent: Sent = []

    def send(rank: int, content: bytes) -> bool:
        sent.append((rank, content))
        return rank != 1

    delivery = ViewDelivery(send)
    delivery.begin(view(3), (1, 2))
    delivery.process(1000.0)
    assert [rank for rank, _ in sent] == [1, 2]
    assert delivery.due == math.inf


def test_news_of_a_large_group_does_not_send_all_rows_to_all_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    size, sent = 300, 0

    def send(rank: int, kind: bytes, content: bytes) -> bool:
        nonlocal sent
        sent += len(content) if kind == messages.VIEW else 0
        return True

    side = CoordinatorSide(address(0, size), RecordedLines(), send)
    known = membership.new_coordinator(0.0, membership.GroupShape(size), 60.0, 10.0)
    there = {rank: Connection() for rank in range(1, size)}
    began = time.monotonic() + 1000
    for second in range(60):  # each second other members begin to work
        for rank in range(1 + second, size, 60):
            side.receive(rank, messages.ROW, messages.dump(row(rank)), began + second)
        side.process(began + second, known, lambda: there)
    assert 0 < sent <= BURST + 60 * RATE
    once = sum(len(messages.dump(row(rank))) for rank in range(1, size)) * size
    assert sent <= 4 * once  # every quarter of a period of 108 s
