"""`ftctl VERB`: look at a run, also when ftrun is gone, and steer one that runs.

Each verb is a file in `verbs/`, those that steer are in `steering.py`.  It is loaded when it is called: `status` must
not wait for what `serve` needs.
"""

import importlib
import os
import sys
from typing import Final

import click

from ftrun import __version__
from ftrun.cli.common import UserError
from ftrun.core.text.sentences import printable
from ftrun.views.rundir import NoRunDir

VERBS: Final = {
    "status": "How the run stands.",
    "events": "The records, oldest first; -f waits for more.",
    "top": "A live view.",
    "restart": "End the command and start it again; costs no budget.",
    "stop": "End the command, and ftrun.",
    "pause": "No verdicts until resume: for a debugger.",
    "resume": "Judge again.",
    "stacks": "Where every process is, now.",
    "report": "The report of an attempt that hung.",
    "timeline": "A picture of the run, as PNG or HTML.",
    "serve": "A page with the live view and the timeline.",
    "doctor": "What this container permits and lacks.",
    "completion": "What bash, zsh or fish need to complete our words.",
}

STEERING: Final = ("restart", "stop", "pause", "resume")


class Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        if name in STEERING:
            found = getattr(importlib.import_module("ftrun.cli.steering"), name)
        else:
            found = importlib.import_module(f"ftrun.cli.verbs.{name}").command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, help="Look at a run of ftrun, and steer it.", options_metavar="", subcommand_metavar="VERB ...")
@click.version_option(__version__, prog_name="ftctl")
def cli() -> None:
    pass


def main() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed when we were started
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w"))  # noqa: SIM115
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:  # its message is the help, of many lines
        click.echo(error.format_message(), err=True)
        code = 2
    except click.ClickException as error:
        click.echo(f"ftctl: {printable(error.format_message())}", err=True)
        code = 2
    except (NoRunDir, UserError) as error:
        click.echo(f"ftctl: {printable(str(error))}", err=True)
        code = 1
    except OSError as error:  # of stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of it is not to be tried again at the exit
        code = 0 if isinstance(error, BrokenPipeError) else 1
        if code:
            click.echo(f"ftctl: cannot write: {error.strerror}", err=True)
    except click.Abort:  # Ctrl-C
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
