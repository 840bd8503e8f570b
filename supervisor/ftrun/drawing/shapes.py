"""The shapes of a picture.  Lengths are CSS pixels, the origin is the upper left; colours are names of `PALETTE`."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple


class Rect(NamedTuple):
    """`hatch`: the angle of its hatch lines in degrees; None: plain.  `title` is shown when one points at it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    opacity: float = 1.0
    hatch: int | None = None
    title: str = ""


class Line(NamedTuple):
    x1: float
    y1: float
    x2: float
    y2: float
    stroke: str
    width: float = 1.0
    dashed: bool = False
    opacity: float = 1.0


class Polyline(NamedTuple):
    """A polygon if it has a `fill`."""

    points: tuple[tuple[float, float], ...]
    stroke: str = ""
    width: float = 1.5
    fill: str = ""
    opacity: float = 1.0
    title: str = ""


class Text(NamedTuple):
    """`y` is the baseline; `anchor`: start, middle or end."""

    x: float
    y: float
    text: str
    size: float = 12.0
    fill: str = "text"
    anchor: str = "start"
    bold: bool = False
    title: str = ""


Shape = Rect | Line | Polyline | Text


class Picture(NamedTuple):
    """`title` and `description` are for readers who do not see it."""

    width: float
    height: float
    title: str
    description: str
    shapes: tuple[Shape, ...]


# For light and dark pages.  The colours of lost time are those of Okabe and Ito, which differ for all kinds of colour
# blindness; each has a hatch of its own as well.
PALETTE: Final[dict[str, tuple[str, str]]] = {
    "ground": ("#ffffff", "#16181c"),
    "text": ("#1f2328", "#e8eaed"),
    "muted": ("#59626b", "#a2abb5"),
    "grid": ("#e3e6ea", "#2c3138"),
    "band": ("#eef1f4", "#23272e"),
    "stripe": ("#dfe4e9", "#30363f"),
    "curve": ("#1f2328", "#e8eaed"),
    "kept": ("#9fd9c6", "#1d6b55"),
    "saved": ("#007a59", "#3ecfa4"),
    "startup": ("#56b4e9", "#56b4e9"),
    "hang": ("#d55e00", "#e8752a"),
    "hang-text": ("#ae4a00", "#f58a45"),
    "redone": ("#e69f00", "#e69f00"),
    "discarded": ("#8d6e63", "#b39185"),
    "recovery": ("#a6761d", "#d9a95b"),
    "stopping": ("#cc79a7", "#cc79a7"),
    "healing": ("#0072b2", "#3d9bd6"),
    "waiting": ("#8c959f", "#8c959f"),
    "paused": ("#f0e442", "#f0e442"),
    "evidence": ("#5b4a9e", "#b3a4ef"),
    "fault": ("#0072b2", "#3d9bd6"),
    "failure": ("#8a3a76", "#d58cc0"),
    "bad": ("#b3261e", "#ff8a80"),
    "good": ("#007a59", "#3ecfa4"),
}
HATCH_SPACING: Final = 6.0  # px between the lines of a hatch
HATCHES: Final[dict[str, int | None]] = {
    "kept": None,
    "startup": 90,
    "hang": None,
    "redone": 45,
    "discarded": 155,
    "recovery": 70,
    "stopping": 135,
    "healing": 0,
    "waiting": 20,
    "paused": 110,
}


def text_width(text: str, size: float, bold: bool = False) -> float:
    """An estimate, rather too large: the font of the reader is not known."""
    units = sum(1.0 if ord(c) > 0x2E7F else 0.36 if c in " .,:;'|!()[]ijlt" else 0.62 for c in text)
    return units * size * (1.08 if bold else 1.0)


def fitted(text: str, size: float, room: float, bold: bool = False) -> str:
    """The text, cut to a width of `room`."""
    if text_width(text, size, bold) <= room:
        return text
    while text and text_width(text + "…", size, bold) > room:
        text = text[: -max(1, len(text) // 16)]
    return f"{text.rstrip()}…" if text else ""
