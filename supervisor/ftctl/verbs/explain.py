"""`ftctl explain`."""

from collections.abc import Mapping
from typing import Final

import click

from ftctl.common import AS_JSON, RUN_DIR, UserError, show, show_json
from ftrun.config.explain import OptionRow, command_line, lines
from ftrun.config.option_table import OPTIONS
from ftrun.core.text.sentences import printable
from ftrun.records.files import rundir, state

SCHEMA: Final = 1


@click.command(
    help="Show the value of each option of a run, living or ended, and its source: option, environment, annotations, "
    "phase, config file or default; what `auto` means in it; and its command.  Values of secrets are masked."
)
@RUN_DIR
@AS_JSON
def command(run_dir: str | None, as_json: bool) -> None:
    found = rundir.find(run_dir)
    loaded = state.load(found)
    run = loaded.rest.run
    if run.options is None:
        raise UserError(loaded.problem or f"{found}: the ftrun of this run, {run.version}, kept no options")
    rows = _rows(run.options, run.meanings)
    if as_json:
        options = {
            row.name: {"value": row.text, "source": row.source} | ({"meaning": row.meaning} if row.meaning else {})
            for row in rows
        }
        show_json({"schema": SCHEMA, "run_dir": found, "options": options, "command": run.command})
        return
    show(map(printable, [*lines(rows), command_line(run.command)]))


def _rows(given: Mapping[str, tuple[str, str]], meanings: Mapping[str, str]) -> list[OptionRow]:
    """The options that the run was given, and the others with the defaults of the installed ftrun."""
    defaults = {option.name: (option.default, "default") for option in OPTIONS if option.name != "dry-run"}
    shown = (defaults | dict(given)).items()
    return [OptionRow(name, text, source, meanings.get(name, "")) for name, (text, source) in shown]
