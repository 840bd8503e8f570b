"""`ftrun --dry-run`: each option's value, and where it comes from."""

import re
import sys
from collections.abc import Sequence

from ftrun.config.option_table import OPTIONS, Settings
from ftrun.core.text import redaction
from ftrun.core.text.sentences import printable


def show(settings: Settings, commands: Sequence[Sequence[str]]) -> int:
    """Print a line for each option, those that somebody gave first, and the commands that would run; the exit code.
    Values of secrets are masked."""
    try:
        print("\n".join(map(printable, lines(settings, commands))), flush=True)
    except BrokenPipeError:
        pass
    except OSError as error:
        print(f"ftrun: stdout: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _text(name: str, text: str) -> str:
    """On one line, without secrets; the path of a webhook is one."""
    if name == "webhook":
        text = re.sub(r"(://[^/\n]*/)[^\n]+", rf"\1{redaction.MASK}", text)
    return redaction.redact(text).replace("\n", ", ") or "-"


def lines(settings: Settings, commands: Sequence[Sequence[str]]) -> list[str]:
    rows = [(option.name, settings[option.name]) for option in OPTIONS if option.name != "dry-run"]
    rows.sort(key=lambda row: row[1].source == "default")
    shown = [(f"--{name}", _text(name, value.text), value.source) for name, value in rows]
    name, text = (max(len(row[column]) for row in shown) for column in (0, 1))
    text = min(text, 40)
    found = [f"{one:<{name}}  {value:<{text}}  {source}" for one, value, source in shown]
    return [*found, *(f"command: {' '.join(redaction.redact_command(command)) or 'none'}" for command in commands)]
