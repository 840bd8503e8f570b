"""The page of waitproof, with the table of the kinds of waits from the code; the rest of it is written by hand."""

from pathlib import Path
from typing import Final

from waitproof.wakers import KINDS

PAGE: Final = Path(__file__).resolve().parents[1] / "waitproof.md"
HEAD: Final = "| a thread waits for | who can end that |\n"


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEAD)
    rows = [f"| {kind.waits} | {kind.ends} |\n" for kind in KINDS]
    return "".join([before, HEAD, "| --- | --- |\n", *rows, "\n", rest.partition("\n\n")[2]])
