"""What a shell may write next: for `ftrun`, whose options are followed by another program, and for what all share.

`ftctl completion SHELL` prints the script.  It asks the program itself, in click's protocol: `_FTRUN_COMPLETE` is
`bash_complete`, `zsh_complete` or `fish_complete`, COMP_WORDS and COMP_CWORD say where the cursor is.  An answer of the
type `command` has the place of the first word of the command, from which on the shell completes as if ftrun were not
there.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from ftrun import config
from ftrun.cli.options import command_line

VARIABLE: Final = "_FTRUN_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
FILES: Final = {"FILE": "file", "PATH": "file", "GLOB": "file", "COMMAND": "file", "DIR": "dir"}
UNITS: Final = ("ms", "s", "m", "h", "d")
USUAL: Final = ("auto", "off", "10s", "1m", "5m", "30m", "1h")
Items = list["CompletionItem[str]"]


def answer() -> None:
    """For `ftrun`: writes the answer and ends, if the variable asks for one; else returns, and ftrun runs."""
    shell, _, what = os.environ.get(VARIABLE, "").partition("_")
    kind = get_completion_class(shell) if shell in SHELLS and what == "complete" else None
    if kind is None:
        return
    asked = kind(command_line(), {}, "ftrun", VARIABLE)
    try:
        found = items(*asked.get_completion_args())
        sys.stdout.write("".join(f"{asked.format_completion(item)}\n" for item in found))
        sys.stdout.flush()
    except (OSError, KeyError, ValueError):
        sys.exit(1)
    sys.exit(0)


def items(args: Sequence[str], incomplete: str) -> Items:
    """What may stand for `incomplete` after the words `args` of ftrun."""
    at = command_at(args, incomplete)
    if at is not None:
        return [CompletionItem(str(at + 1), type="command")]
    name, equals, text = incomplete.partition("=")
    option = _valued(name) if equals else _valued(args[-1]) if args else None
    if option is not None:
        return values(option, text if equals else incomplete)
    return [CompletionItem(name, help=told) for name, told in _names(args) if name.startswith(incomplete)]


def command_at(args: Sequence[str], incomplete: str) -> int | None:
    """Where the command begins in these words; None where one of our options, or its value, is being written."""
    index = 0
    while index < len(args):
        word = args[index]
        index += 1
        if word == "--":
            return index
        if not word.startswith("-") or word == "-":
            return index - 1
        if _valued(word) is not None:
            if index == len(args):
                return None
            index += 1
    return None if incomplete.startswith("-") else index


def _valued(word: str) -> config.Option | None:
    """The option that this word is, if its value is the next one."""
    option = config.BY_NAME.get(word[2:]) if word.startswith("--") else None
    return None if option is None or option.flag else option


def values(option: config.Option, text: str) -> Items:
    """Files and folders are left to the shell; of the rest, what the option takes."""
    if option.metavar in FILES:
        return [CompletionItem(text, type=FILES[option.metavar])]
    if option.metavar == "LIST":
        before, _, last = text.rpartition(",")
        causes = [word for word in ("hang", "fault", "failure", *([] if before else ["none"])) if word.startswith(last)]
        return [CompletionItem(f"{before},{word}" if before else word) for word in causes]
    if text.isdecimal() and "DUR" in option.metavar:
        return [CompletionItem(text + unit) for unit in UNITS]
    known = [word for word in option.metavar.split("|") if word.islower()]
    words = dict.fromkeys([*known, *([] if known and "DUR" not in option.metavar else USUAL), option.default])
    return [CompletionItem(word) for word in words if word and word.startswith(text) and _takes(option, word)]


def _takes(option: config.Option, word: str) -> bool:
    try:
        option.read(word)
    except ValueError:
        return False
    return option.metavar not in ("NAME", "HOST:PORT")  # takes anything


def _names(args: Sequence[str]) -> list[tuple[str, str]]:
    """Every option that may still be given, and what it means."""
    given = {word.partition("=")[0] for word in args}
    found = []
    for option in config.OPTIONS:
        names = [f"--{option.name}", *([f"--no-{option.name}"] if option.no else [])]
        names += [f"-{option.short}"] if option.short else []
        if option.many or given.isdisjoint(names):
            found += [(name, option.meaning) for name in names]
    return [*found, ("--version", "show the version"), ("--help", "show the options and exit codes")]


# --- for the options of ftctl and fthang ------------------------------------------------------------------------------


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    return [CompletionItem(incomplete, type="dir")]


def attempts(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Those that have a report, in the run dir that the words before name or that would be found without."""
    from ftrun.cli.verbs import report
    from ftrun.views import rundir

    try:
        found = report.attempts(rundir.find(ctx.params.get("run_dir")))
    except (OSError, rundir.NoRunDir):
        return []
    return [CompletionItem(str(number)) for number in found if str(number).startswith(incomplete)]


def kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    from ftrun.hang.kinds import KINDS

    return [CompletionItem(name, help=kind.words) for name, kind in KINDS.items() if name.startswith(incomplete)]
