"""Shapes as PNG, in light colours, by Pillow (of the extra `page`)."""

from io import BytesIO
from math import cos, radians, sin
from typing import Final

from PIL import Image, ImageColor, ImageDraw, ImageFont

from ftrun.core.text.sentences import printable
from ftrun.drawing.shapes import HATCH_SPACING, PALETTE, Line, Picture, Polyline, Rect, Shape, Text

SCALE: Final = 2  # pixels per CSS pixel
FACES: Final = {False: "DejaVuSans.ttf", True: "DejaVuSans-Bold.ttf"}

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def render(picture: Picture) -> bytes:
    """SCALE times its size."""
    size = (round(picture.width * SCALE), round(picture.height * SCALE))
    image = Image.new("RGB", size, PALETTE["ground"][0])
    painter = _Painter(image)
    for shape in picture.shapes:
        painter.paint(shape)
    content = BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


class _Painter:
    def __init__(self, image: Image.Image) -> None:
        self._image, self._draw = image, ImageDraw.Draw(image, "RGBA")
        self._fonts: dict[tuple[float, bool], Font] = {}

    def paint(self, shape: Shape) -> None:
        match shape:
            case Rect():
                self._rect(shape)
            case Line():
                self._line(shape)
            case Polyline():
                points = [(x * SCALE, y * SCALE) for x, y in shape.points]
                width = max(1, round(shape.width * SCALE))
                outline = _colour(shape.stroke, shape.opacity) if shape.stroke else None
                if shape.fill and len(points) > 2:
                    self._draw.polygon(points, _colour(shape.fill, shape.opacity), outline, width if outline else 0)
                elif outline and len(points) > 1:
                    self._draw.line(points, outline, width, "curve")
            case Text():
                font, anchor = self._font(shape.size, shape.bold), {"start": "ls", "middle": "ms", "end": "rs"}
                text, at = printable(shape.text), (shape.x * SCALE, shape.y * SCALE)
                try:
                    self._draw.text(at, text, _colour(shape.fill, 1), font, anchor[shape.anchor])
                except (UnicodeError, ValueError):  # a bitmap font has Latin-1 only, and no anchors
                    self._draw.text(at, text.encode("ascii", "replace").decode(), _colour(shape.fill, 1), font)

    def _rect(self, shape: Rect) -> None:
        left, top = round(shape.x * SCALE), round(shape.y * SCALE)
        right = max(left + 1, round((shape.x + shape.width) * SCALE))
        bottom = max(top + 1, round((shape.y + shape.height) * SCALE))
        self._draw.rectangle((left, top, right - 1, bottom - 1), fill=_colour(shape.fill, shape.opacity))
        if shape.hatch is None or right - left > 1 << 14:
            return
        tile = Image.new("RGBA", (right - left, bottom - top))
        lines, width, height = ImageDraw.Draw(tile), *tile.size
        # As in the SVG pattern: lines through the origin of the picture, HATCH_SPACING apart.
        dx, dy = -sin(radians(shape.hatch)), cos(radians(shape.hatch))
        apart, reach = HATCH_SPACING * SCALE, width + height + abs(left) + abs(top)
        corners = [(left + x) * dy - (top + y) * dx for x in (0, width) for y in (0, height)]
        for number in range(int(min(corners) // apart) - 1, int(max(corners) // apart) + 2):
            x, y = number * apart * dy - left, -number * apart * dx - top
            ends = (x - reach * dx, y - reach * dy, x + reach * dx, y + reach * dy)
            lines.line(ends, _colour("ground", 0.75), round(2.4 * SCALE / 2))
        self._image.paste(tile, (left, top), tile)

    def _line(self, shape: Line) -> None:
        colour, width = _colour(shape.stroke, shape.opacity), max(1, round(shape.width * SCALE))
        x1, y1, x2, y2 = (value * SCALE for value in (shape.x1, shape.y1, shape.x2, shape.y2))
        if not shape.dashed:
            self._draw.line((x1, y1, x2, y2), colour, width)
            return
        length = max(1.0, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
        for begin in range(0, int(length), 7 * SCALE):
            a, b = begin / length, min(1.0, (begin + 4 * SCALE) / length)
            self._draw.line(
                (x1 + (x2 - x1) * a, y1 + (y2 - y1) * a, x1 + (x2 - x1) * b, y1 + (y2 - y1) * b), colour, width
            )

    def _font(self, size: float, bold: bool) -> Font:
        if (size, bold) not in self._fonts:
            try:
                font: Font = ImageFont.truetype(FACES[bold], size * SCALE * 0.92)
            except OSError:
                font = ImageFont.load_default(size * SCALE)
            self._fonts[size, bold] = font
        return self._fonts[size, bold]


def _colour(name: str, opacity: float) -> tuple[int, int, int, int]:
    red, green, blue = ImageColor.getrgb(PALETTE[name][0])[:3]
    return red, green, blue, round(255 * opacity)
