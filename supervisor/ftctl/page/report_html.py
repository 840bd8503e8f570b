"""A report's Markdown (core/text/markdown.py) as HTML.  Foreign text is escaped: no mark-up comes out but that of
this file."""

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final

from ftctl.markdown import IMAGE, blocks, cells, spans
from ftrun.core.text.sentences import printable

PICTURE: Final = re.compile(r"waits-[1-9][0-9]{0,3}\.svg")  # the only pictures that a report has
HEADING: Final = re.compile(r"(#{1,4}) +(.*)")


def render(markdown: str, picture: Callable[[str], str | None]) -> str:
    """`picture`: the address of a picture to which the report refers; None: it is left out."""
    found: list[str] = []
    for kind, lines in blocks(markdown):
        if kind == "code":
            found.append(f'<pre tabindex="0">{_escaped(chr(10).join(lines))}</pre>')
        elif kind == "table":
            found.append(_table(lines))
        elif lines[0].startswith("* "):
            entry = f"<li>{inline(lines[0][2:])}</li></ul>"
            if found and found[-1].endswith("</ul>"):  # an empty line between two entries does not end their list
                found[-1] = found[-1].removesuffix("</ul>") + entry
            else:
                found.append(f"<ul>{entry}")
        else:
            found += _single(lines[0], picture)
    return "\n".join(found) + "\n"


def _single(line: str, picture: Callable[[str], str | None]) -> Iterator[str]:
    if (heading := HEADING.fullmatch(line)) is not None:
        level = len(heading[1])
        yield f"<h{level}>{inline(heading[2])}</h{level}>"
    elif (shown := IMAGE.fullmatch(line)) is not None and PICTURE.fullmatch(shown[2]):
        if (address := picture(shown[2])) is not None:
            yield f'<img src="{escape(address)}" alt="{_escaped(shown[1])}">'
    elif line.startswith("**") and line.endswith("**") and len(line) > 4:
        yield f"<p><strong>{inline(line[2:-2])}</strong></p>"
    elif line.strip():
        yield f"<p>{inline(line)}</p>"


def _table(lines: Sequence[str]) -> str:
    head, *rows = cells(lines)
    heads = "".join(f'<th scope="col">{inline(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{inline(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{table}</div>'


def inline(line: str) -> str:
    """Code spans as such; other marks are taken as text."""
    return "".join(f"<code>{_escaped(text)}</code>" if code else _escaped(text) for code, text in spans(line))


def _escaped(text: str) -> str:
    return escape("\n".join(printable(line) for line in text.split("\n")))
