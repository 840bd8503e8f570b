"""The documentation is built without a warning, and can be read where there is no network.

In the gate tests/contracts/test_docs_links.py has the links of its sources.
"""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support import browser
from support.runs import HOUSE

MISSING = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
lacking = pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} not installed: pip install 'ftrun[docs]'")
pytestmark = [lacking, pytest.mark.slow]


class Page(HTMLParser):
    """`wanted`: what a browser fetches by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.wanted: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
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


def test_site_has_each_page(site: Path) -> None:
    sources = [path.relative_to(HOUSE / "docs") for path in (HOUSE / "docs").rglob("*.md")]
    missing = [
        source
        for source in sources
        if "_build" not in source.parts and not (site / source).with_suffix(".html").exists()
    ]
    assert missing == []


def test_site_loads_no_foreign_resource(site: Path) -> None:
    pages = {str(path): Page(path.read_text(encoding="utf-8")).wanted for path in site.rglob("*.html")}
    assert [(path, url) for path, wanted in pages.items() for url in wanted if re.match(r"(\w+:)?//", url)] == []
    styles = list(site.rglob("*.css"))
    assert styles
    for style in styles:
        assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]*", style.read_text("utf-8")) == [], style


@pytest.mark.skipif(bool(browser.MISSING), reason=f"not here: {', '.join(browser.MISSING)}")
def test_the_options_can_be_read_without_scrolling_sideways(site: Path, tmp_path: Path) -> None:
    """On a screen and on a phone, in a real browser; the home page too."""
    with browser.chromium(tmp_path) as page:
        for width in (1280, 400):
            for name in ("index", "reference"):
                page.open((site / f"{name}.html").as_uri())
                page.resize(width)
                assert page.run("return document.documentElement.scrollWidth") <= width
