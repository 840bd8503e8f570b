"""Shapes as SVG: in light colours by its attributes alone, in those of the reader's scheme with `STYLE`."""

from html import escape
from typing import Final

from ftrun.core.text.sentences import printable
from ftrun.views.shapes import PALETTE, Line, Picture, Polyline, Rect, Shape, Text

FONT: Final = "system-ui, 'DejaVu Sans', 'Noto Sans', sans-serif"
SPACING: Final = 6.0  # px between the lines of a hatch


def _scheme(index: int) -> str:
    colours = {name: pair[index] for name, pair in PALETTE.items()}
    fills = "".join(
        f".ft-{name}{{fill:{colour}}}.ft-line-{name}{{stroke:{colour}}}" for name, colour in colours.items()
    )
    return f"{fills}.ft-hatch{{stroke:{colours['ground']}}}"


STYLE: Final = f"{_scheme(0)}@media (prefers-color-scheme:dark){{{_scheme(1)}}}"


def render(picture: Picture, alone: bool = True, prefix: str = "ft") -> str:
    """`alone`: a document of its own, with its style and its ground.  Otherwise to be put into a page that has `STYLE`;
    `prefix` is for the ids in it, where a page has several.  Foreign text is escaped."""
    width, height = _n(picture.width), _n(picture.height)
    name, words = f"{prefix}-title", f"{prefix}-desc"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-labelledby="{name} {words}" font-family="{escape(FONT)}">',
        f'<title id="{name}">{_text(picture.title)}</title><desc id="{words}">{_text(picture.description)}</desc>',
    ]
    if alone:
        head.append(f"<style>{STYLE}</style>")
    head += _hatches(picture, prefix)
    ground = [_shape(Rect(0, 0, picture.width, picture.height, "ground"), prefix)] if alone else []
    return "\n".join([*head, *ground, *(_shape(shape, prefix) for shape in picture.shapes), "</svg>\n"])


def _hatches(picture: Picture, prefix: str) -> list[str]:
    angles = {shape.hatch for shape in picture.shapes if isinstance(shape, Rect) and shape.hatch is not None}
    return [
        f'<defs><pattern id="{prefix}-hatch-{angle}" width="{SPACING:g}" height="{SPACING:g}"'
        f' patternUnits="userSpaceOnUse" patternTransform="rotate({angle})"><line class="ft-hatch" x1="0" y1="0"'
        f' x2="0" y2="{SPACING:g}" stroke="{PALETTE["ground"][0]}" stroke-width="2.4" stroke-opacity="0.75"/>'
        "</pattern></defs>"
        for angle in sorted(angles)
    ]


def _shape(shape: Shape, prefix: str) -> str:
    match shape:
        case Rect():
            where = f'x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.width)}" height="{_n(shape.height)}"'
            plain = f"<rect {where} {_fill(shape.fill)}{_opacity(shape.opacity)}"
            if shape.hatch is None:
                return _titled("rect", plain, shape.title)
            over = _titled("rect", f'<rect {where} fill="url(#{prefix}-hatch-{shape.hatch})"', shape.title)
            return f"{plain}/>{over}"
        case Line():
            where = f'x1="{_n(shape.x1)}" y1="{_n(shape.y1)}" x2="{_n(shape.x2)}" y2="{_n(shape.y2)}"'
            dashes = ' stroke-dasharray="4 3"' if shape.dashed else ""
            return f"<line {where} {_stroke(shape.stroke, shape.width)}{dashes}{_opacity(shape.opacity)}/>"
        case Polyline():
            points = " ".join(f"{_n(x)},{_n(y)}" for x, y in shape.points)
            kind = "polygon" if shape.fill else "polyline"
            style = " ".join(
                filter(
                    None,
                    (
                        _classes(shape.fill, shape.stroke),
                        f'fill="{PALETTE[shape.fill][0]}"' if shape.fill else 'fill="none"',
                        f'stroke="{PALETTE[shape.stroke][0]}" stroke-width="{shape.width:g}"' if shape.stroke else "",
                        'stroke-linejoin="round"',
                    ),
                )
            )
            return _titled(kind, f'<{kind} points="{points}" {style}{_opacity(shape.opacity)}', shape.title)
        case Text():
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            bold = ' font-weight="600"' if shape.bold else ""
            title = f"<title>{_text(shape.title)}</title>" if shape.title else ""
            return (
                f'<text x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{shape.size:g}" {_fill(shape.fill)}'
                f"{anchor}{bold}>{_text(shape.text)}{title}</text>"
            )


def _titled(kind: str, opened: str, title: str) -> str:
    return f"{opened}><title>{_text(title)}</title></{kind}>" if title else f"{opened}/>"


def _fill(name: str) -> str:
    return f'class="ft-{name}" fill="{PALETTE[name][0]}"'


def _stroke(name: str, width: float) -> str:
    return f'class="ft-line-{name}" stroke="{PALETTE[name][0]}" stroke-width="{width:g}"'


def _classes(fill: str, stroke: str) -> str:
    names = ([f"ft-{fill}"] if fill else []) + ([f"ft-line-{stroke}"] if stroke else [])
    return f'class="{" ".join(names)}"' if names else ""


def _opacity(value: float) -> str:
    return "" if value >= 1 else f' opacity="{value:g}"'


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(text: str) -> str:
    """XML has no way to write most control characters."""
    return escape(printable(text))
