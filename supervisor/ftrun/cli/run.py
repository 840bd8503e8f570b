"""`ftrun [OPTIONS] [--] COMMAND [ARG]...`"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from ftrun.accelerators.table import BY_NAME
from ftrun.config import derived, option_table, option_values
from ftrun.core.rules import exit_codes
from ftrun.core.text.sentences import printable
from ftrun.host.isolation import restore_lc_ctype

if TYPE_CHECKING:
    from ftrun.config.group_config import Group


def main() -> NoReturn:
    if os.environ.get("_FTRUN_COMPLETE") in ("bash_complete", "zsh_complete", "fish_complete"):
        from ftrun.cli.options import command_line

        command_line().main(prog_name="ftrun")  # click answers the shell, and exits
    code = run(sys.argv[1:])
    # Not sys.exit: Python would restore the default actions of signals, so that a signal could still change the exit
    # status, and would free every module first.  All output is written: stderr is line-buffered.
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Parse the command line and supervise the command; the exit codes are in docs/reference.md."""
    try:
        parsed = split(arguments)
        if parsed is None or "nproc-per-node" in parsed[0] or "PET_NPROC_PER_NODE" in os.environ:
            from ftrun.config import torchrun_options  # a command line of torchrun may be given

            arguments = torchrun_options.translate(arguments, os.environ)
            parsed = split(arguments)
        given, command = parsed or _with_click(arguments)
        phases = option_values.phases(given, os.environ)
        settings = option_values.settings(given, os.environ)
        derived.idle_timeout(settings)
        _check_min_devices(settings)
        ranks = _check_ranks(settings, bool(phases))
        group = _group(settings)
        if settings.dry_run:
            from ftrun.config.explain import show

            return show(settings, [phase.command for phase in phases] or [command], ranks, group and group.size)
        if phases:
            return _in_phases(phases, given, command, group)
        if not command:
            raise option_table.ConfigError("no command given; try: ftrun python train.py (or ftrun --help)")
    except option_table.ConfigError as error:
        _print(f"ftrun: {printable(str(error))}")
        return exit_codes.USAGE.code
    except Exception as error:  # no command runs
        _print(f"ftrun: {printable(repr(error))}")
        return exit_codes.INTERNAL.code
    restore_lc_ctype()
    from ftrun.pid1.bootstrap import PhaseContext
    from ftrun.pid1.loop import supervise

    return supervise(command, settings, phase=PhaseContext(group=group))


def _print(line: str) -> None:
    """On stderr, which may be closed, or broken."""
    with suppress(OSError):
        if sys.stderr is not None:
            print(line, file=sys.stderr)


def _check_min_devices(settings: option_table.Settings) -> None:
    """ConfigError if --min-devices is given where there is certainly no device."""
    if settings.min_devices is None:
        return
    from ftrun.host import devices

    why = devices.why_none(settings.probe in BY_NAME)
    if why is not None:
        raise option_table.ConfigError(f"--min-devices {settings['min-devices'].text}: {why}")


def _check_ranks(settings: option_table.Settings, phases: bool) -> int | None:
    """How many ranks ftrun starts on this node; None: one command.  ConfigError if that is zero or too large."""
    if settings.nproc_per_node is None:
        if settings.local_ranks_filter and not phases:  # a phase may have ranks
            raise option_table.ConfigError("--local-ranks-filter needs --nproc-per-node: there are no ranks otherwise")
        return None
    from ftrun.pid1.bootstrap import local_ranks
    from ftrun_hooks.layout import SLOTS

    count = local_ranks(settings.nproc_per_node)
    if count == 0:
        raise option_table.ConfigError("--nproc-per-node gpu: the command may use no accelerator here")
    if count > SLOTS:
        asked = settings["nproc-per-node"].text
        raise option_table.ConfigError(f"--nproc-per-node {asked}: {count} ranks are more than {SLOTS} on a node")
    shown = settings.local_ranks_filter
    if shown and max(shown) >= count:
        named = settings["local-ranks-filter"].text
        ranks = f"its ranks are 0 to {count - 1}" if count > 1 else "its only rank is 0"
        raise option_table.ConfigError(f"--local-ranks-filter {named}: this node has no such rank; {ranks}")
    return count


def _group(settings: option_table.Settings) -> "Group | None":
    """The group that this ftrun is a member of."""
    from ftrun.config import group_config

    group, note = group_config.current_group(settings)
    if note and not settings.quiet:
        _print(f"[ftrun] {note}")
    return group


def _in_phases(
    phases: Sequence[option_table.CommandPhase], given: dict[str, str], command: Sequence[str], group: "Group | None"
) -> int:
    if command:
        raise option_table.ConfigError(
            f"the config file has phases with commands of their own; {command[0]!r} would never run"
        )
    found = [(phase, option_values.settings(given, os.environ, phase)) for phase in phases]
    ranks = any(settings.nproc_per_node is not None for _, settings in found)
    if ranks and len({phase.command for phase in phases}) > 1:
        raise option_table.ConfigError(
            "--nproc-per-node: the phases have different commands; run them as jobs of their own"
        )
    for _, settings in found:
        _check_min_devices(settings)
    restore_lc_ctype()
    from ftrun.pid1.phases import run

    return run(found, group)


def split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]] | None:
    """Parse the common cases without click, whose import takes longer than all else before the command runs (ADR 13).
    None where click has to decide: an unknown or repeated option, a missing value, --help.  A test checks that both
    give the same result."""
    given: dict[str, str] = {}
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "-":
        argument = arguments[index]
        index += 1
        if argument == "--":
            break
        name, equals, text = argument[2:].partition("=")
        if argument in ("-q", "-v"):
            name = {"-q": "quiet", "-v": "verbose"}[argument]
        elif not argument.startswith("--"):
            return None
        option = option_table.BY_NAME.get(name)
        if option is None and name.startswith("no-"):
            name, option = name[3:], option_table.BY_NAME.get(name[3:])
            if option is None or not option.no:
                return None
            text = "off"
        elif option is not None and option.flag:
            text = "on"
        elif not equals and index < len(arguments):
            equals, text = "=", arguments[index]
            index += 1
        if option is None or (name in given and not option.many) or option.flag == bool(equals):
            return None
        given[name] = f"{given[name]}\n{text}" if name in given else text
    return given, list(arguments[index:])


def _with_click(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    import click

    from ftrun.cli.options import command_line

    try:
        parsed = command_line().main(list(arguments), "ftrun", standalone_mode=False)
    except click.ClickException as error:
        raise option_table.ConfigError(error.format_message().replace("\n", " ")) from None
    except click.Abort:
        raise option_table.ConfigError("aborted") from None
    except OSError as error:  # from stdout, for --help and --version
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the unwritten rest is discarded at exit
        raise option_table.ConfigError(f"stdout: {error.strerror}") from None
    if isinstance(parsed, int):  # --help and --version have printed
        sys.exit(parsed)
    given, command = parsed
    return given, command


if __name__ == "__main__":
    main()
