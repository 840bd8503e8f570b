"""The value of each option and its source: option > environment > annotations > config file > default."""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ftrun.config import annotations
from ftrun.config.option_table import (
    BY_NAME,
    EXCLUSIVE,
    JOB_OPTIONS,
    OPTIONS,
    CommandPhase,
    ConfigError,
    Given,
    Settings,
)
from ftrun.config.parsers import near

# Variables that ftrun sets for its command (docs/reference.md); they are not options of a nested ftrun.
COMMAND_VARIABLES: Final = ("BEAT_DIR", "EPOCH", "RESTART_REASON", "LAST_STEP", "LAST_CHECKPOINT", "LAST_SECTION")
LARGEST: Final = 1 << 20  # bytes of a file that an option names
LISTS: Final = ("LIST", "EVENTS", "MODULES", "RANKS")  # options whose text is a list with commas


def settings(given: Mapping[str, str], environment: Mapping[str, str], phase: CommandPhase | None = None) -> Settings:
    """The value of every option with its source, for `phase` if given; ConfigError for the first wrong value."""
    from_environment = _environment(environment)
    file = given.get("config") or from_environment.get("config")
    from_file = read_file(file)[0] if file else {}
    platform = given.get("annotations") or from_environment.get("annotations") or from_file.get("annotations")
    annotated = annotations.Annotations()
    if platform:
        # The platform writes this file: of whatever kind and size it is, it stops no job.
        annotated = annotations.read(platform, _beginning("annotations", platform)[1].decode("utf-8", "replace"))
    sources = (
        ("option", given),
        ("environment", from_environment),
        ("annotations", dict(annotated.texts)),
        (f"phase {phase.name}" if phase else "", phase.texts if phase else {}),
        ("config file", from_file),
    )
    values: dict[str, Any] = {}
    origins: dict[str, Given] = {}
    for option in OPTIONS:
        source, text = next(
            ((s, texts[option.name]) for s, texts in sources if option.name in texts), ("default", None)
        )
        if text is None:
            values[option.name] = option.read(option.default) if option.default else None
            origins[option.name] = Given(option.default, source)
            continue
        try:
            values[option.name], origins[option.name] = option.read(text), Given(text, source)
        except ValueError as error:
            given_as = f"--{option.name}", option.variable, f"{file}: {option.name}"
            places = dict(zip(("option", "environment", "config file"), given_as, strict=True))
            name = places.get(source, f"{source}: {option.name}")
            raise ConfigError(f"{name}: {error}") from None
    _exclude(values, origins, [source for source, _ in sources])
    found = Settings(values, origins, annotated)
    if found.fault_table:
        _check_table(found.fault_table)
    return found


def _exclude(values: dict[str, Any], origins: dict[str, Given], sources: list[str]) -> None:
    """Of two options that exclude each other, the one from the lower source has its default; ConfigError if both come
    from the same one."""
    for pair in EXCLUSIVE:
        if not all(values[name] for name in pair):
            continue
        used, dropped = sorted(pair, key=lambda name: sources.index(origins[name].source))
        source = origins[used].source
        if source == origins[dropped].source:
            place = "command line" if source == "option" else source
            raise ConfigError(f"--{pair[0]} and --{pair[1]} cannot be used together: both come from the {place}")
        values[dropped] = BY_NAME[dropped].read(BY_NAME[dropped].default) if BY_NAME[dropped].default else None
        origins[dropped] = origins[dropped]._replace(instead=used)


def _check_table(file: str) -> None:
    """ConfigError if the fault table of the site has any error.  The helpers that need the table read it again."""
    from ftrun.core.rules import fault_codes

    content = file_content("fault-table", file)
    try:
        fault_codes.parse(content.decode())
    except ValueError as error:
        raise ConfigError(f"--fault-table {file}: {error}") from None


def file_content(option: str, file: str) -> bytes:
    """The content of a regular file of at most 1 MiB, which is read several times."""
    is_regular, content = _beginning(option, file)
    if not is_regular:
        raise ConfigError(f"--{option} {file}: not a regular file")
    if len(content) > LARGEST:
        raise ConfigError(f"--{option} {file}: larger than {LARGEST >> 20} MiB")
    return content


def _beginning(option: str, file: str) -> tuple[bool, bytes]:
    """Whether a file is a regular one, and what it has, up to one byte more than 1 MiB.  The writer of a FIFO is not
    waited for.  ConfigError if the file cannot be opened or read."""
    try:
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            return stat.S_ISREG(os.fstat(stream.fileno()).st_mode), stream.read(LARGEST + 1) or b""
    except OSError as error:
        raise ConfigError(f"--{option} {file}: {error.strerror}") from None


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    variables = {option.variable: option.name for option in OPTIONS}
    ignored = {"FTRUN_" + name for name in COMMAND_VARIABLES}
    if "FTRUN_BEAT_DIR" in environment:
        # These variables come from an outer ftrun: its run dir and its place in a group are not those of this one.
        ignored |= {"FTRUN_RUN_DIR", *(name for name in variables if name.startswith("FTRUN_GROUP_"))}
    found = {}
    for variable, text in environment.items():
        if not variable.startswith("FTRUN_") or variable in ignored:
            continue
        if variable in variables:
            if text:
                found[variables[variable]] = text
        elif match := near(variable, variables, 0.85):
            # Other programs may use the prefix (Kubernetes sets FTRUN_PORT for a service named ftrun), so only a name
            # that is close to an option is an error.
            raise ConfigError(f"{variable}: no such option{match}")
    return found


def phases(given: Mapping[str, str], environment: Mapping[str, str]) -> list[CommandPhase]:
    """The `[[phase]]` tables of the config file, in order."""
    file = given.get("config") or _environment(environment).get("config")
    return read_file(file)[1] if file else []


def read_file(file: str) -> tuple[dict[str, str], list[CommandPhase]]:
    """The keys of a TOML file as option texts, and its phases."""
    import tomllib

    text = file_content("config", file)
    try:
        content = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--config {file}: {error}") from None
    tables = content.pop("phase", [])
    try:
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError("phase is not a list of tables; write [[phase]]")
        found = [_phase(table) for table in tables]
        for name in {phase.name for phase in found}:
            if sum(phase.name == name for phase in found) > 1:
                raise ConfigError(f"two phases have the name {name!r}")
        return _texts(content, BY_NAME), found
    except ConfigError as error:
        raise ConfigError(f"--config {file}: {error}") from None


def _phase(table: dict[str, Any]) -> CommandPhase:
    name, command = table.pop("name", None), table.pop("command", None)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,100}", name):
        raise ConfigError(f"a phase has the name {name!r}; use letters, digits, and any of . _ -")
    import shlex

    try:
        arguments = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:
        raise ConfigError(f"phase {name!r}: command: {error}") from None
    if not isinstance(arguments, list) or not arguments or not all(isinstance(one, str) for one in arguments):
        raise ConfigError(f"phase {name!r} has no command; write command = ['python', 'train.py']")
    if any("\0" in one for one in arguments):
        raise ConfigError(f"phase {name!r}: the command has a NUL character")
    try:
        return CommandPhase(
            name, tuple(arguments), _texts(table, [option for option in BY_NAME if option not in JOB_OPTIONS])
        )
    except ConfigError as error:
        raise ConfigError(f"phase {name!r}: {error}") from None


def _texts(content: Mapping[str, Any], known: Iterable[str]) -> dict[str, str]:
    found = {}
    for key, value in content.items():
        name = key.replace("_", "-")
        if name == "config":
            raise ConfigError(f"the key {key!r} has no meaning in a config file")
        if name not in known:
            raise ConfigError(f"unknown key {key!r}{near(name, known)}")
        option, values = BY_NAME[name], value if isinstance(value, list) else [value]
        if isinstance(value, list) and not (option.many or option.metavar in LISTS):
            raise ConfigError(f"{key!r} takes no list")
        if not all(isinstance(one, str | int | float) for one in values):
            raise ConfigError(f"{key!r} is neither a text nor a number nor true or false")
        found[name] = ("\n" if option.many else ",").join(map(str, values))
        if "\0" in found[name]:
            raise ConfigError(f"{key!r} has a NUL character")
    return found
