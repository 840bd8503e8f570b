"""The figures of a rank about its own intervals, compared with the same figures computed from all of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun_hooks import layout as at
from ftrun_hooks._beat import Silences, awake
from support.beat_file import BeatDir

MS = 1_000_000


def digested(silences: Sequence[int]) -> tuple[memoryview, list[int]]:
    """The slot after all of these, and after how many of them the supervisor was woken."""
    words, digester, woken = memoryview(bytearray(at.SLOT_WORDS * at.WORD)).cast("Q"), Silences(), []
    rest = iter(silences)
    seen = 0
    while len(batch := list(itertools.islice(rest, digester.batch))) == digester.batch:
        seen += len(batch)
        if digester.digest(words, [s for s in batch if s > at.SHORT]):
            woken.append(seen)
    return words, woken


def percentile(silences: Sequence[int]) -> int:
    """The 99th by nearest rank."""
    return max(at.SHORT, sorted(silences)[-1 - len(silences) // 100])


def test_the_figures_are_updated_after_the_warm_up_and_then_each_hundred() -> None:
    counts = [digested([200 * MS] * n)[0][at.INTERVALS] for n in (0, 1, 9, 10, 99, 100, 199, 200, 1234)]
    assert counts == [0, 1, 1, 10, 10, 100, 100, 200, 1200]
    assert digested([200 * MS] * 1234)[1] == [1, 100]


def test_the_warm_up_is_kept_apart() -> None:
    words, _ = digested([300_000 * MS, *[700 * MS] * 9, *[500 * MS] * 90])
    assert (words[at.SLOWEST_START], words[at.USUAL], words[at.LONGEST]) == (300_000 * MS, 500 * MS, 500 * MS)


@pytest.mark.parametrize(
    "silence",
    [
        lambda i: random.randrange(50, 5000) * MS,
        lambda i: 60_000 * MS if i % 100 == 99 else 1000 * MS,  # a long one in a hundred is not in the percentile
        lambda i: 60_000 * MS if i % 90 == 89 else 1000 * MS,
        lambda i: int((1 + 2 * i / 5000) * 1000) * MS,
        lambda i: 5 * MS,
    ],
    ids=["random", "one in 100", "one in 90", "drift", "short"],
)
def test_the_usual_is_the_99th_percentile_of_the_last_thousand(silence: Callable[[int], int]) -> None:
    random.seed(7)
    silences = [silence(i) for i in range(5000)]
    words, _ = digested(silences)
    assert words[at.USUAL] == percentile(silences[-1000:])
    assert words[at.LONGEST] == max(at.SHORT, *silences[10:])


def test_time_in_sections_is_not_silence(beats: BeatDir) -> None:
    code = """
from ftrun_hooks import _beat, _section
clock = [10**15]
_beat.monotonic_ns = _section.monotonic_ns = lambda: clock[0]
def wait(seconds): clock[0] += int(seconds * 10**9)
ft.beat(0)
from ftrun_hooks._beat import own_slot
own_slot.moved_at = clock[0]
for step in range(1, 200):
    with ft.section("evaluation"): wait(100)
    wait(2); ft.beat(step)
"""
    assert beats.run(code).stderr == ""
    slot = beats.slot()
    assert (slot["intervals"], slot["usual"], slot["longest"]) == (200, 2000 * MS, 2000 * MS)


def test_only_progress_counts(beats: BeatDir) -> None:
    beats.run(
        "import threading\nft.beat(1)\n"
        "def aside():\n for _ in range(500): ft.beat(1)\n"
        "t = threading.Thread(target=aside); t.start(); t.join()"
    )
    assert beats.slot()["intervals"] == 1


@given(st.lists(st.tuples(st.integers(0, 10**11), st.integers(0, 10**12)), max_size=20), st.data())
def test_time_in_which_the_tree_was_frozen_is_not_silence(silences: list[tuple[int, int]], data: st.DataObject) -> None:
    header = memoryview(bytearray(at.HEADER_WORDS * at.WORD)).cast("Q")
    assert awake(silences, header) == [length for length, _ in silences if length > at.SHORT]
    since = data.draw(st.integers(0, 10**12))
    until = data.draw(st.integers(since, 10**12))
    header[at.H_FREEZES + 2], header[at.H_FREEZES + 3] = since, until
    expected = []
    for length, end in silences:
        overlap = max(0, min(end, until) - max(end - length, since)) if length >= at.FREEZE else 0
        expected += [length - overlap] if length - overlap > at.SHORT else []
    assert awake(silences, header) == expected
    assert awake(silences, None) == [length for length, _ in silences if length > at.SHORT]


def test_a_long_silence_waits_until_the_supervisor_has_recorded_a_freeze(beats: BeatDir) -> None:
    """It is digested with the batch after the one in which it ended."""
    code = """
import time
from ftrun_hooks import _beat
clock = [time.monotonic_ns()]
_beat.monotonic_ns = lambda: clock[0]
for step in range(1, 100):
    clock[0] += 10**6; ft.beat(step)
clock[0] += 45 * 10**9; ft.beat(100)
print(_beat.own_slot.words[15] // 10**6, _beat.own_slot.words[16] // 10**6)
_beat.own_slot.header[16], _beat.own_slot.header[17] = clock[0] - 44 * 10**9, clock[0]
clock[0] += 3 * 10**9
for step in range(101, 201):
    clock[0] += 10**6; ft.beat(step)
print(_beat.own_slot.words[16] // 10**6)
"""
    result = beats.run(code)
    assert result.stderr == ""
    assert result.stdout.split() == ["100", "100", "3001"]
