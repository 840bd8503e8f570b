"""The documentation is built without a warning, and can be read where there is no network.

In the gate tests/contracts/test_docs_links.py has the links of its sources.
"""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from support import browser
from support.runs import HOUSE

MISSING = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
lacking = pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} not installed: pip install 'ftrun[docs]'")
pytestmark = [lacking, pytest.mark.slow]


class Page(HTMLParser):
    """`wanted`: what a browser fetches by itself; `links`: where a reader may go; `ids`: where one may arrive."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.wanted: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for name, value in attrs if name in ("id", "name") and value}
        if tag == "a":
            self.links.append(found.get("href") or "")
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.wanted.append(found.get("href") or "")
        elif tag in ("script", "img", "iframe", "source", "video"):
            self.wanted.append(found.get("src") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [HOUSE / "bin" / "docs", folder]
    environment = {"PATH": "/usr/bin:/bin", "FTRUN_DOCS_PYTHON": sys.executable, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == str(folder / "index.html")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_site_has_each_page(site: Path) -> None:
    sources = [path.relative_to(HOUSE / "docs") for path in (HOUSE / "docs").rglob("*.md")]
    missing = [
        source
        for source in sources
        if "_build" not in source.parts and not (site / source).with_suffix(".html").exists()
    ]
    assert missing == []


def test_site_loads_no_foreign_resource(site: Path, pages: dict[Path, Page]) -> None:
    elsewhere = [(str(path), url) for path, page in pages.items() for url in page.wanted if re.match(r"(\w+:)?//", url)]
    assert elsewhere == []
    styles = list(site.rglob("*.css"))
    assert styles
    for style in styles:
        assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]*", style.read_text("utf-8")) == [], style


def test_each_link_is_valid(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.wanted]:
            if not link or re.match(r"[a-z]+:", link):
                continue
            place, _, anchor = link.partition("#")
            target = (path.parent / unquote(place.partition("?")[0])).resolve() if place else path
            if not target.exists() or (anchor and target in pages and unquote(anchor) not in pages[target].ids):
                broken.append((str(path.relative_to(site)), link))
    assert broken == []


@pytest.mark.skipif(bool(browser.MISSING), reason=f"not here: {', '.join(browser.MISSING)}")
def test_the_options_can_be_read_without_scrolling_sideways(site: Path, tmp_path: Path) -> None:
    """On a screen and on a phone, in a real browser; the home page too."""
    with browser.chromium(tmp_path) as page:
        for width in (1280, 400):
            for name in ("index", "reference"):
                page.open((site / f"{name}.html").as_uri())
                page.resize(width)
                assert page.run("return document.documentElement.scrollWidth") <= width
