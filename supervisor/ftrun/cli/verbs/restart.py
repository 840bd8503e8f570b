"""`ftctl restart`."""

import click

from ftrun.cli.common import AS_JSON, RUN_DIR


@click.command(help="End the whole process tree and start the command again.  It counts as no restart in a row.")
@RUN_DIR
@AS_JSON
def command(run_dir: str | None, as_json: bool) -> None:
    from ftrun.cli.steering import give

    give("restart", run_dir, as_json)
