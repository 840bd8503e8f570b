"""Markdown in which foreign text (names, paths, lines of output) cannot break the structure."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ftrun.core.text.sentences import printable

CELL: Final = 300  # characters of foreign text in a line


def plain(text: str) -> str:
    """Foreign text within a sentence."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", printable(text))


def code(text: str, limit: int = CELL) -> str:
    """Foreign text as a code span, cut to `limit` characters."""
    shown = printable(text)
    shown = shown if len(shown) <= limit else shown[: limit - 3] + "..."
    ticks = "`" * (_longest(shown) + 1)
    pad = " " if not shown or shown[0] in "` " or shown[-1] in "` " else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def block(text: str) -> str:
    """Foreign text of several lines, as a fenced code block."""
    shown = "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))
    ticks = "`" * max(3, _longest(shown) + 1)
    return f"{ticks}text\n{shown}\n{ticks}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells already are Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _longest(text: str) -> int:
    """The length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
