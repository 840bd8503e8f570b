"""Shapes as SVG: by their attributes in light colours, with `STYLE` in the colour scheme of the reader."""

from html import escape
from typing import Final

from ftrun.core.text.sentences import printable
from ftrun.drawing.shapes import HATCH_SPACING, PALETTE, Line, Picture, Polyline, Rect, Shape, Text

FONT: Final = "system-ui, 'DejaVu Sans', 'Noto Sans', sans-serif"
Attributes = dict[str, str | float]


def _scheme(index: int) -> str:
    colours = {name: pair[index] for name, pair in PALETTE.items()}
    fills = "".join(
        f".ft-{name}{{fill:{colour}}}.ft-line-{name}{{stroke:{colour}}}" for name, colour in colours.items()
    )
    return f"{fills}.ft-hatch{{stroke:{colours['ground']}}}"


STYLE: Final = f"{_scheme(0)}@media (prefers-color-scheme:dark){{{_scheme(1)}}}"


def render(picture: Picture, alone: bool = True) -> str:
    """`alone`: a document of its own, with its style and background; otherwise for a page that has `STYLE`.  Text from
    elsewhere is escaped."""
    shapes = [_shape(shape) for shape in picture.shapes]
    if alone:
        background = Rect(0, 0, picture.width, picture.height, "ground")
        shapes = [f"<style>{STYLE}</style>", _shape(background), *shapes]
    size = f"{picture.width:g} {picture.height:g}"
    head: Attributes = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {size}"}
    head |= {"width": picture.width, "height": picture.height, "role": "img", "font-family": FONT}
    head |= {"aria-labelledby": "ft-title ft-desc"}
    title = _element("title", {"id": "ft-title"}, _text(picture.title))
    description = _element("desc", {"id": "ft-desc"}, _text(picture.description))
    return _element("svg", head, "\n".join(["", title + description, *_hatches(picture), *shapes, ""])) + "\n"


def _hatches(picture: Picture) -> list[str]:
    line: Attributes = {"class": "ft-hatch", "x1": 0.0, "y1": 0.0, "x2": 0.0, "y2": HATCH_SPACING}
    line |= {"stroke": PALETTE["ground"][0], "stroke-width": 2.4, "stroke-opacity": "0.75"}
    tile: Attributes = {"width": HATCH_SPACING, "height": HATCH_SPACING, "patternUnits": "userSpaceOnUse"}
    angles = {shape.hatch for shape in picture.shapes if isinstance(shape, Rect) and shape.hatch is not None}
    patterns = []
    for angle in sorted(angles):
        turned = tile | {"id": f"ft-hatch-{angle}", "patternTransform": f"rotate({angle})"}
        patterns.append(_element("defs", {}, _element("pattern", turned, _element("line", line))))
    return patterns


def _shape(shape: Shape) -> str:
    match shape:
        case Rect():
            box: Attributes = {"x": shape.x, "y": shape.y, "width": shape.width, "height": shape.height}
            plain = box | _paint(shape.fill, opacity=shape.opacity)
            if shape.hatch is None:
                return _element("rect", plain, title=shape.title)
            hatch = box | {"fill": f"url(#ft-hatch-{shape.hatch})"}
            return _element("rect", plain) + _element("rect", hatch, title=shape.title)
        case Line():
            ends: Attributes = {"x1": shape.x1, "y1": shape.y1, "x2": shape.x2, "y2": shape.y2}
            dashes: Attributes = {"stroke-dasharray": "4 3"} if shape.dashed else {}
            return _element("line", ends | _paint("", shape.stroke, shape.width, shape.opacity) | dashes)
        case Polyline():
            points = " ".join(f"{_number(x)},{_number(y)}" for x, y in shape.points)
            outline: Attributes = {"points": points, "fill": "none", "stroke-linejoin": "round"}
            outline |= _paint(shape.fill, shape.stroke, shape.width, shape.opacity)
            return _element("polygon" if shape.fill else "polyline", outline, title=shape.title)
        case Text():
            place: Attributes = {"x": shape.x, "y": shape.y, "font-size": f"{shape.size:g}"}
            place |= _paint(shape.fill)
            if shape.anchor != "start":
                place["text-anchor"] = shape.anchor
            if shape.bold:
                place["font-weight"] = "600"
            return _element("text", place, _text(shape.text), shape.title)


def _paint(fill: str, stroke: str = "", width: float = 1.0, opacity: float = 1.0) -> Attributes:
    """Colours by class, for `STYLE`, and by attribute, for where there is no style."""
    found: Attributes = {"class": " ".join([f"ft-{fill}"] * bool(fill) + [f"ft-line-{stroke}"] * bool(stroke))}
    found |= {"fill": PALETTE[fill][0]} if fill else {}
    found |= {"stroke": PALETTE[stroke][0], "stroke-width": f"{width:g}"} if stroke else {}
    return found | ({"opacity": f"{opacity:g}"} if opacity < 1 else {})


def _element(tag: str, attributes: Attributes, content: str = "", title: str = "") -> str:
    """`content` is SVG; `title` is text, shown when one points at the element."""
    opened = tag + "".join(
        f' {name}="{escape(value) if isinstance(value, str) else _number(value)}"' for name, value in attributes.items()
    )
    inner = content + (f"<title>{_text(title)}</title>" if title else "")
    return f"<{opened}>{inner}</{tag}>" if inner else f"<{opened}/>"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(text: str) -> str:
    """The text without control characters, most of which XML cannot contain."""
    return escape(printable(text))
