"""How the reading verbs print: any text, to any terminal, file or pipe."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from ftrun.cli.common import UserError

BOLD, PLAIN = "\033[1m", "\033[0m"


def width() -> int:
    """Of the terminal, at most 80."""
    try:
        return max(40, min(80, os.get_terminal_size(1).columns or 80))
    except OSError:
        return 80


def show(lines: Iterable[str]) -> None:
    """What the terminal cannot show is written out.  A reader that has seen enough ends the program, well."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    for line in lines:
        _write(f"{line}\n")
    _write("")


def _write(text: str) -> None:
    try:
        if text:
            sys.stdout.write(text)
        else:
            sys.stdout.flush()
    except OSError as error:
        # What is left of it is not to be tried again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        raise UserError(f"cannot write: {error.strerror}") from None


def show_json(value: Any) -> None:
    show([json.dumps(value)])


def bold(text: str) -> str:
    """On a terminal that shows it, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"{BOLD}{text}{PLAIN}"
