"""The option table as a click command: help, completion, and every error message."""

from functools import partial
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from ftrun import __version__
from ftrun.config import option_table
from ftrun.config.parsers import CAUSES, UNITS
from ftrun.core.rules import exit_codes

LISTED: Final = (*CAUSES, "retry", "rank")  # what an option of the kind LIST may take
NOTES = """Each option is also read from the environment, as FTRUN_<NAME>. Durations: 500ms, 90s, 10m, 1h, 1d; "off"
disables."""
FILES: Final = {"FILE": "file", "PATH": "file", "GLOB": "file", "COMMAND": "file", "DIR": "dir"}
USUAL: Final = ("auto", "off", "10s", "1m", "5m", "30m", "1h")


GROUPS: Final = {
    "What ftrun does": (
        *("restart-on", "max-restarts", "after-limit", "unconditional-retry", "backoff", "stable-after", "progress"),
        *("grace", "stop-grace", "recover", "recover-timeout", "link-timeout", "standby", "preload"),
    ),
    "How a hang is found": (
        *("hang-timeout", "start-timeout", "section-timeout", "idle-timeout", "idle-cpu", "idle-io", "auto-beat"),
    ),
    "Devices": (
        *("probe", "check-devices", "device-timeout", "fault-table", "reset-file", "heal", "heal-timeout"),
        "min-devices",
    ),
    "Ranks that ftrun starts": ("nproc-per-node", "local-ranks-filter", "prefix-ranks"),
    "Several nodes": (
        *("group-size", "group-rank", "group-endpoint", "group-secret-file", "group-job", "wait-peer"),
        *("peer-timeout", "spares", "scale-out", "replace-members"),
    ),
    "Files and folders": ("run-dir", "log-dir", "state-dir", "config", "annotations", "termination-log", "node-name"),
    "Reports and metrics": (
        *("on-event", "webhook", "webhook-format", "notify-on", "metrics", "metrics-file", "otlp", "journal"),
        *("log-format", "quiet", "verbose"),
    ),
    "The end": ("on-exit", "unmount"),
    "This program": ("dry-run", "version", "help"),
}


def command_line() -> click.Command:
    """A click command whose result is the option values as text, and the command to run."""
    options: list[click.Parameter] = [_option(option) for option in option_table.OPTIONS]
    words = click.Argument(
        ["words"], nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARG]...", shell_complete=_files
    )

    def parsed(words: tuple[str, ...], **values: Any) -> tuple[dict[str, str], list[str]]:
        given = {name.replace("_", "-"): value for name, value in values.items() if value not in (None, ())}
        return {name: _text(value) for name, value in given.items()}, list(words)

    command = _Grouped(
        "ftrun",
        params=[*options, words],
        callback=parsed,
        help="Run COMMAND as the first process of a training container: detect hangs and restart the command in place.",
        epilog=f"\b\n{_codes()}\n\n{NOTES}",
        options_metavar="[OPTIONS] [--]",
        context_settings={
            "allow_interspersed_args": False,
            "help_option_names": ["-h", "--help"],
            "max_content_width": 110,
        },
    )
    return click.version_option(__version__, prog_name="ftrun")(command)


class _Grouped(click.Command):
    """Help with the options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The names of --help are in no fixed order before click 8.5.
        by_name = {max(param.opts, key=len).lstrip("-"): param.get_help_record(ctx) for param in self.get_params(ctx)}
        for title, names in GROUPS.items():
            with formatter.section(title):
                rows = [by_name[name] for name in names]
                formatter.write_dl([row for row in rows if row is not None])


def _option(option: option_table.Option[Any]) -> click.Option:
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
        shell_complete=None if option.flag else partial(_values, option),
    )


def _files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _values(
    option: option_table.Option[Any], ctx: click.Context, param: click.Parameter, text: str
) -> list[CompletionItem]:
    """For shell completion.  The shell completes files and folders; for other options these are the valid values."""
    if option.metavar in FILES:
        return [CompletionItem(text, type=FILES[option.metavar])]
    if option.metavar == "LIST":
        before, _, last = text.rpartition(",")
        causes = [word for word in (*LISTED, *([] if before else ["none"])) if word.startswith(last)]
        causes = [word for word in causes if _takes(option, word)]
        return [CompletionItem(f"{before},{word}" if before else word) for word in causes]
    if text.isdecimal() and "DUR" in option.metavar:
        return [CompletionItem(text + unit) for unit in UNITS]
    known = [word for word in option.metavar.split("|") if word.islower()]
    words = dict.fromkeys([*known, *([] if known and "DUR" not in option.metavar else USUAL), option.default])
    return [CompletionItem(word) for word in words if word and word.startswith(text) and _takes(option, word)]


def _takes(option: option_table.Option[Any], word: str) -> bool:
    try:
        option.read(word)
    except ValueError:
        return False
    return option.metavar not in ("NAME", "HOST:PORT")  # any text is valid


def _text(value: bool | str | tuple[str, ...]) -> str:
    """The value as the environment variable would contain it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else "\n".join(value)


def _codes() -> str:
    rows = [f"  {v.code:<4}{v.name}: {v.meaning} -> {v.outer}" for v in exit_codes.TABLE]
    return "\n".join(["Exit codes: the command's own or 128+signal, and", *rows])
