"""`ftctl resume`."""

import click

from ftrun.cli.common import AS_JSON, RUN_DIR


@click.command(help="Judge again.  The time of the pause counts for nobody.")
@RUN_DIR
@AS_JSON
def command(run_dir: str | None, as_json: bool) -> None:
    from ftrun.cli.steering import give

    give("resume", run_dir, as_json)
