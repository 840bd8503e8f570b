"""`ftctl status`."""

import click

from ftrun.cli.common import AS_JSON, RUN_DIR, bold, show, show_json, width
from ftrun.views import rundir, summary
from ftrun.views.run_snapshot import read_snapshot


@click.command(
    help="Show the present state of the run: its phase and health, the last incident, and what happens next."
)
@RUN_DIR
@AS_JSON
def command(run_dir: str | None, as_json: bool) -> None:
    shown = read_snapshot(rundir.find(run_dir))
    if as_json:
        show_json(summary.document(shown))
        return
    columns = width()
    show([*map(bold, summary.title(shown, columns)), *summary.lines(shown, columns)])
