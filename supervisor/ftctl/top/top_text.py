"""A long text on the screen of `ftctl top`, such as a report: a part of it, which keys move.  Pure."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.sentences import printable

DOWN, UP = ("j", "\x1b[B"), ("k", "\x1b[A")
PAGE: Final = 15  # lines
MOVES: Final = {**dict.fromkeys(DOWN, 1), **dict.fromkeys(UP, -1), " ": PAGE, "b": -PAGE}


class LongText(NamedTuple):
    """`at`: the line at the top of the screen."""

    title: str
    lines: tuple[str, ...]
    at: int = 0

    def pressed(self, key: str) -> "LongText | None":
        """After this key; None: it closes the text."""
        if key == "g":
            return self._replace(at=0)
        if key not in MOVES:
            return None
        return self._replace(at=max(0, min(self.at + MOVES[key], len(self.lines) - 1)))

    def render(self, width: int, height: int, unicode: bool = True) -> Text:
        """Exactly what the screen has room for; long lines are wrapped."""
        room = max(1, height - 2)
        shown = [part for line in self.lines[self.at : self.at + room] for part in _wrapped(line, width)][:room]
        last = min(len(self.lines), self.at + room)
        note = f"lines {self.at + 1} to {last} of {len(self.lines)}; j k space b move, any other key closes"
        found = [(self.title, "bold"), *((line, "") for line in shown), (note, "dim")]
        return Text("\n", end="").join(Text(_plain(text, unicode)[:width], style, end="") for text, style in found)


def _plain(text: str, unicode: bool) -> str:
    return printable(text) if unicode else printable(text).encode("ascii", "backslashreplace").decode()


def _wrapped(line: str, width: int) -> Sequence[str]:
    text = printable(line)
    return [text[at : at + width] for at in range(0, max(1, len(text)), max(1, width))]
