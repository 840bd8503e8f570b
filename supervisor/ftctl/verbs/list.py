"""`ftctl list`: the living runs as a table, then those that have ended."""

from collections.abc import Iterator, Sequence

import click

from ftctl import all_runs
from ftctl.all_runs import RunLine
from ftctl.common import AS_JSON, show, show_json, width
from ftrun.core.text.sentences import printable, short
from ftrun.records import summary

INDENT = "    "
LEAST = 12  # characters of a command in the table


@click.command(
    name="list",
    help="List all runs that you may see, the living ones as a table, then those that have ended: those under the temp "
    "folder, those that run anywhere on "
    "this node, the earlier ones in their state dirs, and those in the given folders.",
)
@click.argument("folders", nargs=-1, metavar="[DIR]...")
@click.option("--living", is_flag=True, help="Only those that run.")
@AS_JSON
def command(folders: tuple[str, ...], living: bool, as_json: bool) -> None:
    found = [one for one in all_runs.read(folders) if one.alive or not living]
    if as_json:
        show_json(summary.plain(all_runs.document(found)))
        return
    columns = width()
    show(_table([one for one in found if one.alive], columns))
    if any(one.alive for one in found) and not all(one.alive for one in found):
        show(["", "ended:"])
    show(line for one in found if not one.alive for line in _lines(one, columns))
    if not found:
        show(["no run was found"])


def _table(living: Sequence[RunLine], columns: int) -> Iterator[str]:
    """A row for each; the command has what is left of the line.  Below it, what a person can do about some."""
    if not living:
        return
    heads = "state", "attempt", "step", "started", "run dir", "command"
    rows = [_cells(one) for one in living]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    left = max(LEAST, columns - sum(widths[:-1]) - 2 * (len(heads) - 1))
    for cells in (heads, *rows):
        numbers = (f"{cell:>{width}}" for cell, width in zip(cells[1:4], widths[1:4], strict=True))
        yield "  ".join(
            [f"{cells[0]:<{widths[0]}}", *numbers, f"{cells[4]:<{widths[4]}}", short(cells[5], left)]
        ).rstrip()
    for one in living:
        if one.do:
            about = "" if one.run_dir in one.do else f", about {one.run_dir}"
            yield from summary.wrapped(f"do{about}: {one.do}", columns, INDENT)


def _cells(one: RunLine) -> tuple[str, ...]:
    """The row of a living run; one that cannot be read is alive for nobody."""
    step, age = "" if one.step is None else str(one.step), summary.age(one.began)
    return one.word, str(one.attempt), step, age, printable(one.run_dir), printable(one.command)


def _lines(one: RunLine, columns: int) -> list[str]:
    step = "" if one.step is None else f", step {one.step}"
    begun = (
        f"{INDENT}{short(one.command, min(80, columns) - 40) or 'unknown command'}, started {summary.ago(one.began)}"
    )
    head = summary.wrapped(one.problem or f"{one.state}{step}", columns, INDENT)
    body = summary.wrapped(begun, columns, INDENT)
    return [*head, *(body if one.problem is None else ()), printable(f"{INDENT}{one.run_dir}")]
