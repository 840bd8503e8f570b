"""A report's Markdown (core/text/markdown.py) as HTML.  Foreign text is escaped: no mark-up comes out but that of
this file."""

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final

from ftctl.markdown import CELLS, ESCAPE, FENCE, SPAN
from ftrun.core.text.sentences import printable

PICTURE: Final = re.compile(r"!\[([^\]\n]*)\]\(((?:waits-[1-9][0-9]{0,3})\.svg)\)")
HEADING: Final = re.compile(r"(#{1,4}) +(.*)")


def render(markdown: str, picture: Callable[[str], str | None]) -> str:
    """`picture`: the address of a picture to which the report refers; None: it is left out."""
    return "\n".join(_blocks(markdown.splitlines(), picture)) + "\n"


def _blocks(lines: Sequence[str], picture: Callable[[str], str | None]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        if (fence := FENCE.fullmatch(line)) is not None:
            end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == fence[1]), len(lines))
            yield f'<pre tabindex="0">{_escaped(chr(10).join(lines[at + 1 : end]))}</pre>'
            at = end + 1
        elif line.startswith("| "):
            end = _end(lines, at, "| ")
            yield _table(lines[at:end])
            at = end
        elif line.startswith("* "):
            end = _end(lines, at, "* ")
            # a list of several entries has an empty line between two of them
            while end + 1 < len(lines) and not lines[end] and lines[end + 1].startswith("* "):
                end = _end(lines, end + 1, "* ")
            entries = "".join(f"<li>{inline(one[2:])}</li>" for one in lines[at:end] if one)
            yield f"<ul>{entries}</ul>"
            at = end
        else:
            yield from _single(line, picture)
            at += 1


def _end(lines: Sequence[str], at: int, mark: str) -> int:
    return next((n for n in range(at, len(lines)) if not lines[n].startswith(mark)), len(lines))


def _single(line: str, picture: Callable[[str], str | None]) -> Iterator[str]:
    if (heading := HEADING.fullmatch(line)) is not None:
        level = len(heading[1])
        yield f"<h{level}>{inline(heading[2])}</h{level}>"
    elif (shown := PICTURE.fullmatch(line)) is not None:
        if (address := picture(shown[2])) is not None:
            yield f'<img src="{escape(address)}" alt="{_escaped(shown[1])}">'
    elif line.startswith("**") and line.endswith("**") and len(line) > 4:
        yield f"<p><strong>{inline(line[2:-2])}</strong></p>"
    elif line.strip():
        yield f"<p>{inline(line)}</p>"


def _table(lines: Sequence[str]) -> str:
    head, *rows = [[cell.strip() for cell in CELLS.split(line)[1:-1]] for line in lines]
    heads = "".join(f'<th scope="col">{inline(cell)}</th>' for cell in head)
    # the first row is the rule below the heads
    body = "".join(f"<tr>{''.join(f'<td>{inline(cell)}</td>' for cell in row)}</tr>" for row in rows[1:])
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{table}</div>'


def inline(line: str) -> str:
    """Code spans as such; other marks are taken as text."""
    found, at = list[str](), 0
    for span in SPAN.finditer(line):
        if span.start() and line[span.start() - 1] == "\\":
            continue
        found += [_plain(line[at : span.start()]), f"<code>{_escaped(span[2].replace(chr(92) + '|', '|'))}</code>"]
        at = span.end()
    return "".join(found) + _plain(line[at:])


def _plain(text: str) -> str:
    return _escaped(ESCAPE.sub(r"\1", text))


def _escaped(text: str) -> str:
    return escape("\n".join(printable(line) for line in text.split("\n")))
