"""A report as HTML: what is marked up is marked up, and foreign text is never mark-up."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from ftctl.page import report_html
from ftrun.core.text.markdown import block, code, plain, table

TAGS = {"h1", "h2", "p", "strong", "code", "pre", "ul", "li", "div", "table", "thead", "tbody", "tr", "th", "td"}
hostile = st.text(st.sampled_from("`|*_<>[](){}#~&\\!\n\r\x1b\u202e\udcff aä-=+.1:/\"'"), max_size=30)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(markdown: str) -> Reader:
    found = Reader()
    found.feed(report_html.render(markdown, lambda name: f"1/{name}"))
    found.close()
    assert not found.open
    return found


def test_the_parts_of_a_report() -> None:
    parts = ["# A hang", "**It is at `a|b`.**", "![What waits for what](waits-1.svg)", "* one", "* two"]
    parts += [table(["rank", "at"], [["1", code("x|y")]]), block("a < b\n  c"), "The end"]
    found = read("\n\n".join(parts))
    assert found.tags == [
        *("h1", "p", "strong", "code", "img", "ul", "li", "li", "div", "table", "thead", "tr", "th", "th"),
        *("tbody", "tr", "td", "td", "code", "pre", "p"),
    ]
    assert {"A hang", "a|b", "x|y", "a < b\n  c", "The end"} <= set(found.texts)


@given(hostile)
def test_foreign_text_is_never_mark_up(text: str) -> None:
    parts = [f"# {plain(text)}", f"**{plain(text)} {code(text)}**", f"* {plain(text)}", table(["a"], [[plain(text)]])]
    assert set(read("\n\n".join([*parts, block(text)])).tags) <= TAGS
    assert set(read(text).tags) <= TAGS, "whatever a file contains"


def test_a_picture_that_cannot_be_had_is_left_out() -> None:
    assert "img" not in report_html.render("![waits](waits-1.svg)", lambda name: None)
    assert "img" not in report_html.render("![x](javascript:alert.svg)", lambda name: name)
