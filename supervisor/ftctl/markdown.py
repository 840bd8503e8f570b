"""A report's Markdown (core/text/markdown.py) as plain text: tables in columns, nothing marked up."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ftrun.core.text.sentences import printable

FENCE: Final = re.compile(r"(`{3,})[^`]*")
SPAN: Final = re.compile(r"(`+) ?(.*?) ?\1(?!`)")
ESCAPE: Final = re.compile(r"\\([\\`*_{}\[\]<>#|~&])")
IMAGE: Final = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")  # a line of its own
CELLS: Final = re.compile(r"(?<!\\)\|")


def lines(markdown: str) -> Iterator[str]:
    """Line by line; the text of a block is kept as it is, and set in."""
    fence, rows = "", list[list[str]]()
    for line in markdown.splitlines():
        if fence:
            if line.strip() == fence:
                fence = ""
            else:
                yield printable(f"    {line}".rstrip())
            continue
        if line.startswith("| "):
            rows.append([_text(cell.strip()) for cell in CELLS.split(line)[1:-1]])
            continue
        yield from _columns(rows)
        rows = []
        if (opened := FENCE.fullmatch(line)) is not None:
            fence = opened[1]
        elif (image := IMAGE.fullmatch(line)) is not None:
            yield _text(f"{image[1]}: the picture {image[2]} beside this report")
        elif line.startswith("#"):
            title = _text(line.lstrip("# "))
            yield from (title, "-" * len(title))
        else:
            yield _text(line.removeprefix("**").removesuffix("**"))
    yield from _columns(rows)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    shown = [row for number, row in enumerate(rows) if number != 1]  # the rule below the heads
    widths = [max(map(len, column)) for column in zip(*shown, strict=False)]
    for row in shown:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()


def _text(line: str) -> str:
    """Without the marks; what is in a code span is as it is."""
    found, at = [], 0
    for span in SPAN.finditer(line):
        if span.start() and line[span.start() - 1] == "\\":
            continue
        found += [ESCAPE.sub(r"\1", line[at : span.start()]), span[2].replace("\\|", "|")]
        at = span.end()
    return printable("".join(found) + ESCAPE.sub(r"\1", line[at:]))
