"""A report's Markdown (core/text/markdown.py): its blocks and spans, and as plain text with nothing marked up."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ftrun.core.text.sentences import printable

FENCE: Final = re.compile(r"(`{3,})[^`]*")
SPAN: Final = re.compile(r"(`+) ?(.*?) ?\1(?!`)")
ESCAPE: Final = re.compile(r"\\([\\`*_{}\[\]<>#|~&])")
IMAGE: Final = re.compile(r"!\[([^\]\n]*)\]\(([^)\n]*)\)")  # a line of its own
CELLS: Final = re.compile(r"(?<!\\)\|")


def blocks(markdown: str) -> Iterator[tuple[str, list[str]]]:
    """Each block: `code`, with the lines between the fences; `table`, with its rows; `line`, one of anything else."""
    lines, at = markdown.splitlines(), 0
    while at < len(lines):
        first, kind, end = at, "line", at + 1
        if (fence := FENCE.fullmatch(lines[at])) is not None:
            kind, first = "code", at + 1
            end = next((n for n in range(first, len(lines)) if lines[n].strip() == fence[1]), len(lines))
        elif lines[at].startswith("| "):
            kind = "table"
            end = next((n for n in range(at, len(lines)) if not lines[n].startswith("| ")), len(lines))
        yield kind, lines[first:end]
        at = end + (kind == "code")


def cells(rows: Sequence[str]) -> list[list[str]]:
    """The cells of a table, still marked up, without the rule below the heads."""
    return [[cell.strip() for cell in CELLS.split(row)[1:-1]] for n, row in enumerate(rows) if n != 1]


def spans(line: str) -> Iterator[tuple[bool, str]]:
    """The parts of a line: whether each is code, and its text without marks.  The content of a code span is not
    changed."""
    at = 0
    for span in SPAN.finditer(line):
        if span.start() and line[span.start() - 1] == "\\":
            continue
        yield False, ESCAPE.sub(r"\1", line[at : span.start()])
        yield True, span[2].replace("\\|", "|")
        at = span.end()
    yield False, ESCAPE.sub(r"\1", line[at:])


def lines(markdown: str) -> Iterator[str]:
    """Line by line: tables in columns; the text of a block is kept as it is, and set in."""
    for kind, block in blocks(markdown):
        if kind == "code":
            yield from (printable(f"    {line}".rstrip()) for line in block)
        elif kind == "table":
            yield from _columns([[_text(cell) for cell in row] for row in cells(block)])
        elif (image := IMAGE.fullmatch(block[0])) is not None:
            yield _text(f"{image[1]}: the picture {image[2]} beside this report")
        elif block[0].startswith("#"):
            title = _text(block[0].lstrip("# "))
            yield from (title, "-" * len(title))
        else:
            yield _text(block[0].removeprefix("**").removesuffix("**"))


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=False)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()


def _text(line: str) -> str:
    return printable("".join(text for _, text in spans(line)))
