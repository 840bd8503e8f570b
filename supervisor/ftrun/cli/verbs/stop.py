"""`ftctl stop`."""

import click

from ftrun.cli.common import AS_JSON, RUN_DIR


@click.command(help="End the command (SIGTERM, the grace, SIGKILL), and ftrun with its code.")
@RUN_DIR
@AS_JSON
def command(run_dir: str | None, as_json: bool) -> None:
    from ftrun.cli.steering import give

    give("stop", run_dir, as_json)
