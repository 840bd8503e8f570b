"""`ftctl VERB`: look at a run through its run dir, whether ftrun still runs or not."""

import json
import sys

import click

from ftrun import __version__
from ftrun.views import rundir

RUN_DIR = click.option("--run-dir", metavar="DIR", help="The run dir [default: FTRUN_RUN_DIR, else your only one].")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="For machines.")


@click.group(help="Look at a run of ftrun.", context_settings={"help_option_names": ["--help"]})
@click.version_option(__version__, prog_name="ftctl")
def cli() -> None:
    pass


@cli.command(help="How the run stands.")
@RUN_DIR
@AS_JSON
def status(run_dir: str | None, as_json: bool) -> None:
    found = rundir.status(rundir.find(run_dir))
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, value in found.items():
        if value in (None, {}):
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
        elif isinstance(value, list):
            value = " ".join(map(str, value))
        click.echo(f"{name.replace('_', ' '):>10}  {value}")


@cli.command(help="The records, oldest first.")
@RUN_DIR
@AS_JSON
@click.option("-n", "last", type=click.IntRange(min=1), metavar="N", help="Only the last N.")
def events(run_dir: str | None, as_json: bool, last: int | None) -> None:
    found = list(rundir.events(rundir.find(run_dir)))
    for record in found[-last:] if last else found:
        if as_json:
            click.echo(json.dumps(record))
            continue
        fields = {k: v for k, v in record.items() if k not in ("schema", "time", "mono", "event", "attempt")}
        words = " ".join(f"{k}={v}" for k, v in fields.items() if v is not None)
        click.echo(f"{record.get('time')} {record.get('attempt'):>3} {record['event']:<10} {words}")


def main() -> None:
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"ftctl: {error.format_message()}", err=True)
        code = 2
    except rundir.NoRunDir as error:
        click.echo(f"ftctl: {error}", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
