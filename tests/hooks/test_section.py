"""Sections: nesting, credit, threads, deadlines."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ftrun_hooks as ft
from ftrun_hooks._section import LONGEST, nanoseconds
from support.beat_file import BeatDir

SHOW = (
    "import json, time\nfrom support import beat_file\n"
    "def show(): print(json.dumps([beat_file.slot(), beat_file.sections()]))\n"
)


def shown(beats: BeatDir, code: str) -> list[Any]:
    return [json.loads(line) for line in beats.output(SHOW + code).splitlines()]


def test_sections_nest(beats: BeatDir) -> None:
    code = "with ft.section('out', '20m'):\n show()\n with ft.section('in'): show()\n show()\nshow()"
    one, two, three, none = shown(beats, code)
    assert [slot["depth"] for slot, _ in (one, two, three, none)] == [1, 2, 1, 0]
    assert [[name for name, *_ in table] for _, table in (one, two, three, none)] == [
        ["out"],
        ["out", "in"],
        ["out"],
        [],
    ]
    (_, started, timeout), (_, inner, untimed) = two[1]
    assert timeout == 20 * 60 * 10**9
    assert untimed == 0
    assert 0 < started <= inner < time.monotonic_ns()
    assert all(slot["sequence"] % 2 == 0 for slot, _ in (one, two, three, none))
    assert none[0]["alive_at"] == 0  # no section is a beat


def test_sections_beyond_the_table_are_counted(beats: BeatDir) -> None:
    (slot, table), (after, empty) = shown(
        beats,
        "import contextlib\nwith contextlib.ExitStack() as stack:\n"
        " for n in range(9): stack.enter_context(ft.section(str(n)))\n show()\nshow()",
    )
    assert slot["depth"] == 9
    assert [name for name, *_ in table] == list("012345")
    assert (after["depth"], empty) == (0, [])


def test_the_time_in_the_outermost_section_is_credit_until_the_next_progress(beats: BeatDir) -> None:
    slots = shown(
        beats,
        "ft.beat(1)\nwith ft.section('a'):\n with ft.section('b'): time.sleep(0.05)\n show()\n"
        "show()\nwith ft.section('c'): time.sleep(0.05)\nshow(); ft.beat(2); show()",
    )
    inside, once, twice, moved = [slot["credit"] for slot, _ in slots]
    assert inside == moved == 0
    assert once > 50_000_000
    assert twice > once + 50_000_000


def test_credit_begins_with_the_last_progress_inside(beats: BeatDir) -> None:
    code = "began = time.monotonic_ns()\nwith ft.section('a'):\n time.sleep(0.2); ft.beat(1)\n"
    ((slot, elapsed),) = shown(beats, code + "print(json.dumps([beat_file.slot(), time.monotonic_ns() - began]))")
    assert 0 < slot["credit"] <= elapsed - 200_000_000


def test_overlapping_sections_of_two_threads_are_counted_once(beats: BeatDir) -> None:
    (both, table), (one, left), (none, empty) = shown(
        beats,
        "ft.beat(1)\na, b = ft.section('a'), ft.section('b')\nbegan = time.monotonic_ns()\n"
        "a.__enter__(); b.__enter__(); show(); time.sleep(0.05); a.__exit__(); show(); time.sleep(0.05); b.__exit__()\n"
        "assert beat_file.slot()['credit'] <= time.monotonic_ns() - began; show()",
    )
    assert [name for name, *_ in table] == ["a", "b"]
    assert [name for name, *_ in left] == ["b"]
    assert (both["depth"], one["depth"], none["depth"], empty) == (2, 1, 0, [])
    assert none["credit"] > 100_000_000


def test_many_threads_leave_the_table_consistent(beats: BeatDir) -> None:
    ((slot, table),) = shown(
        beats,
        "import threading, sys\nsys.setswitchinterval(1e-5)\n"
        "def work():\n for n in range(300):\n  with ft.section('a', 5):\n   with ft.section('b'): ft.beat(n)\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\nshow()",
    )
    assert (slot["depth"], slot["sequence"] % 2, table) == (0, 0, [])
    assert slot["sequence"] == 8 * 300 * 2 * 2 * 2


def test_an_exception_closes_the_section_and_propagates(beats: BeatDir) -> None:
    ((slot, _),) = shown(
        beats, "try:\n with ft.section('a'): raise KeyError\nexcept KeyError: show()\nelse: raise SystemExit(1)"
    )
    assert slot["depth"] == 0


def test_a_decorated_function_keeps_its_name_and_may_call_itself(beats: BeatDir) -> None:
    (slot, table), (after, _) = shown(
        beats,
        "@ft.section('f', 9.5)\ndef f(n):\n 'doc'\n if n: return f(n - 1)\n show(); return 42\n"
        "assert f(2) == 42 and f.__name__ == 'f' and f.__doc__ == 'doc'; show()",
    )
    assert slot["depth"] == 3
    assert {timeout for _, _, timeout in table} == {9_500_000_000}
    assert after["depth"] == 0


def test_one_section_object_may_be_entered_again(beats: BeatDir) -> None:
    (twice, _), (after, _) = shown(
        beats, "s = ft.section('s')\nwith s:\n with s: show()\nwith s: pass\ns.__exit__(); show()"
    )
    assert (twice["depth"], after["depth"]) == (2, 0)


def test_a_long_name_is_cut_between_characters(beats: BeatDir) -> None:
    ((_, table),) = shown(beats, "with ft.section('a' + 'ö' * 40): show()")
    assert table[0][0] == "a" + "ö" * 23


@pytest.mark.parametrize(
    ("next_look", "timeout", "rings"),
    [
        ("never", "None", True),
        ("never", "'1d'", True),
        ("soon", "None", False),
        ("soon", "'1d'", False),
        ("soon", "'1ms'", True),
    ],
)
def test_a_section_rings_when_its_deadline_comes_before_the_next_look(
    beats: BeatDir, next_look: str, timeout: str, rings: bool
) -> None:
    if next_look == "soon":
        beats.plan_look(time.monotonic_ns() + 600 * 10**9)
    beats.run(f"import os; ft.beat(); ft.section('a', {timeout}).__enter__(); os._exit(0)")
    assert beats.rings() == 2 + rings


@pytest.mark.parametrize(
    "bad", ["", "5", "s", "-1s", "1 week", "1e3s", "nans", "²s", 0, -1, float("nan"), float("inf"), True]
)
def test_a_bad_duration_is_a_value_error_even_outside(bad: Any) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        ft.section("a", bad)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500ms", 5e8), ("90s", 9e10), ("10m", 6e11), ("1h", 3.6e12), ("1d", 8.64e13), ("1.5h", 5.4e12), (" 2s ", 2e9)],
)
def test_durations_have_units(text: str, expected: float) -> None:
    assert nanoseconds(text) == expected


LONG_DURATIONS = st.builds("{}{}".format, st.integers(0, 10**400), st.sampled_from(["ms", "s", "m", "h", "d"]))


@given(st.one_of(st.text(max_size=20), st.integers(), st.floats(), LONG_DURATIONS))
def test_any_duration_fits_its_word_or_is_a_value_error(value: object) -> None:
    try:
        assert 0 < nanoseconds(value) <= LONGEST
    except ValueError as error:
        assert "not a duration" in str(error)  # noqa: PT017
