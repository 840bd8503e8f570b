"""Each link from a page of the documentation to another one leads to a page and a heading that exist.

tests/contracts/test_docs_site.py, which is slow, has the same for the site that is built of them.
"""

import re
from functools import cache
from pathlib import Path

from support.runs import HOUSE

DOCS = HOUSE / "docs"
PAGES = sorted(
    [
        *(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
        *HOUSE.glob("*.md"),
        *HOUSE.glob("tests/*.md"),
    ]
)
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and MyST make them, and of the pages that it includes."""
    included = re.findall(r"^```\{include\} (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    if included:
        return set().union(*(anchors((page.parent / name).resolve()) for name in included))
    titles = re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in plain} | set(re.findall(r'(?:id|name)="([^"]+)"', prose(page)))


def broken(page: Path) -> list[str]:
    found = []
    for link in LINK.findall(prose(page)):
        place, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / place).resolve() if place else page
        exists = target.exists() or target.with_suffix(".md").exists()
        if not exists or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


def test_links_lead_to_a_page_and_a_heading() -> None:
    assert {str(page): links for page in PAGES if (links := broken(page))} == {}
