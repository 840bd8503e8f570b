"""`ftctl VERB`: shows a run, also when ftrun is gone, and sends commands to a running one.

Each verb is a file in `verbs/`; those that send an order are in `orders.py`.  A file is loaded when its verb is
called: `status` must not wait for the packages that `serve` imports.
"""

import importlib
import json
import os
import sys
from typing import Any, Final

import click

from ftctl.common import UserError, discard_output
from ftrun import __version__
from ftrun.config.parsers import near
from ftrun.core.text.sentences import printable
from ftrun.records.files.rundir import NoRunDir

VERBS: Final = {
    "status": "Show the present state of the run.",
    "events": "Print the records, oldest first; -f waits for more.",
    "top": "Show a live view.",
    "logs": "Print the output of the command, where it is kept.",
    "restart": "Stop the command and start it again; uses no restart budget.",
    "stop": "Stop the command and ftrun.",
    "pause": "Suspend hang and fault detection until resume, for a debugger.",
    "resume": "Resume detection.",
    "stacks": "Print the present Python stacks of all processes.",
    "report": "Print the report of an attempt that hung or failed.",
    "list": "List all runs that you may see, living and ended.",
    "explain": "Show each option's value and its source.",
    "history": "List the schedules of the job and their attempts.",
    "timeline": "Draw the run as HTML or SVG.",
    "serve": "Serve a page with the live view and the timeline.",
    "doctor": "Check what this container permits and lacks.",
    "completion": "Print the completion script for bash, zsh or fish.",
}

STEERING: Final = ("restart", "stop", "pause", "resume")


class Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        if name in STEERING:
            found = getattr(importlib.import_module("ftctl.orders"), name)
        else:
            found = importlib.import_module(f"ftctl.verbs.{name}").command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A verb that does not exist is answered with the one that was probably meant."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            raise click.UsageError(f"no such verb: {args[0]}{near(args[0], VERBS, 0.6)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """A reader that has enough, as in `ftctl logs | head`, is no error; click would exit with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            return 0

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a verb: help, as an error.  What click does then depends on its version."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=Verbs,
    help="Show and control a run of ftrun.",
    options_metavar="",
    subcommand_metavar="VERB ...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--run-dir", metavar="DIR", help="The run dir, as after the verb.")
@click.version_option(__version__, prog_name="ftctl")
def cli(run_dir: str | None) -> None:
    pass


def main() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # it was closed before this process started
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w"))  # noqa: SIM115 - it stays open
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        before = isinstance(error, click.NoSuchOption) and error.option_name == "--json" and sys.argv[1:2] == ["--json"]
        _refuse("--json comes after the verb" if before else " ".join(error.format_message().split()))
        code = 2
    except (NoRunDir, UserError) as error:
        _refuse(str(error))
        code = 1
    except OSError as error:
        code = 0 if isinstance(error, BrokenPipeError) else 1
        if error.filename is not None:
            _refuse(f"{error.filename}: {error.strerror}")
        else:  # from stdout
            discard_output()
            if code:
                click.echo(f"ftctl: cannot write: {error.strerror}", err=True)
    except click.Abort:  # Ctrl-C
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(why: str) -> None:
    """One line on stderr; with `--json` an object on stdout, so that a program that parses it always finds JSON."""
    text = printable(why)
    if "--json" in sys.argv[1:]:
        click.echo(json.dumps({"ok": False, "why": text}))
    else:
        click.echo(f"ftctl: {text}", err=True)


if __name__ == "__main__":
    main()
