"""What the verbs of `ftctl` share: options, errors, and output to any terminal, file or pipe."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Final

import click

GIB: Final = 1 << 30
WHOLE: Final = 100_000  # columns; no line is that long


class UserError(Exception):
    """An error message of one line; `ftctl` exits with 1."""


def _folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def _of_group(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The run dir that is given after the verb, or before it: `ftctl --run-dir DIR VERB` is understood as well.  An
    empty one, as of a variable without a value, must not name whatever runs here."""
    given = value if value is not None or ctx.parent is None else ctx.parent.params.get("run_dir")
    if given == "":
        raise click.BadParameter("it is empty")
    return given


RUN_DIR = click.option(
    "--run-dir",
    metavar="DIR",
    shell_complete=_folders,
    callback=_of_group,
    help="The run dir [default: FTRUN_RUN_DIR, else that of your only running ftrun].",
)


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def width() -> int:
    """The width of the terminal, 40 to 80.  In a pipe or a file each line stays whole, so that `grep` finds all of
    it."""
    try:
        return max(40, min(80, os.get_terminal_size(1).columns or 80))
    except OSError:
        return WHOLE


def show(lines: Iterable[str], code: int = 0) -> None:
    """Characters that the terminal cannot show are escaped.  If the reader closes the pipe, exit with `code`."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        sys.exit(code)


def discard_output() -> None:
    """Nobody reads standard output any more: what is not written yet is discarded at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def size(count: int) -> str:
    """A number of bytes, for people."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


def show_json(value: Any, code: int = 0) -> None:
    show([json.dumps(value)], code)


def bold(text: str) -> str:
    """Bold on a terminal that supports it, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"\033[1m{text}\033[0m"
