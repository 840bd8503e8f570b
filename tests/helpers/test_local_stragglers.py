"""A rank that is slow for a minute is told to PID 1, from the slots of the beat file."""

from typing import Any

from ftrun.helpers.messenger.stragglers import LocalStragglers
from ftrun.messages.messenger import Straggler
from ftrun_hooks import layout as at


class Sent(list[Any]):
    def send(self, message: object) -> None:
        self.append(message)


def slot(rank: int, step: int, moved: float, flags: int = 0) -> list[int]:
    row = [0] * at.SLOT_WORDS
    row[at.RANK], row[at.PID], row[at.STEP], row[at.MOVED_AT] = rank, 100 + rank, step + 1, int(moved * 1e9)
    row[at.FLAGS] = flags
    return row


def follow(seconds: int, slow: float, flags: int = 0) -> list[Any]:
    sent = Sent()
    watch = LocalStragglers(sent)  # type: ignore[arg-type]
    for now in range(1, seconds + 1):
        rows = [slot(rank, now * 10, now) for rank in range(3)]
        steps = int(now * 10 / slow)
        watch.follow([*rows, slot(3, steps, steps * slow / 10, flags)], 1, float(now))
    return list(sent)


def test_a_slow_rank_is_told_once_with_its_times() -> None:
    (told,) = follow(150, 2.0)
    assert isinstance(told, Straggler)
    assert (told.rank, round(told.step_time, 2), round(told.usual, 2), told.member) == (3, 0.2, 0.1, None)
    assert 60 <= told.seconds < 70


def test_a_rank_that_is_a_little_slow_or_done_is_not() -> None:
    assert follow(150, 1.4) == []
    assert follow(150, 2.0, at.DONE) == []
    assert follow(40, 2.0) == []
