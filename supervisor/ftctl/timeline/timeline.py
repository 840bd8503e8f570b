"""The picture of a run: attempts, steps, checkpoints, failures, and where the time went."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import cos, pi, sin
from typing import Final

from ftctl.timeline.axis import Segment, position, round_numbers, segments, short_number, ticks
from ftrun.core.accounting.totals import NO_GOODPUT
from ftrun.core.text.durations import seconds
from ftrun.drawing.shapes import HATCHES, Line, Picture, Polyline, Rect, Shape, Text, fitted, text_width
from ftrun.records.files.steps import StepSample
from ftrun.records.past.attempts import Mark
from ftrun.records.past.history import History
from ftrun.records.past.lost_time import REASONS, AttemptSpan

WIDTH: Final = 1200.0
NARROWEST, WIDEST = 320, 2400  # px, on the page
LEFT, RIGHT = 76.0, 24.0  # margins
HEAD, LABELS, PLOT, FLAT = 88.0, 40.0, 250.0, 46.0  # heights; FLAT: of a plot without steps
STRIP, GAP = 24.0, 8.0
CROWD: Final = 40  # flags; more of them are drawn as lines, without labels
LABEL_WIDTH: Final = 330.0  # px beside a flag
FLAGS: Final = {"hang": "hang", "fault": "device fault", "failure": "failure", "stop": "stop", "order": "order"}
LEGEND: Final = {
    "saved": "checkpoint",
    "suspect": "evidence is collected",
    **FLAGS,
    "escalated": "gives up",
    "cleared": "suspicion cleared",
}
COLOURS: Final = {"hang": "hang", "fault": "fault", "failure": "failure", "escalated": "bad"}
TEXT_COLOURS: Final = COLOURS | {"hang": "hang-text"}  # text needs more contrast than shapes
MEANINGS: Final = {
    "startup": "until the first heartbeat",
    "hang": "silence up to the verdict",
    "redone": "work lost by a restart",
    "discarded": "work lost by the end",
    "recovery": "until all ranks move in the next round",
    "stopping": "until the tree is dead",
    "healing": "a device is healed",
    "waiting": "until the next start",
    "paused": "by an operator",
}


def draw(history: History, width: float = WIDTH) -> Picture:
    """Pure.  The number of shapes is bounded by the number of pixels, whatever the history."""
    axis = segments(history.runs, LEFT, width - RIGHT)
    shapes = _head(history, width)
    if not axis:
        return Picture(width, HEAD, "ftrun", describe(history), tuple(shapes))
    top = HEAD + (LABELS if history.marks or history.samples else GAP)
    plot = PLOT if history.samples else FLAT
    bottom = top + plot
    lost = _lost_columns(history, axis)
    # Faintly behind the curve, where they explain its gaps.
    shapes += [Rect(left, top, right - left, bottom - top, why, 0.16) for left, right, why, _ in lost]
    shapes += _steps(history, axis, top, bottom) if history.samples else _no_steps(top, bottom, width)
    shapes += _marks(history, axis, top, bottom, width)
    shapes += _attempts(history, axis, bottom + GAP)
    shapes += _time_strip(lost, axis, bottom + GAP + STRIP + 4)
    foot = bottom + GAP + 2 * STRIP + 4
    shapes += _time_axis(axis, top, foot)
    legend, height = _legend(history, foot + 62, width)
    return Picture(width, height, _title(history), describe(history), tuple(shapes + legend))


def describe(history: History) -> str:
    """The run in one or two sentences, for readers who do not see the picture."""
    if not history.runs:
        return verdict(history)
    lost = ", ".join(f"{seconds(value)} {why}" for why, value in history.shown_totals.items())
    starts = f"{len(history.attempts)} start{'s' if len(history.attempts) != 1 else ''} in {seconds(history.wall)}"
    return f"{starts}; {_goodput(history)}{'; lost: ' + lost if lost else ''}. {verdict(history)}"


def _goodput(history: History) -> str:
    return f"goodput - ({NO_GOODPUT})" if history.goodput is None else f"goodput {history.goodput:.0%}"


def verdict(history: History) -> str:
    if not history.runs:
        return "No ftrun has started here yet."
    if history.verdict is None:
        return "It is running." if history.open else "It ended without a verdict."
    why = (history.why or "").partition(" (report: ")[0]
    return f"Ended with {history.exit_code} ({history.verdict}): {why}"


def _title(history: History) -> str:
    return " ".join(history.command) or history.run_dir


def _head(history: History, width: float) -> list[Shape]:
    room = width - LEFT - RIGHT + 40
    title = fitted(_title(history), 18, room, bold=True)
    parts = [history.cut, history.run_dir] if history.cut else [history.run_dir]
    if history.runs:
        ended = "now" if history.open else stamp(history.runs[-1][1], history.runs[0][0])
        parts.append(f"{stamp(history.runs[0][0])} to {ended} UTC")
        parts.append(describe(history).partition(";")[0].partition(". ")[0])
        parts.append(_goodput(history))
    good = history.exit_code == 0 or (history.verdict is None and history.open)
    colour = "muted" if not history.runs else "good" if good else "bad"
    return [
        Text(LEFT - 40, 30, title, 18, bold=True),
        Text(LEFT - 40, 52, fitted("  ·  ".join(parts), 13, room), 13, "muted"),
        Rect(LEFT - 40, 63, 12, 12, colour),
        Text(LEFT - 22, 74, fitted(verdict(history), 14, room - 18, bold=True), 14, colour, bold=True),
    ]


def stamp(at: float, since: float | None = None) -> str:
    """Date and time in UTC; only the time if it is on the day of `since`."""
    moment = datetime.fromtimestamp(at, UTC)
    same = since is not None and datetime.fromtimestamp(since, UTC).date() == moment.date()
    return moment.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S")


def _lost_columns(history: History, axis: Sequence[Segment]) -> list[tuple[float, float, str, str]]:
    """The lost time as (left, right, reason, title).  Intervals of less than a pixel are added up until they fill one,
    so that there are not more columns than pixels, and in sum they show as much time as was lost."""
    small: dict[int, dict[str, float]] = {}
    found: list[tuple[float, float, str, str]] = []
    for interval in history.lost:
        left, right = position(interval.since, axis), position(interval.until, axis)
        lasted = interval.until - interval.since
        if right - left >= 1:
            title = f"{interval.why}: {seconds(lasted)} from {stamp(interval.since)}"
            found.append((left, right, interval.why, title))
        else:
            reasons = small.setdefault(int(left), {})
            reasons[interval.why] = reasons.get(interval.why, 0.0) + lasted
    pixel = history.drawn_wall / sum(segment.right - segment.left for segment in axis)
    owed = dict.fromkeys(REASONS, 0.0)
    for column, reasons in small.items():
        for why, value in reasons.items():
            owed[why] += value
        if sum(owed.values()) > pixel / 2:
            title = ", ".join(f"{why}: {seconds(value)}" for why, value in reasons.items())
            most = max(owed, key=lambda why: owed[why])
            owed[most] -= pixel
            found.append((column, column + 1, most, title))
    return sorted(found)


def _no_steps(top: float, bottom: float, width: float) -> list[Shape]:
    middle = (top + bottom) / 2
    return [
        Rect(LEFT, top, width - LEFT - RIGHT, bottom - top, "band", 0.6),
        Text(width / 2, middle + 4, "no steps were reported", 13, "muted", "middle"),
    ]


def _steps(history: History, axis: Sequence[Segment], top: float, bottom: float) -> list[Shape]:
    """A curve for each attempt; where ranks are apart, also the band between the slowest and the fastest."""
    known = [step for sample in history.samples for step in (sample.low, sample.high)]
    known += [checkpoint.step for checkpoint in history.checkpoints if checkpoint.step is not None]
    grid = round_numbers(min(known), max(known))
    low, high = grid[0], grid[-1]

    def height(step: int) -> float:
        return bottom - (bottom - top) * (step - low) / (high - low)

    found: list[Shape] = []
    for step in grid:
        found.append(Line(axis[0].left, height(step), axis[-1].right, height(step), "grid"))
        found.append(Text(LEFT - 8, height(step) + 4, short_number(step), 12, "muted", "end"))
    found.append(Text(LEFT - 8, top - 12, "step", 12, "muted", "end"))
    begins = [attempt.since for attempt in history.attempts]
    curves: dict[tuple[int, int], list[StepSample]] = {}
    for sample in history.samples:  # attempts may have the same number, where the counts of a run dir were lost
        curves.setdefault((bisect_right(begins, sample.at), sample.attempt), []).append(sample)
    for samples in curves.values():
        highs = _thinned([(position(s.at, axis), height(s.high)) for s in samples])
        if any(s.low < s.high for s in samples):
            lows = _thinned([(position(s.at, axis), height(s.low)) for s in samples])
            found.append(Polyline((*highs, *reversed(lows)), fill="curve", opacity=0.2))
            found.append(Polyline(lows, "curve", 1, opacity=0.6))
        if len(highs) == 1:
            highs = (highs[0], (highs[0][0] + 1.5, highs[0][1]))
        found.append(Polyline(highs, "curve", 1.8))
    last, size = -9.0, 4.2 if len(history.checkpoints) < 80 else 3.0
    for saved in history.checkpoints:
        x = position(saved.at, axis)
        if saved.step is None or x - last < 1.7 * size:
            continue
        last = x
        y = min(bottom, max(top, height(saved.step)))
        found.append(_diamond(x, y, size, f"checkpoint at step {saved.step}, {stamp(saved.at)}"))
    return found


def _thinned(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most four points a pixel: the first, the lowest, the highest and the last."""
    by_column: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        by_column.setdefault(int(point[0]), []).append(point)
    found: list[tuple[float, float]] = []
    for column in by_column.values():
        if len(column) > 4:
            lowest, highest = min(column, key=lambda p: p[1]), max(column, key=lambda p: p[1])
            column = sorted({column[0], lowest, highest, column[-1]})
        found += column
    return tuple(found)


def _diamond(x: float, y: float, size: float, title: str) -> Polyline:
    points = ((x, y - size), (x + size, y), (x, y + size), (x - size, y))
    return Polyline(points, "ground", 1, "saved", title=title)


def _flag(x: float, y: float, fill: str, title: str) -> Polyline:
    return Polyline(((x - 6, y - 10), (x + 6, y - 10), (x, y)), "ground", 1, fill, title=title)


def _marks(history: History, axis: Sequence[Segment], top: float, bottom: float, width: float) -> list[Shape]:
    """A flag above the plot for what ended an attempt, with a label where there is room; a small circle for a suspicion
    that was cleared; and a bar while evidence was collected."""
    lines: list[Shape] = []
    flags: list[Shape] = []
    last: dict[str, float] = {}
    heads: list[tuple[float, Mark]] = []
    suspected: float | None = None
    crowded = _crowded(history)
    for mark in history.marks:
        x = position(mark.at, axis)
        if mark.kind == "suspect":
            suspected = x
            continue
        if suspected is not None and x - suspected >= 1:
            lines.append(
                Rect(suspected, top, x - suspected, 4, "evidence", title=f"evidence was collected, {mark.text}")
            )
        suspected = None
        if x - last.get(mark.kind, -9) < 4:
            continue
        last[mark.kind] = x
        title = f"{mark.kind}: {mark.text}, {stamp(mark.at)}"
        if mark.kind == "cleared":
            flags.append(Polyline(_circle(x, top + 9), "muted", 1.4, "ground", title=f"suspicion {title}"))
            continue
        colour = COLOURS.get(mark.kind, "muted")
        lines.append(Line(x, top, x, bottom, colour, 1, dashed=True, opacity=0.25 if crowded else 0.8))
        flags.append(Rect(x - 1, top - 12, 2, 11, colour, title=title) if crowded else _flag(x, top, colour, title))
        if mark.kind != "escalated":
            heads.append((x, mark))
    return [*lines, *flags, *([] if crowded else _labels(heads, last.get("escalated"), top, width))]


def _crowded(history: History) -> bool:
    return sum(mark.kind in FLAGS for mark in history.marks) > CROWD


def _circle(x: float, y: float) -> tuple[tuple[float, float], ...]:
    return tuple((x + 4 * cos(turn * pi / 6), y + 4 * sin(turn * pi / 6)) for turn in range(12))


def _labels(heads: Sequence[tuple[float, Mark]], end: float | None, top: float, width: float) -> list[Shape]:
    """In the row of the flags, or in the row above to either side, where most of the label fits; a flag without room
    for one has only its title."""
    found: list[Shape] = []
    taken = [-1.0, -1.0]  # where the last label of each row ends
    flags = [*(x for x, _ in heads), *([end] if end is not None else []), width]
    for x, mark in heads:
        kind = FLAGS[mark.kind]
        following = min(flag for flag in flags if flag > x)
        choices = []
        rooms = (following - x - 24, min(LABEL_WIDTH, width - RIGHT - x), min(LABEL_WIDTH, x - max(taken[1], LEFT)))
        for row, left, room in zip((0, 1, 1), (x + 10, x - 5, None), rooms, strict=True):
            label = fitted(f"{kind}: {mark.text}", 12, room)
            left = x + 5 - text_width(label, 12) if left is None else left
            if left > taken[row] and len(label) > len(kind) + 8:
                choices.append((len(label), -row, left, label))
        if choices:
            _, row, left, label = max(choices)
            taken[-row] = left + text_width(label, 12) + 10
            found.append(Text(left, top - 3 + 18 * row, label, 12, TEXT_COLOURS.get(mark.kind, "muted")))
    return found


def _attempts(history: History, axis: Sequence[Segment], y: float) -> list[Shape]:
    found: list[Shape] = [Text(LEFT - 8, y + 16, "start", 12, "muted", "end")]
    last = -1.0
    for index, attempt in enumerate(history.attempts):
        left, right = position(attempt.since, axis), position(attempt.until, axis)
        if right - last < 1 and index + 1 < len(history.attempts):
            continue
        last = right
        colour = "stripe" if index % 2 else "band"
        found.append(Rect(left, y, max(0.75, right - left), STRIP, colour, title=describe_attempt(attempt)))
        found.append(Line(left, y, left, y + STRIP, "muted", 1, opacity=0.6))
        for label in (f"{attempt.number} {reason(attempt)}".rstrip(), str(attempt.number)):
            if text_width(label, 12) <= right - left - 6:
                found.append(Text(left + 5, y + 16, label, 12))
                break
    return found


def reason(attempt: AttemptSpan) -> str:
    """Why this attempt was started; empty for the first."""
    if attempt.reason in ("first", ""):
        return ""
    return "by another ftrun" if attempt.reason == "started" else f"after {attempt.reason}"


def describe_attempt(attempt: AttemptSpan) -> str:
    """An attempt in a sentence."""
    why = f" ({reason(attempt)})" if reason(attempt) else ""
    steps = "" if attempt.first_step is None else f", steps {attempt.first_step} to {attempt.last_step}"
    end = f"; ended by {attempt.cause}: {attempt.why}" if attempt.cause else ""
    end = end or (f"; ended for {attempt.elsewhere}" if attempt.elsewhere else "")
    lasted = f"{seconds(attempt.until - attempt.since)} from {stamp(attempt.since)}"
    return f"start {attempt.number}{why}: {lasted}{steps}{end}"


def _time_strip(lost: list[tuple[float, float, str, str]], axis: Sequence[Segment], y: float) -> list[Shape]:
    """Kept time and lost time."""
    found: list[Shape] = [Text(LEFT - 8, y + 16, "time", 12, "muted", "end")]
    found += [Rect(part.left, y, max(1.0, part.right - part.left), STRIP, "kept", title="kept") for part in axis]
    for left, right, why, title in lost:
        hatch = HATCHES[why] if right - left > 3 else None
        found.append(Rect(left, y, right - left, STRIP, why, hatch=hatch, title=title))
    return found


def _time_axis(axis: Sequence[Segment], top: float, y: float) -> list[Shape]:
    found: list[Shape] = []
    for before, after in pairwise(axis):
        left, width = before.right + 1, after.left - before.right - 2
        lasted = seconds(after.since - before.until)
        title = f"{lasted} in which nothing ran here"
        found.append(Rect(left, top, width, y - top, "band", 0.7))
        found.append(Rect(left, top, width, y - top, "stripe", 0.5, 45, title))
        found.append(Text(left + width / 2, y + 34, lasted, 11, "muted", "middle", title=title))
    found += [Line(segment.left, y + 3, segment.right, y + 3, "muted") for segment in axis]
    for tick in ticks(axis):
        found.append(Line(tick.x, y + 3, tick.x, y + 8, "muted"))
        for below, size, label in ((21, 12, tick.label), (35, 11, tick.day)):
            half = text_width(label, size) / 2
            middle = max(LEFT - 4 + half, min(tick.x, axis[-1].right + RIGHT - 8 - half))
            found += [Text(middle, y + below, label, size, "muted", "middle")] if label else []
    found.append(Text(LEFT - 8, y + 21, "UTC", 11, "muted", "end"))
    return found


def _legend(history: History, y: float, width: float) -> tuple[list[Shape], float]:
    """The meaning of the colours, with totals, and of the signs; and the height of the picture with it."""
    found: list[Shape] = []
    kept = history.wall - sum(history.totals.values())
    entries = [("kept", f"kept {seconds(max(0.0, kept))}")]
    entries += [(why, f"{why} {seconds(value)} ({MEANINGS[why]})") for why, value in history.shown_totals.items()]
    x = LEFT
    for why, label in entries:
        x, y, needed = _placed(label, x, y, width)
        found.append(Rect(x, y - 11, 14, 14, why, hatch=HATCHES[why]))
        found.append(Text(x + 20, y, fitted(label, 13, width - x - 20), 13))
        x += needed
    counts = Counter(mark.kind for mark in history.marks)
    counts["saved"] = history.saved
    crowded = _crowded(history)
    signs = [(kind, name) for kind, name in LEGEND.items() if counts[kind]]
    x, y = LEFT, y + 26
    for kind, name in signs:
        label = f"{name} ({counts[kind]})" if kind not in ("escalated", "suspect") else name
        x, y, needed = _placed(label, x, y, width)
        if kind == "saved":
            found.append(_diamond(x + 7, y - 4, 5, ""))
        elif kind == "suspect":
            found.append(Rect(x, y - 7, 14, 4, "evidence"))
        elif kind == "cleared":
            found.append(Polyline(_circle(x + 7, y - 4), "muted", 1.4, "ground"))
        elif crowded:
            found.append(Rect(x + 6, y - 10, 2, 11, COLOURS.get(kind, "muted")))
        else:
            found.append(_flag(x + 7, y + 1, COLOURS.get(kind, "muted"), ""))
        found.append(Text(x + 20, y, fitted(label, 13, width - x - 20), 13))
        x += needed
    return found, y + (22 if signs else -4)


def _placed(label: str, x: float, y: float, width: float) -> tuple[float, float, float]:
    """Where this entry of the legend begins, on the next line if it does not fit, and how wide it is."""
    needed = 20 + text_width(label, 13) + 18
    return (LEFT, y + 24, needed) if x + needed > width - RIGHT and x > LEFT else (x, y, needed)
