"""Output of the reading verbs: any text, to any terminal, file or pipe."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from ftrun.cli.common import UserError

BOLD, PLAIN = "\033[1m", "\033[0m"


def width() -> int:
    """The width of the terminal, 40 to 80."""
    try:
        return max(40, min(80, os.get_terminal_size(1).columns or 80))
    except OSError:
        return 80


def show(lines: Iterable[str]) -> None:
    """Characters that the terminal cannot show are escaped.  If the reader closes the pipe, exit with 0."""
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
        # The unwritten rest is discarded at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        raise UserError(f"cannot write: {error.strerror}") from None


def show_json(value: Any) -> None:
    show([json.dumps(value)])


def bold(text: str) -> str:
    """Bold on a terminal that supports it, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"{BOLD}{text}{PLAIN}"
