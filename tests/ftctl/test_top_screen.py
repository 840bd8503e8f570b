"""`ftctl top` at any size: the most important lines are shown, and none is wider than the terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from ftctl.top import screen as top
from ftctl.top.keys import Chosen, LongText
from ftctl.top.screen import Screen, folded, render
from ftrun.records.present.snapshot import JobNow, RankNow, Snapshot
from ftrun.records.present.summary import headline
from support.snapshots import snapshot

SIZES = [(80, 24), (40, 10), (200, 60), (20, 5), (1, 1), (80, 3)]
NASTY = "\x1b[2J\x1b]0;x\x07\n\r\t名前名前\ud800\u202e"


PACES = [1.0] * 31 + [2.0] * 29
RECORDS = [
    {"time": f"2026-11-21T22:00:{n:02}.000Z", "event": "progress", "attempt": 1, "step": n, "checkpoint": None}
    for n in range(40)
] + [{"time": "2026-11-21T22:01:00.000Z", "event": "hang", "rank": 3, "why": NASTY}]


def drawn(shown: Snapshot, width: int = 80, height: int = 24, unicode: bool = True) -> list[str]:
    """As in a terminal of that size, without colours."""
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, markup=False, highlight=False)
    console.print(top.render(shown, PACES, RECORDS, "q quits", Screen(width, height, unicode)), end="")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text.split("\n")


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("count", [0, 8, 1024])
def test_the_screen_fits_the_terminal(count: int, width: int, height: int, unicode: bool) -> None:
    for devices in (0, 8):
        lines = drawn(snapshot(count, devices, problems=(NASTY,), command=(NASTY, "x" * 500)), width, height, unicode)
        assert len(lines) <= height
        assert max(map(cell_len, lines)) <= width
        assert all(line.isprintable() for line in lines)
        if not unicode:
            assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("count", [1, 8, 1024])
@pytest.mark.parametrize(("width", "height"), SIZES[:3])
def test_the_most_important_lines_are_shown(count: int, width: int, height: int) -> None:
    text = "\n".join(drawn(snapshot(count, 8), width, height))
    assert text.startswith("ftrun: running")
    assert f"31s of 38s, rank {min(3, count // 2)}" in text
    assert "812" in text
    assert text.endswith("q quits")
    if height >= 24:
        for part in ("hang 1 of 3", "99% of 2h 3m", "91%", "640 W", "hang in attempt 1", "rank=3"):
            assert part in text, part


def test_the_stalest_rank_is_first_and_the_rest_are_counted() -> None:
    lines = drawn(snapshot(1024, 0))
    head = next(i for i, line in enumerate(lines) if line.startswith("rank "))
    assert lines[head + 1].split()[0] == "3"
    (rest,) = [line for line in lines if line.startswith("and ")]
    shown = lines.index(rest) - head - 1
    assert rest.startswith(f"and {1024 - shown} more: ")
    moving, section = (int(word) for word in rest.split() if word.isdigit() and word != str(1024 - shown))
    assert moving + section == 1024 - shown


GROUP = [("member host     state      attempt  step heartbeat  trouble", False)]
GROUP += [(f"     {number} node-{number} running", number == 7) for number in range(8)]


@pytest.mark.parametrize(("height", "first"), [(22, 7), (50, 0)])
def test_members_that_do_not_fit_are_counted(height: int, first: int) -> None:
    """Those that need attention come first then."""
    console = Console(file=io.StringIO(), width=80, height=height, color_system=None)
    console.print(render(snapshot(2, 0), PACES, RECORDS, "q quits", Screen(80, height, True), GROUP), end="")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    rows = [line for line in text.split("\n") if " node-" in line]
    assert rows[0].split()[0] == str(first)
    more = f"and {8 - len(rows)} more members: ftctl status --all"
    assert (more in text) is (len(rows) < 8) is (height < 24)


@pytest.mark.parametrize(
    ("more", "mood"),
    [
        ({"phase": "done", "alive": False, "verdict": "succeeded", "exit_code": 0}, "bold green"),
        ({"phase": "done", "alive": False, "verdict": "hang-limit", "exit_code": 195}, "bold red"),
        ({"phase": "cut off", "alive": False}, "bold red"),
        ({"paused": 30.0}, "bold reverse"),
        ({"phase": "suspect"}, "bold red"),
        ({"phase": "stopping"}, "bold yellow"),
        ({}, "bold yellow"),
        ({"stalest": None}, "bold green"),
        ({"stalest": None, "suspended": 30.0}, "bold yellow"),
        ({"stalest": None, "recovery": "replacing rank 1"}, "bold yellow"),
        ({"stalest": None, "job": JobNow("the next start waits for member 2", "it waits")}, "bold yellow"),
        ({"stalest": None, "job": JobNow("member 0 is missing", "it is missing", True)}, "bold red"),
    ],
)
def test_the_first_line_is_the_headline_of_status(more: dict[str, Any], mood: str) -> None:
    shown = snapshot(8, **more)
    assert drawn(shown, 300)[0].startswith(f"ftrun: {headline(shown)}")
    assert top.mood(shown) == mood


def test_after_the_end_the_reason_is_shown() -> None:
    text = "\n".join(drawn(snapshot(8, phase="done", alive=False, exit_code=195, verdict="hang-limit", why="a reason")))
    assert "a reason" in text
    assert "1 after a hang" in text
    assert "suspect" not in text


def test_ranks_are_sorted_and_scrolled_as_chosen() -> None:
    found = tuple(RankNow(n, 100 + n, "moving", step=50 - n, moved=float(n), step_time=1.0 + n % 3) for n in range(30))
    shown = snapshot(30)._replace(ranks=found)

    def first(*keys: str) -> list[str]:
        chosen = Chosen()
        for key in keys:
            chosen = chosen.pressed(key)
        text = render(shown, [], [], "note", Screen(80, 24), chosen=chosen).plain.splitlines()
        at = next(n for n, line in enumerate(text) if line.startswith("rank"))
        return [line.split()[0] for line in text[at + 1 : at + 4]]

    assert first("s") == ["0", "1", "2"], "by rank"
    assert first("s", "r") == ["29", "28", "27"]
    assert first("s", "s") == ["29", "28", "27"], "the lowest step first"
    assert first("s", "s", "s", "s") == ["2", "5", "8"], "the slowest first, equal ones by their numbers"
    assert first("s", "j", "\x1b[B", "j", "k") == ["2", "3", "4"]
    assert first("s", "j", "g") == ["0", "1", "2"]
    assert first(*"ssssss") == first(), "all orders in turn"


def test_progress_is_folded() -> None:
    progress = [{"event": "progress", "by": "step", "attempt": 1, "step": n} for n in range(5)]
    other = {"event": "hang", "attempt": 1}
    assert folded([*progress, other, progress[0]]) == [(progress[-1], 5), (other, 1), (progress[0], 1)]


@pytest.mark.parametrize(
    ("keys", "at"), [("jj", 2), ("jjk", 1), (" ", 15), ("kk", 0), ("  b", 15), (" " * 9, 99), (" g", 0), ("q", None)]
)
def test_keys_move_a_long_text_or_close_it(keys: str, at: int | None) -> None:
    text: LongText | None = LongText("report", ("x" * 200, "a\x1b[2Jb", *(f"line {number}" for number in range(98))))
    for key in keys:
        text = text and text.pressed(key)
    assert (text and text.at) == at
    shown = text.render(20, 5, unicode=False).plain.split("\n") if text else []
    assert len(shown) <= 5
    assert all(len(line) <= 20 and "\x1b" not in line for line in shown)
