"""Options and errors that the verbs of `ftctl` share."""

from collections.abc import Callable
from typing import Any

import click


class UserError(Exception):
    """An error message of one line; `ftctl` exits with 1."""


def _folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


RUN_DIR = click.option(
    "--run-dir",
    metavar="DIR",
    shell_complete=_folders,
    help="The run dir [default: FTRUN_RUN_DIR, else that of your only running ftrun].",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def missing_package(package: str, extra: str, verb: str) -> Callable[[ImportError], UserError]:
    """The error for an optional package that is not installed."""
    return lambda error: UserError(f"{verb} needs {package} ({error.name} is missing): pip install 'ftrun[{extra}]'")


Command = Callable[..., Any]
