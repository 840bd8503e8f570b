"""The picture of a run: its labels are readable, and it is only a picture."""

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from ftctl.timeline import axis, html, timeline
from ftctl.timeline.timeline import NARROWEST
from ftrun.drawing import svg
from ftrun.drawing.shapes import Picture, Polyline, Rect, Text, text_width
from ftrun.records.past.history import History
from support.scripted import BEGAN, Script, fold, long_run

NASTY = "</text><script>alert(1)</script>\x1b[31m&\"'\x00\ud800 \u202e]]>"
HANGS = "rank 3 at step 25, at x.py:1 f"


def hung(times: int, lasting: float = 30.0) -> Script:
    script = Script()
    for number in range(times):
        script.starts("hang" if number else "first", lasting / 20, 20).after(lasting).saves(25).hangs(25, lasting / 3)
    return script.starts("hang", lasting / 20, 25).after(lasting).ends()


def history_of(script: Script, run_dir: str = "/tmp/run") -> History:
    return fold(run_dir, script.records, script.steps, BEGAN + 1e7)


RUNS = {
    "nothing": History("/tmp/run"),
    "an instant": history_of(Script().starts(startup=0, step=None).ends("not-found", 127)),
    "no steps": history_of(Script().starts(step=None).after(2).ends()),
    "half a second": history_of(Script().starts(startup=0.1).after(0.4).ends()),
    "one hang": history_of(hung(1)),
    "five hangs": history_of(hung(5)),
    "thirty hangs": history_of(hung(30, 900)),
    "three weeks": history_of(long_run(5, 21 * 86400)),
    "two hundred starts": history_of(long_run(200, 9 * 86400)),
    "under way": history_of(Script().starts().after(50).stepped(10, 12)),
    "years": history_of(Script().starts().after(3e8).saves(10**15).ends()),
    "far apart": history_of(Script().starts().after(50).ends().after(9e5).starts("failure").after(60).ends()),
    "a nasty one": history_of(Script().starts(command=[NASTY]).after(9).hangs(4).ends(NASTY, 195), NASTY),
}


def texts(picture: Picture) -> list[tuple[Text, tuple[float, float, float, float]]]:
    """The texts, each with the box that it needs."""
    found = []
    for shape in picture.shapes:
        if isinstance(shape, Text) and shape.text:
            width = text_width(shape.text, shape.size, shape.bold)
            left = shape.x - {"start": 0.0, "middle": width / 2, "end": width}[shape.anchor]
            found.append((shape, (left, shape.y - 0.75 * shape.size, left + width, shape.y + 0.2 * shape.size)))
    return found


@pytest.mark.parametrize("width", [timeline.WIDTH, NARROWEST])
@pytest.mark.parametrize("name", RUNS)
def test_labels_do_not_overlap_and_all_shapes_lie_in_the_picture(name: str, width: float) -> None:
    picture = timeline.draw(RUNS[name], width)
    boxes = texts(picture)
    for shape, (left, top, right, bottom) in boxes:
        assert min(left, top) >= 0, shape
        assert right <= picture.width, shape
        assert bottom <= picture.height, shape
    for (one, a), (other, b) in combinations(boxes, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (one, other)
    assert len(picture.shapes) < 6000
    for found in picture.shapes:
        if isinstance(found, Rect):
            assert min(found.x, found.y, found.width) >= 0, found
            assert found.x + found.width <= picture.width, found
            assert found.y + found.height <= picture.height, found
        elif isinstance(found, Polyline):
            assert all(-1 <= x <= picture.width + 1 and 0 <= y <= picture.height for x, y in found.points), found


@pytest.mark.parametrize("name", RUNS)
def test_svg_is_well_formed_without_scripts_or_links(name: str) -> None:
    text = svg.render(timeline.draw(RUNS[name]))
    root = ET.fromstring(text)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    shapes = {"rect", "line", "polyline", "polygon", "text", "title"}
    assert tags <= shapes | {"svg", "desc", "style", "defs", "pattern"}
    assert not re.search(r"\son\w+=|href|javascript:|@import|url\((?!#)", text)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert root.find("{*}title") is not None
    assert set(re.findall(r"url\(#([\w-]+)\)", text)) <= set(ids)


def test_the_picture_has_labels_and_a_legend() -> None:
    found = [shape.text for shape, _ in texts(timeline.draw(RUNS["one hang"]))]
    assert f"hang: {HANGS}" in found
    assert "Ended with 0 (succeeded): because" in found
    assert any(text.startswith("hang 11s (silence") for text in found)
    assert {"1", "2 after hang", "checkpoint (1)", "hang (1)"} <= set(found)


def test_lost_time_is_as_wide_as_it_was_long() -> None:
    history = RUNS["one hang"]
    parts = axis.segments(history.runs, timeline.LEFT, timeline.WIDTH - timeline.RIGHT)
    scale = (parts[-1].right - parts[0].left) / history.wall
    strip = [s for s in timeline.draw(history).shapes if isinstance(s, Rect) and s.height == timeline.STRIP]
    (hang,) = (shape for shape in strip if shape.fill == "hang")
    assert hang.width == pytest.approx(history.totals["hang"] * scale, rel=0.01)
    assert hang.title.startswith("hang: 11s from 2026-03-01 12:00:3")


def test_many_losses_of_less_than_a_pixel_are_shown_in_sum() -> None:
    script = Script()
    for number in range(2000):
        script.starts("hang" if number else "first", startup=0.5).after(15).saves(number).hangs(number, 0.3, 0.0)
    history = history_of(script.starts("hang", startup=0).ends())
    shares = {why: lost / history.wall for why, lost in history.totals.items()}
    assert 0.1 < sum(shares.values()) < 0.15
    strip = [s for s in timeline.draw(history).shapes if isinstance(s, Rect) and s.height == timeline.STRIP]
    room = timeline.WIDTH - timeline.LEFT - timeline.RIGHT
    for why, share in shares.items():
        assert sum(s.width for s in strip if s.fill == why) / room == pytest.approx(share, abs=0.005), why


def test_a_gap_between_two_runs_is_cut_out_and_labelled() -> None:
    history = RUNS["far apart"]
    first, second = axis.segments(history.runs, 0, 1000)
    assert second.left - first.right == axis.BREAK
    assert any(text.text == "250h" for text, _ in texts(timeline.draw(history)))


def test_the_page_needs_no_other_file_and_escapes_text() -> None:
    page = html.render(RUNS["a nasty one"])
    assert "<script" not in page
    assert "alert(1)&lt;/script&gt;" in page
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org/2000/svg)", page)
    assert page.count("<main") == page.count("<h1") == 1
    assert re.findall(r"<th scope=\"row\">(\d+)</th>", page) == ["1"]
    assert "prefers-color-scheme:dark" in page
    page.encode()
