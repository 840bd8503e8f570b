"""Each option's value and where it comes from: `ftrun --dry-run` before a start, `ftctl explain` after it."""

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from ftrun.config.option_table import OPTIONS, Settings
from ftrun.core.text import redaction
from ftrun.core.text.sentences import printable

WIDEST: Final = 40  # columns of a value before the column of the sources moves
Row = tuple[str, str, str]  # the name of an option, its text without secrets, and its source


def show(settings: Settings, commands: Sequence[Sequence[str]]) -> int:
    """Print a line for each option, those that somebody gave first, and the commands that would run; the exit code.
    Values of secrets are masked."""
    names = [option.name for option in OPTIONS if option.name != "dry-run"]
    rows = [(name, redaction.redact_option(name, settings[name].text), settings[name].source) for name in names]
    try:
        print("\n".join(map(printable, [*lines(rows), *map(command_line, commands)])), flush=True)
    except BrokenPipeError:
        pass
    except OSError as error:
        print(f"ftrun: stdout: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def command_line(command: Sequence[str]) -> str:
    return f"command: {' '.join(redaction.redact_command(command)) or 'none'}"


def lines(rows: Iterable[Row]) -> list[str]:
    """A line for each option, those that somebody gave first."""
    shown = [(f"--{name}", text or "-", source) for name, text, source in sorted(rows, key=lambda r: r[2] == "default")]
    name, text = (max(len(row[column]) for row in shown) for column in (0, 1))
    text = min(text, WIDEST)
    return [f"{one:<{name}}  {value:<{text}}  {source}" for one, value, source in shown]
