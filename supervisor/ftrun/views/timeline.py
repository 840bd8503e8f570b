"""The picture of a run: attempts, steps and checkpoints, what went wrong and when, and where the time went."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import cos, pi, sin
from typing import Final

from ftrun.core.text.durations import seconds
from ftrun.views.attempts import Mark
from ftrun.views.axis import Piece, pieces, place, rounds, short, ticks
from ftrun.views.history import History
from ftrun.views.lost_time import WHYS, Life, StepSample
from ftrun.views.shapes import HATCHES, Line, Picture, Polyline, Rect, Shape, Text, fitted, wide

WIDTH: Final = 1200.0
LEFT, RIGHT = 76.0, 24.0  # margins
HEAD, LABELS, PLOT, FLAT = 88.0, 40.0, 250.0, 46.0  # heights; FLAT: of a plot without steps
STRIP, GAP = 24.0, 8.0
CROWD: Final = 40  # flags; of more only their places are shown
MOST: Final = 330.0  # px of words beside a flag
SHOWN: Final = {"hang": "hang", "fault": "device fault", "failure": "failure", "stop": "stop", "order": "order"}
SIGNS: Final = {
    "saved": "checkpoint",
    "suspect": "evidence is taken",
    **SHOWN,
    "escalated": "gives up",
    "cleared": "suspicion cleared",
}
COLOURS: Final = {"hang": "hang", "fault": "fault", "failure": "failure", "escalated": "bad"}
WORDS: Final = COLOURS | {"hang": "hang-word"}  # words need more contrast than shapes
MEANINGS: Final = {
    "startup": "until the first beat",
    "hang": "silence up to the verdict",
    "redone": "work that a restart threw away",
    "stopping": "until the tree is dead",
    "healing": "a device is cured",
    "waiting": "for the next start",
    "paused": "by order",
}


def draw(history: History, width: float = WIDTH) -> Picture:
    """Pure.  Whatever there is to show, it is bounded: about what there are pixels for."""
    axis = pieces(history.runs, LEFT, width - RIGHT)
    shapes = _head(history, width)
    if not axis:
        return Picture(width, HEAD, "ftrun", describe(history), tuple(shapes))
    top = HEAD + (LABELS if history.marks or history.samples else GAP)
    plot = PLOT if history.samples else FLAT
    bottom = top + plot
    shapes += _lost_bands(history, axis, top, bottom)
    shapes += _steps(history, axis, top, bottom) if history.samples else _no_steps(top, bottom, width)
    shapes += _marks(history, axis, top, bottom, width)
    shapes += _attempts(history, axis, bottom + GAP)
    shapes += _strip(history, axis, bottom + GAP + STRIP + 4)
    foot = bottom + GAP + 2 * STRIP + 4
    shapes += _clock(axis, top, foot)
    legend, height = _legend(history, foot + 62, width)
    return Picture(width, height, _title(history), describe(history), tuple(shapes + legend))


def describe(history: History) -> str:
    """The run in a sentence or two, for those who do not see it."""
    if not history.runs:
        return verdict(history)
    lost = ", ".join(f"{seconds(value)} {why}" for why, value in history.worth.items())
    starts = f"{len(history.attempts)} start{'s' if len(history.attempts) != 1 else ''} in {seconds(history.wall)}"
    goodput = "" if history.goodput is None else f"; goodput {history.goodput:.0%}"
    return f"{starts}{goodput}{'; lost: ' + lost if lost else ''}. {verdict(history)}"


def verdict(history: History) -> str:
    if not history.runs:
        return "No ftrun has started here yet."
    if history.verdict is None:
        return "It is under way." if history.open else "It ended without a verdict."
    why = (history.why or "").partition(" (report: ")[0]
    return f"Ended with {history.exit_code} ({history.verdict}): {why}"


def _title(history: History) -> str:
    return " ".join(history.command) or history.run_dir


def _head(history: History, width: float) -> list[Shape]:
    room = width - LEFT - RIGHT + 40
    title = fitted(_title(history), 18, room, bold=True)
    parts = [history.run_dir]
    if history.runs:
        ended = "now" if history.open else stamp(history.runs[-1][1], history.runs[0][0])
        parts.append(f"{stamp(history.runs[0][0])} to {ended} UTC")
        parts.append(describe(history).partition(";")[0].partition(". ")[0])
    if history.goodput is not None:
        parts.append(f"goodput {history.goodput:.0%}")
    good = history.exit_code == 0 or (history.verdict is None and history.open)
    colour = "muted" if not history.runs else "good" if good else "bad"
    return [
        Text(LEFT - 40, 30, title, 18, bold=True),
        Text(LEFT - 40, 52, fitted("  ·  ".join(parts), 13, room), 13, "muted"),
        Rect(LEFT - 40, 63, 12, 12, colour),
        Text(LEFT - 22, 74, fitted(verdict(history), 14, room - 18, bold=True), 14, colour, bold=True),
    ]


def stamp(at: float, since: float | None = None) -> str:
    """Date and time of UTC; the time alone if it is the day of `since`."""
    moment = datetime.fromtimestamp(at, UTC)
    same = since is not None and datetime.fromtimestamp(since, UTC).date() == moment.date()
    return moment.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S")


def _lost_bands(history: History, axis: Sequence[Piece], top: float, bottom: float) -> list[Shape]:
    """Faintly behind the curve, so that a gap in it is explained."""
    found: list[Shape] = []
    for left, right, why, _ in _columns(history, axis):
        found.append(Rect(left, top, right - left, bottom - top, why, 0.16))
    return found


def _columns(history: History, axis: Sequence[Piece]) -> list[tuple[float, float, str, str]]:
    """What was lost, as (left, right, why, words).  Stretches of less than a pixel add up until there is enough for
    one: however many there are, a picture has room for all, and in sum shows as much as was lost."""
    small: dict[int, dict[str, float]] = {}
    found: list[tuple[float, float, str, str]] = []
    for stretch in history.lost:
        left, right = place(stretch.since, axis), place(stretch.until, axis)
        if right - left >= 1:
            words = f"{stretch.why}: {seconds(stretch.until - stretch.since)} from {stamp(stretch.since)}"
            found.append((left, right, stretch.why, words))
        else:
            whys = small.setdefault(int(left), {})
            whys[stretch.why] = whys.get(stretch.why, 0.0) + stretch.until - stretch.since
    pixel = history.spanned / sum(piece.right - piece.left for piece in axis)
    owed = dict.fromkeys(WHYS, 0.0)
    for column, whys in small.items():
        for why, value in whys.items():
            owed[why] += value
        if sum(owed.values()) > pixel / 2:
            words = ", ".join(f"{why}: {seconds(value)}" for why, value in whys.items())
            most = max(owed, key=lambda why: owed[why])
            owed[most] -= pixel
            found.append((column, column + 1, most, words))
    return sorted(found)


def _no_steps(top: float, bottom: float, width: float) -> list[Shape]:
    middle = (top + bottom) / 2
    return [
        Rect(LEFT, top, width - LEFT - RIGHT, bottom - top, "band", 0.6),
        Text(width / 2, middle + 4, "no steps were reported", 13, "muted", "middle"),
    ]


def _steps(history: History, axis: Sequence[Piece], top: float, bottom: float) -> list[Shape]:
    """A curve an attempt; where ranks are apart, the stretch between the first and the last of them as well."""
    known = [step for sample in history.samples for step in (sample.low, sample.high)]
    known += [checkpoint.step for checkpoint in history.checkpoints if checkpoint.step is not None]
    grid = rounds(min(known), max(known))
    low, high = grid[0], grid[-1]

    def height(step: int) -> float:
        return bottom - (bottom - top) * (step - low) / (high - low)

    found: list[Shape] = []
    for step in grid:
        found.append(Line(axis[0].left, height(step), axis[-1].right, height(step), "grid"))
        found.append(Text(LEFT - 8, height(step) + 4, short(step), 12, "muted", "end"))
    found.append(Text(LEFT - 8, top - 12, "step", 12, "muted", "end"))
    begins = [life.since for life in history.attempts]
    curves: dict[tuple[int, int], list[StepSample]] = {}
    for sample in history.samples:  # a number alone is no attempt where the counts of a run dir were lost
        curves.setdefault((bisect_right(begins, sample.at), sample.attempt), []).append(sample)
    for samples in curves.values():
        highs = _pixels([(place(s.at, axis), height(s.high)) for s in samples])
        if any(s.low < s.high for s in samples):
            lows = _pixels([(place(s.at, axis), height(s.low)) for s in samples])
            found.append(Polyline((*highs, *reversed(lows)), fill="curve", opacity=0.2))
            found.append(Polyline(lows, "curve", 1, opacity=0.6))
        if len(highs) == 1:
            highs = (highs[0], (highs[0][0] + 1.5, highs[0][1]))
        found.append(Polyline(highs, "curve", 1.8))
    drawn, size = -9.0, 4.2 if len(history.checkpoints) < 80 else 3.0
    for saved in history.checkpoints:
        x = place(saved.at, axis)
        if saved.step is None or x - drawn < 1.7 * size:
            continue
        drawn = x
        y = min(bottom, max(top, height(saved.step)))
        found.append(_diamond(x, y, size, f"checkpoint at step {saved.step}, {stamp(saved.at)}"))
    return found


def _pixels(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most a few points a pixel: the first, the outermost and the last of each."""
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


def _marks(history: History, axis: Sequence[Piece], top: float, bottom: float, width: float) -> list[Shape]:
    """Flags above the plot for what ended an attempt, with words where there is room for them; small circles for
    suspicions that were cleared; and a bar for as long as evidence was being taken."""
    lines: list[Shape] = []
    flags: list[Shape] = []
    last: dict[str, float] = {}
    heads: list[tuple[float, Mark]] = []
    suspected: float | None = None
    crowded = _crowded(history)
    for mark in history.marks:
        x = place(mark.at, axis)
        if mark.kind == "suspect":
            suspected = x
            continue
        if suspected is not None and x - suspected >= 1:
            lines.append(Rect(suspected, top, x - suspected, 4, "evidence", title=f"evidence was taken, {mark.text}"))
        suspected = None
        if x - last.get(mark.kind, -9) < 4:
            continue
        last[mark.kind] = x
        words = f"{mark.kind}: {mark.text}, {stamp(mark.at)}"
        if mark.kind == "cleared":
            flags.append(Polyline(_round(x, top + 9), "muted", 1.4, "ground", title=f"suspicion {words}"))
            continue
        colour = COLOURS.get(mark.kind, "muted")
        lines.append(Line(x, top, x, bottom, colour, 1, dashed=True, opacity=0.25 if crowded else 0.8))
        flags.append(Rect(x - 1, top - 12, 2, 11, colour, title=words) if crowded else _flag(x, top, colour, words))
        if mark.kind != "escalated":
            heads.append((x, mark))
    return [*lines, *flags, *([] if crowded else _labels(heads, last.get("escalated"), top, width))]


def _crowded(history: History) -> bool:
    return sum(mark.kind in SHOWN for mark in history.marks) > CROWD


def _round(x: float, y: float) -> tuple[tuple[float, float], ...]:
    return tuple((x + 4 * cos(turn * pi / 6), y + 4 * sin(turn * pi / 6)) for turn in range(12))


def _labels(heads: Sequence[tuple[float, Mark]], end: float | None, top: float, width: float) -> list[Shape]:
    """In the row of the flags or in the one above it, wherever more fits; what fits nowhere is left to its title."""
    found: list[Shape] = []
    taken = [-1.0, -1.0]  # how far each row is
    flags = [*(x for x, _ in heads), *([end] if end is not None else []), width]
    for x, mark in heads:
        kind = SHOWN[mark.kind]
        following = min(flag for flag in flags if flag > x)
        below, above = following - x - 24, min(MOST, width - RIGHT - x)
        choices = []
        for row, left, room in ((0, x + 10, below), (1, x - 5, above)):
            label = fitted(f"{kind}: {mark.text}", 12, room)
            if left > taken[row] and len(label) > len(kind) + 8:
                choices.append((len(label), -row, left, label))
        backwards = wide(kind, 12)
        if choices:
            _, row, left, label = max(choices)
            taken[-row] = left + wide(label, 12) + 10
            found.append(Text(left, top - 3 + 18 * row, label, 12, WORDS.get(mark.kind, "muted")))
        elif x + 10 > taken[0] and backwards < below:
            taken[0] = x + 20 + backwards
            found.append(Text(x + 10, top - 3, kind, 12, WORDS.get(mark.kind, "muted")))
        elif x - 16 - backwards > max(taken[0], LEFT, *(flag + 6 for flag in flags if flag < x)):
            taken[0] = x
            found.append(Text(x - 10, top - 3, kind, 12, WORDS.get(mark.kind, "muted"), "end"))
    return found


def _attempts(history: History, axis: Sequence[Piece], y: float) -> list[Shape]:
    found: list[Shape] = [Text(LEFT - 8, y + 16, "start", 12, "muted", "end")]
    drawn = -1.0
    for index, life in enumerate(history.attempts):
        left, right = place(life.since, axis), place(life.until, axis)
        if right - drawn < 1 and index + 1 < len(history.attempts):
            continue
        drawn = right
        found.append(
            Rect(left, y, max(0.75, right - left), STRIP, "stripe" if index % 2 else "band", title=words(life))
        )
        found.append(Line(left, y, left, y + STRIP, "muted", 1, opacity=0.6))
        for label in (f"{life.number} {reason(life)}".rstrip(), str(life.number)):
            if wide(label, 12) <= right - left - 6:
                found.append(Text(left + 5, y + 16, label, 12))
                break
    return found


def reason(life: Life) -> str:
    """Why there is this attempt; nothing for the first."""
    if life.reason in ("first", ""):
        return ""
    return "by another ftrun" if life.reason == "started" else f"after {life.reason}"


def words(life: Life) -> str:
    """An attempt in a sentence."""
    why = f" ({reason(life)})" if reason(life) else ""
    steps = "" if life.first_step is None else f", steps {life.first_step} to {life.last_step}"
    end = f"; ended by {life.cause}: {life.why}" if life.cause else ""
    return f"start {life.number}{why}: {seconds(life.until - life.since)} from {stamp(life.since)}{steps}{end}"


def _strip(history: History, axis: Sequence[Piece], y: float) -> list[Shape]:
    """Where the time went: kept, unless it was lost."""
    found: list[Shape] = [Text(LEFT - 8, y + 16, "time", 12, "muted", "end")]
    found += [Rect(p.left, y, max(1.0, p.right - p.left), STRIP, "kept", title="kept") for p in axis]
    for left, right, why, title in _columns(history, axis):
        found.append(
            Rect(left, y, right - left, STRIP, why, hatch=HATCHES[why] if right - left > 3 else None, title=title)
        )
    return found


def _clock(axis: Sequence[Piece], top: float, y: float) -> list[Shape]:
    found: list[Shape] = []
    for piece, following in pairwise(axis):
        middle = (piece.right + following.left) / 2
        found.append(Rect(piece.right + 1, top, following.left - piece.right - 2, y - top, "band", 0.7))
        gap = f"{seconds(following.since - piece.until)} in which nothing ran here"
        found.append(Rect(piece.right + 1, top, following.left - piece.right - 2, y - top, "stripe", 0.5, 45, gap))
        found.append(Text(middle, y + 34, seconds(following.since - piece.until), 11, "muted", "middle", title=gap))
    for piece in axis:
        found.append(Line(piece.left, y + 3, piece.right, y + 3, "muted"))
    for tick in ticks(axis):
        found.append(Line(tick.x, y + 3, tick.x, y + 8, "muted"))
        for below, size, label in ((21, 12, tick.label), (35, 11, tick.day)):
            half = wide(label, size) / 2
            middle = max(LEFT - 4 + half, min(tick.x, axis[-1].right + RIGHT - 8 - half))
            found += [Text(middle, y + below, label, size, "muted", "middle")] if label else []
    found.append(Text(LEFT - 8, y + 21, "UTC", 11, "muted", "end"))
    return found


def _legend(history: History, y: float, width: float) -> tuple[list[Shape], float]:
    """What the colours mean, with totals; and what the signs are.  And where it ends."""
    found: list[Shape] = []
    kept = history.wall - sum(history.totals.values())
    entries = [("kept", f"kept {seconds(max(0.0, kept))}")]
    entries += [(why, f"{why} {seconds(value)} ({MEANINGS[why]})") for why, value in history.worth.items()]
    x = LEFT
    for why, label in entries:
        needed = 20 + wide(label, 13) + 18
        if x + needed > width - RIGHT and x > LEFT:
            x, y = LEFT, y + 24
        found.append(Rect(x, y - 11, 14, 14, why, hatch=HATCHES[why]))
        found.append(Text(x + 20, y, label, 13))
        x += needed
    counts = Counter(mark.kind for mark in history.marks)
    counts["saved"] = history.saved
    crowded = _crowded(history)
    signs = [(kind, label, counts[kind]) for kind, label in SIGNS.items() if counts[kind]]
    x, y = LEFT, y + 26
    for kind, name, count in signs:
        label = f"{name} ({count})" if kind not in ("escalated", "suspect") else name
        if kind == "saved":
            found.append(_diamond(x + 7, y - 4, 5, ""))
        elif kind == "suspect":
            found.append(Rect(x, y - 7, 14, 4, "evidence"))
        elif kind == "cleared":
            found.append(Polyline(_round(x + 7, y - 4), "muted", 1.4, "ground"))
        elif crowded:
            found.append(Rect(x + 6, y - 10, 2, 11, COLOURS.get(kind, "muted")))
        else:
            found.append(_flag(x + 7, y + 1, COLOURS.get(kind, "muted"), ""))
        found.append(Text(x + 20, y, label, 13))
        x += 20 + wide(label, 13) + 18
    return found, y + (22 if signs else -4)
