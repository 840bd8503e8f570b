"""The graph of waits as a picture: a box for each thread, and arrows to those that can end its wait.  Pure."""

from collections.abc import Sequence
from math import cos, hypot, pi, sin
from typing import Final

from ftrun.core.text.sentences import several
from ftrun.drawing import svg
from ftrun.drawing.shapes import Line, Picture, Polyline, Rect, Shape, Text, fitted, text_width
from waitproof.wait_graph import RUNS, WaitGraph

BOXES: Final = 30
COLUMNS: Final = 5
ROWS: Final = 9  # boxes in one column
WIDTH, HEIGHT = 270.0, 80.0  # of a box
ACROSS, DOWN = 84.0, 20.0  # between boxes
MARGIN, HEAD, FOOT = 24.0, 76.0, 34.0
TITLE, LEAST = 14.0, 560.0  # size of the headline, width of the picture
OUTSIDE: Final = 150.0  # width of the cloud
ARROWS: Final = 60  # further arrows are left out, except those of the cycle
HEAD_LENGTH, HEAD_WIDTH = 9.0, 4.0  # of an arrow
Position = tuple[float, float]  # the upper left of a box


def render(graph: WaitGraph, headline: str) -> str:
    """The picture as an SVG document of at most 100 KB, for light and dark pages."""
    return svg.render(draw(graph, headline))


def draw(graph: WaitGraph, headline: str) -> Picture:
    """At most BOXES boxes, in columns: the suspect, what it waits for, and so on; the others are counted."""
    columns = _columns(graph)
    shown = {node for column in columns for node in column}
    rows = max((len(column) for column in columns), default=0)
    places = {
        node: (MARGIN + number * (WIDTH + ACROSS), HEAD + row * (HEIGHT + DOWN))
        for number, column in enumerate(columns)
        for row, node in enumerate(column)
    }
    open_ = [node for node in places if "outside the job" in graph.nodes[node].ends]
    right = MARGIN + len(columns) * (WIDTH + ACROSS)
    width = right + OUTSIDE + MARGIN if open_ else right - ACROSS + MARGIN
    bottom = HEAD + rows * (HEIGHT + DOWN)
    width = max(width, LEAST)
    shapes = _title(headline, width - 2 * MARGIN)
    shapes += _arrows(graph, places)
    if open_:
        middle = sum(places[node][1] + HEIGHT / 2 for node in open_) / len(open_)
        for node in open_:
            x, y = places[node]
            shapes += _arrow([(x + WIDTH, y + HEIGHT / 2), (right, middle)], "evidence", dashed=True)
        shapes += _cloud(right, middle)
    for node, place in places.items():
        shapes += _box(graph, node, place)
    left = sum(node.size for number, node in enumerate(graph.nodes) if number not in shown) + graph.more
    if left:
        text = f"{several(left, 'thread')} more {'is' if left == 1 else 'are'} not shown"
        shapes.append(Text(MARGIN, bottom + 12, text, 12, "muted"))
    return Picture(width, bottom + FOOT, "What waits for what", headline, tuple(shapes))


def _title(headline: str, room: float) -> list[Shape]:
    """The headline, on two lines if it is long."""
    words, first = headline.split(" "), ""
    while words and text_width(f"{first} {words[0]}", TITLE, True) <= room:
        first = f"{first} {words.pop(0)}".lstrip()
    second = fitted(" ".join(words), TITLE, room, True)
    return [Text(MARGIN, 26 + 20 * n, line, TITLE, bold=True) for n, line in enumerate((first, second)) if line]


def _columns(graph: WaitGraph) -> list[list[int]]:
    """The nodes by their distance from the suspect; those that it does not wait for are in the last column."""
    if not graph.nodes:
        return []
    distance, order = {0: 0}, [0]
    for node in order:
        for end in graph.nodes[node].wakers:
            if end not in distance:
                distance[end] = distance[node] + 1
                order.append(end)
    others = [node for node in range(len(graph.nodes)) if node not in distance and graph.nodes[node].fails]
    important = {*graph.cycle, *(n for n in order if graph.nodes[n].fails or graph.nodes[n].ends == RUNS)}
    columns: list[list[int]] = []
    for far in range(min(COLUMNS, 1 + max(distance.values()))):
        column = [node for node in order if distance[node] == far]
        columns.append(sorted(column, key=lambda node: node not in important)[:ROWS])
    columns[-1] += others[: max(0, ROWS - len(columns[-1]))]
    left = BOXES
    for number, column in enumerate(columns):
        columns[number] = column[:left]
        left -= len(columns[number])
    return [column for column in columns if column]


def _box(graph: WaitGraph, number: int, place: Position) -> list[Shape]:
    node, (x, y) = graph.nodes[number], place
    colour = "bad" if number in graph.cycle or node.fails else "good" if node.ends == RUNS else "muted"
    corners = ((x, y), (x + WIDTH, y), (x + WIDTH, y + HEIGHT), (x, y + HEIGHT), (x, y))
    title = f"{node.name}: {node.does}" + (f", at {node.place}" if node.place else "")
    shapes: list[Shape] = [Rect(x, y, WIDTH, HEIGHT, "band", title=title)]
    shapes.append(Polyline(corners, colour, 2.0 if colour == "muted" else 2.5))
    if number == 0:
        shapes.append(Text(x, y - 5, "the suspect", 11, "muted"))
    texts = ((node.who, 13.0, "text", True), (node.thread, 11.0, "muted", False), (node.does, 12.0, "text", False))
    for line, (text, size, fill, bold) in enumerate((*texts, (node.place, 11.0, "muted", False))):
        shown = fitted(text, size, WIDTH - 16, bold)
        shapes.append(Text(x + 8, y + 18 + 18 * line, shown, size, fill, "start", bold, "" if shown == text else text))
    return shapes


def _arrows(graph: WaitGraph, places: dict[int, Position]) -> list[Shape]:
    """The arrows to the right, and on top of them the arrows of the cycle: all arrows would be a tangle."""
    circle = set(zip(graph.cycle, (*graph.cycle[1:], *graph.cycle[:1]), strict=True))
    pairs = [(node, end) for node in places for end in graph.nodes[node].wakers if end in places and end != node]
    others = [pair for pair in pairs if pair not in circle and places[pair[1]][0] > places[pair[0]][0]][:ARROWS]
    shapes: list[Shape] = []
    for pair in [*others, *(pair for pair in pairs if pair in circle)]:
        colour = "bad" if pair in circle else "waiting"
        shapes += _arrow(_route(places[pair[0]], places[pair[1]]), colour, 2.2 if pair in circle else 1.2)
    return shapes


def _route(start: Position, end: Position) -> list[Position]:
    """The points of an arrow between two boxes, outside of both."""
    (x, y), (to_x, to_y) = start, end
    if to_x > x:
        return [(x + WIDTH, y + HEIGHT / 2), (to_x, to_y + HEIGHT / 2)]
    if to_x == x:  # in one column: around the right side
        far = x + WIDTH + MARGIN - 6
        return [(x + WIDTH, y + HEIGHT * 0.7), (far, (y + to_y + HEIGHT) / 2), (x + WIDTH, to_y + HEIGHT * 0.3)]
    return [(x, y + 0.8 * HEIGHT), (to_x + WIDTH, to_y + 0.8 * HEIGHT)]


def _arrow(points: Sequence[Position], colour: str, width: float = 1.2, dashed: bool = False) -> list[Shape]:
    (from_x, from_y), (x, y) = points[-2], points[-1]
    length = max(1.0, hypot(x - from_x, y - from_y))
    across, down = (x - from_x) / length, (y - from_y) / length
    base = (x - HEAD_LENGTH * across, y - HEAD_LENGTH * down)
    sides = [(base[0] + side * HEAD_WIDTH * down, base[1] - side * HEAD_WIDTH * across) for side in (1, -1)]
    head = Polyline(((x, y), *sides), colour, 1.0, colour)
    if dashed:
        return [Line(*points[0], *base, colour, width, True), head]
    return [Polyline((*points[:-1], base), colour, width), head]


def _cloud(x: float, middle: float) -> list[Shape]:
    """What is outside the job."""
    steps, rise = 96, 34.0
    points = []
    for step in range(steps + 1):
        angle = 2 * pi * step / steps
        bulge = 1 + 0.08 * abs(sin(4 * angle))
        points.append((x + OUTSIDE / 2 - OUTSIDE / 2 * cos(angle) * bulge, middle - rise * sin(angle) * bulge))
    label = Text(x + OUTSIDE / 2, middle + 4, "outside the job", 13, anchor="middle", bold=True)
    return [Polyline(tuple(points), "evidence", 1.5, "ground"), label]
