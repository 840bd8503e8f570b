"""Each option's value and where it comes from: `ftrun --dry-run` before a start, `ftctl explain` after it."""

import os
from collections.abc import Iterable, Sequence
from typing import Final

from ftrun.config import derived
from ftrun.config.option_table import OPTIONS, ConfigError, Settings
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import redaction
from ftrun.core.text.sentences import printable

WIDEST: Final = 40  # columns of a value before the column of the sources moves


class OptionRow(NamedTuple):
    """One option: its text without secrets, where that comes from, and what it means in this run, where the text does
    not say it (`auto`)."""

    name: str
    text: str
    source: str
    meaning: str = ""


def show(
    settings: Settings, commands: Sequence[Sequence[str]], ranks: int | None = None, members: int | None = None
) -> int:
    """Print a line for each option, those that somebody gave first, and the commands that would run; the exit code.
    Values of secrets are masked.  `ranks`: how many ftrun would start here; `members`: of the group."""
    names = [option.name for option in OPTIONS if option.name != "dry-run"]
    meanings = derived.meanings(settings, derived.policy(settings), ranks, members)
    texts = [(redaction.redact_option(name, settings[name].text), settings[name].source) for name in names]
    rows = [OptionRow(name, *text, meanings.get(name, "")) for name, text in zip(names, texts, strict=True)]
    try:
        print("\n".join(map(printable, [*lines(rows), *map(command_line, commands)])), flush=True)
    except BrokenPipeError:
        pass
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the unwritten rest is discarded at exit
        raise ConfigError(f"stdout: {error.strerror}") from None
    return 0


def command_line(command: Sequence[str]) -> str:
    return f"command: {' '.join(redaction.redact_command(command)) or 'none'}"


def lines(rows: Iterable[OptionRow]) -> list[str]:
    """A line for each option, those that somebody gave first."""
    ordered = sorted(rows, key=lambda row: row.source == "default")
    shown = [row._replace(name=f"--{row.name}", text=row.text or "-") for row in ordered]
    name = max(len(row.name) for row in shown)
    text = min(max(len(row.text) for row in shown), WIDEST)
    return [
        f"{row.name:<{name}}  {row.text:<{text}}  {row.source}" + (f": {row.meaning}" if row.meaning else "")
        for row in shown
    ]
