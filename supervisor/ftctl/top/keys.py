"""What keys do on the screen of `ftctl top`: the order of the ranks, how far they and a long text are
scrolled, and the help.  Pure."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.sentences import printable
from ftrun.records.present.snapshot import RankNow

OptionValue = int | float | str


class Order(NamedTuple):
    """`by`: the smallest first, or with `largest` the largest; equal ranks by their numbers."""

    name: str
    by: Callable[[RankNow], OptionValue]
    largest: bool = True


ORDERS: Final = (
    Order("nearest to its limit", lambda rank: rank.used),
    Order("rank", lambda rank: rank.rank, False),
    Order("step", lambda rank: -1 if rank.step is None else rank.step, False),
    Order("silent for", lambda rank: (rank.moved or 0.0) if rank.age is None else rank.age),
    Order("time per step", lambda rank: rank.step_time or 0.0),
    Order("state", lambda rank: rank.state, False),
)
UP, DOWN = ("k", "\x1b[A"), ("j", "\x1b[B")
REPORT, STACKS, LOGS = "e", "t", "l"
HELP: Final = (
    ("s", "sort the ranks by the next column"),
    ("r", "reverse the order"),
    ("j k", "choose the next rank or the one before, as the arrow keys do"),
    (REPORT, "the last report"),
    (STACKS, "the present stacks of the chosen rank"),
    (LOGS, "the last lines of its output"),
    ("g", "back to the first rank"),
    ("?", "this help; any key closes it"),
    ("q", "quit; the run goes on"),
)


class Chosen(NamedTuple):
    """`order`: the place in ORDERS; `skip`: the place of the chosen rank; where there is no room for all, those
    before it are scrolled out."""

    order: int = 0
    reverse: bool = False
    skip: int = 0
    help: bool = False

    def pressed(self, key: str) -> "Chosen":
        """The choice after this key; a key without a meaning changes nothing."""
        if self.help:
            return self._replace(help=False)
        if key == "?":
            return self._replace(help=True)
        if key == "s":
            return Chosen((self.order + 1) % len(ORDERS))
        if key == "r":
            return self._replace(reverse=not self.reverse, skip=0)
        if key == "g":
            return self._replace(skip=0)
        if key in (*UP, *DOWN):
            return self._replace(skip=max(0, self.skip + (1 if key in DOWN else -1)))
        return self

    def rank(self, ranks: Sequence[RankNow]) -> RankNow | None:
        """The chosen rank."""
        return self.ordered(ranks)[min(self.skip, len(ranks) - 1)] if ranks else None

    @property
    def text(self) -> str:
        """The order, in words."""
        return ORDERS[self.order].name + (", reversed" if self.reverse else "")

    def ordered(self, ranks: Sequence[RankNow]) -> list[RankNow]:
        order = ORDERS[self.order]
        found = sorted(sorted(ranks, key=lambda rank: rank.rank), key=order.by, reverse=order.largest)
        return found[::-1] if self.reverse else found


PAGE: Final = 15  # lines
MOVES: Final = {**dict.fromkeys(DOWN, 1), **dict.fromkeys(UP, -1), " ": PAGE, "b": -PAGE}


class LongText(NamedTuple):
    """`at`: the line at the top of the screen."""

    title: str
    lines: tuple[str, ...]
    at: int = 0

    def pressed(self, key: str) -> "LongText | None":
        """The text after this key; None: the key closes the text."""
        if key == "g":
            return self._replace(at=0)
        if key not in MOVES:
            return None
        return self._replace(at=max(0, min(self.at + MOVES[key], len(self.lines) - 1)))

    def render(self, width: int, height: int, unicode: bool = True) -> Text:
        """The lines that the screen has room for; long lines are wrapped."""
        room = max(1, height - 2)
        shown = [part for line in self.lines[self.at : self.at + room] for part in _wrapped(line, width)][:room]
        last = min(len(self.lines), self.at + room)
        note = f"lines {self.at + 1} to {last} of {len(self.lines)}; j k space b move, any other key closes"
        found = [(self.title, "bold"), *((line, "") for line in shown), (note, "dim")]
        return Text("\n", end="").join(Text(plain(text, unicode)[:width], style, end="") for text, style in found)


def plain(text: str, unicode: bool) -> str:
    return printable(text) if unicode else printable(text).encode("ascii", "backslashreplace").decode()


def _wrapped(line: str, width: int) -> Sequence[str]:
    text = printable(line)
    return [text[at : at + width] for at in range(0, max(1, len(text)), max(1, width))]
