"""The option table as a click command: help, completion, and every error message."""

import click

from ftrun import __version__, config
from ftrun.core import exitcode

NOTES = """Each option is also read from the environment, as FTRUN_<NAME>. Durations: 500ms, 90s, 10m, 1h, 1d; "off"
disables."""


def command_line() -> click.Command:
    """Called, it gives the option texts as they were written, and the command."""
    options: list[click.Parameter] = [_option(option) for option in config.OPTIONS]
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARG]...")

    def parsed(words: tuple[str, ...], **texts: str | bool | None) -> tuple[dict[str, str], list[str]]:
        given = {name.replace("_", "-"): text for name, text in texts.items() if text not in (None, False)}
        return {name: "on" if text is True else str(text) for name, text in given.items()}, list(words)

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
    names = [f"-{option.short}", f"--{option.name}"] if option.short else [f"--{option.name}"]
    default = f"  [default: {option.default}]" if option.default and not option.flag else ""
    return click.Option(
        names,
        is_flag=option.flag,
        default=None if not option.flag else False,
        metavar=option.metavar or None,
        help=option.meaning + default,
        type=None if option.flag else str,
    )


def _codes() -> str:
    rows = [f"  {v.code:<4}{v.name}: {v.meaning} -> {v.outer}" for v in exitcode.TABLE]
    return "\n".join(["Exit codes: the command's own or 128+signal, and", *rows])
