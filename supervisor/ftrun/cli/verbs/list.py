"""`ftctl list`."""

import textwrap

import click

from ftrun.cli.common import AS_JSON, show, show_json, width
from ftrun.core.text.sentences import printable, short
from ftrun.views import all_runs, summary
from ftrun.views.all_runs import RunLine

INDENT = "    "


@click.command(
    name="list",
    help="List all runs that you may see, living and ended: those under the temp folder, those that run anywhere on "
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
    show(line for one in found for line in _lines(one, columns))
    if not found:
        show(["no run was found"])


def _lines(one: RunLine, columns: int) -> list[str]:
    step = "" if one.step is None else f", step {one.step}"
    begun = (
        f"{INDENT}{short(one.command, min(80, columns) - 40) or 'unknown command'}, started {summary.ago(one.began)}"
    )
    head = textwrap.wrap(
        printable(one.problem or f"{one.state}{step}"),
        columns,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    body = textwrap.wrap(
        printable(begun), columns, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False
    )
    return [*head, *(body if one.problem is None else ()), printable(f"{INDENT}{one.run_dir}")]
