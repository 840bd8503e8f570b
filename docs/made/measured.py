"""What was measured, for people: the pages of benchmarks, hangs, reliability and scale.  The results themselves are
docs/measured/*/*.json.

`python docs/made/measured.py` lists them, with `benchmarks/40-hang` it prints that one whole, as Markdown, and with
`benchmarks` a folder.

A page is the template in docs/made/pages, in which `{table FOLDER/NAME}` stands for the table of a result,
`{table FOLDER/NAME columns=0,2 rows=ftrun,tini}` for these columns and the rows that begin so, and
`{cell FOLDER/NAME ROW COLUMN}` for one cell.  A template that names what was not measured is an error, so that no page
shows an old figure."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
RESULTS = DOCS / "measured"
TEMPLATES = DOCS / "made" / "pages"
FIELD = re.compile(r"^\{(table) ([^}]+)\}$|\{(cell) ([^}]+)\}", re.M)


def page(name: str) -> str:
    """The page, from its template and the results that there are."""
    text = (TEMPLATES / f"{name}.txt").read_text(encoding="utf-8")
    return FIELD.sub(lambda found: _filled(found[1] or found[3], found[2] or found[4]), text)


def results_list() -> str:
    """A line for each result: its name, what it is about, the program that measured it, the day and the commit."""
    found = ((path, json.loads(path.read_text())) for path in sorted(RESULTS.glob("*/*.json")))
    return "\n".join(
        f"{path.relative_to(RESULTS).with_suffix('')}: {one['title']}; {_source(one)}" for path, one in found
    )


def whole(name: str) -> str:
    """One result, or all of a folder, with everything that its program says of it."""
    paths = [RESULTS / f"{name}.json"] if "/" in name else sorted((RESULTS / name).glob("*.json"))
    return "\n".join(_section(json.loads(path.read_text())) for path in paths)


def _filled(kind: str, words: str) -> str:
    name, *more = shlex.split(words)
    found = json.loads((RESULTS / f"{name}.json").read_text())
    if kind == "cell":
        row, column = more
        (cell,) = [one[int(column)] for one in found["rows"] if one[0] == row]
        return str(cell).strip("*")
    options = dict(one.split("=", 1) for one in more)
    columns = [int(one) for one in options["columns"].split(",")] if "columns" in options else range(len(found["head"]))
    wanted = tuple(options["rows"].split(",")) if "rows" in options else ("",)
    rows = [row for row in found["rows"] if row[0].startswith(wanted)]
    missing = [begin for begin in wanted if not any(row[0].startswith(begin) for row in rows)]
    if missing:
        raise ValueError(f"{name} has no row that begins with {missing}")
    table = [_row([found["head"][at] for at in columns]), _row(["---"] * len(columns))]
    table += [_row([row[at] for at in columns]) for row in rows]
    return "\n".join([*table, "", _source(found)])


def _section(found: dict[str, Any]) -> str:
    lines = [f"## {found['title']}", ""]
    for paragraph in found["before"]:
        lines += [paragraph, ""]
    if found["rows"]:
        lines += [_row(found["head"]), _row(["---"] * len(found["head"]))]
        lines += [_row(row) for row in found["rows"]]
        lines.append("")
    for paragraph in found["after"]:
        lines += [paragraph, ""]
    return "\n".join([*lines, _source(found), ""])


def _source(found: dict[str, Any]) -> str:
    return f"`{found['made_by']}`, {found['day']}, commit {found['commit']}."


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        print(whole(asked))
    if not sys.argv[1:]:
        print(results_list())
