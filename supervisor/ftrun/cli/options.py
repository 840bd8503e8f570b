"""The option table as a click command: help, completion, and every error message."""

from typing import Any

import click

from ftrun import __version__, config
from ftrun.core import exitcode

NOTES = """Each option is also read from the environment, as FTRUN_<NAME>. Durations: 500ms, 90s, 10m, 1h, 1d; "off"
disables."""


def command_line() -> click.Command:
    """Called, it gives the option texts as they were written, and the command."""
    options: list[click.Parameter] = [_option(option) for option in config.OPTIONS]
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARG]...")

    def parsed(words: tuple[str, ...], **values: Any) -> tuple[dict[str, str], list[str]]:
        given = {
            name.replace("_", "-"): value for name, value in values.items() if value not in (None, ())
        }  # not given
        return {name: _text(value) for name, value in given.items()}, list(words)

    command = click.Command(
        "ftrun",
        params=[*options, words],
        callback=parsed,
        help="Run COMMAND as the first process of a training container: find it hung, end it, start it again in place.",
        epilog=f"\b\n{_codes()}\n\n{NOTES}",
        options_metavar="[OPTIONS] [--]",
        context_settings={"allow_interspersed_args": False, "help_option_names": ["--help"], "max_content_width": 110},
    )
    return click.version_option(__version__, prog_name="ftrun")(command)


def _option(option: config.Option) -> click.Option:
    name = f"--{option.name}/--no-{option.name}" if option.no else f"--{option.name}"
    names = [f"-{option.short}", name] if option.short else [name]
    default = f"  [default: {option.default}]" if option.default and (option.no or not option.flag) else ""
    default += "  Repeatable." if option.many else ""
    return click.Option(
        names,
        is_flag=option.flag,
        multiple=option.many,
        default=None,
        metavar=option.metavar or None,
        help=option.meaning + default,
        type=bool if option.flag else str,
    )


def _text(value: bool | str | tuple[str, ...]) -> str:
    """As it would stand in the environment."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else "\n".join(value)


def _codes() -> str:
    rows = [f"  {v.code:<4}{v.name}: {v.meaning} -> {v.outer}" for v in exitcode.TABLE]
    return "\n".join(["Exit codes: the command's own or 128+signal, and", *rows])
