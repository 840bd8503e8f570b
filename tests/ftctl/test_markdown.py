"""A report's Markdown as text."""

from ftctl.markdown import lines
from ftrun.core.text.markdown import block, code, plain, table


def shown(markdown: str) -> str:
    return "\n".join(lines(markdown))


def test_escaped_text_is_read_back() -> None:
    for text in ("a_b*c", "`ticks` and | pipes", "<b>&#x", "\\", "``", "*", "a[1](2)", " spaces "):
        assert shown(code(text)) == text
        assert shown(plain(text)).strip() == text.strip()


def test_tables_are_columns() -> None:
    rows = [["1", code("a|b"), plain("x_y")], ["1000", code("c"), ""]]
    assert shown(table(["rank", "program", "state"], rows)).split("\n") == [
        "rank  program  state",
        "1     a|b      x_y",
        "1000  c",
    ]


def test_blocks_are_indented() -> None:
    assert shown(block("| no | table |\n```\n# no title\n  `x`")) == (
        "    | no | table |\n    ```\n    # no title\n      `x`"
    )


def test_control_characters_are_escaped() -> None:
    assert shown("a\x1b[2Jb") == "a\\x1b[2Jb"


def test_a_truncated_report_is_shown_up_to_its_end() -> None:
    assert shown("## Title\n\n```text\nfirst\n| a") == "Title\n-----\n\n    first\n    | a"
    assert shown("| a | b |\n| --- |") == "a  b"
