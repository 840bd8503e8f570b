"""`ftctl pause`."""

import click

from ftrun.cli.common import AS_JSON, RUN_DIR
from ftrun.wire.texts import duration


def _lasting(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    help="No verdicts, neither on silence nor on devices: for a debugger.  Until `ftctl resume`, or for a given time."
)
@RUN_DIR
@AS_JSON
@click.option("--for", "lasting", callback=_lasting, metavar="DUR", help="Judge again by itself after so long.")
def command(run_dir: str | None, as_json: bool, lasting: float | None) -> None:
    from ftrun.cli.steering import give

    give("pause", run_dir, as_json, lasting)
