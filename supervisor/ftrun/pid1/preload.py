"""What is imported before the first start of the command (`--preload`), and what is kept of it for a later ftrun.

Without the option it is what an earlier attempt of the same command had imported by its first heartbeat, as far as a
standby has imported it in advance: that list is in `state.json`, and in the state dir.
"""

import os
from collections.abc import Sequence
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import redaction
from ftrun.host import safe_files
from ftrun.messages.codec import Codec, Malformed, parse_json
from ftrun.pid1.bootstrap import Setup
from ftrun_hooks import layout

FILE: Final = "preload"  # its name says that it is from no attempt of this run (`_parked.py`)
MODULES_ONLY: Final = ("-m", "-c")
WITH_VALUE: Final = ("-X", "-W")
PLAIN_FLAGS: Final = frozenset("bBdOquvx")  # with others, ftrun's sitecustomize may not run


class Imports(NamedTuple):
    """`modules`: in the order of their import, without those that others import.  `own`: names of the program's own
    modules; `folders`: what its start adds to sys.path; `changed`: variables that it changes, with marks of their
    values.  `command`: whose they are; `seconds`: from a cold start of it to its first heartbeat."""

    modules: tuple[str, ...]
    own: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    seconds: float | None = None


def parsed(content: bytes, command: Sequence[str], seconds: float | None) -> Imports | None:
    """The imports that a standby of this command has left; None if they are incomplete."""
    lists: list[list[str]] = [[]]
    for item in os.fsdecode(content).split("\0"):
        lists[-1].append(item) if item else lists.append([])
    if len(lists) < 5:
        return None
    modules, own, folders, changed = (tuple(one) for one in lists[:4])
    return Imports(modules, own, folders, changed, tuple(redaction.redact_command(command)), seconds)


def loaded(found: object, command: Sequence[str] | None) -> Imports | None:
    """The imports in `state.json`, from the state dir or from another member, if they are of this command; None: of
    whatever command, since its words may have the number of a node."""
    try:
        imports: Imports = _CODEC.value(Imports, found)
    except Malformed:
        return None
    return imports if command is None or imports.command == tuple(redaction.redact_command(command)) else None


def read(content: str, command: Sequence[str] | None) -> Imports | None:
    """The imports in this text, as `loaded` returns them."""
    try:
        return loaded(parse_json(content.encode()), command)
    except (Malformed, ValueError):
        return None


def write(setup: Setup, folder: str, command: Sequence[str], earlier: Imports | None) -> str | None:
    """Write the list for the standbys of a first start.  Returns its path; None if nothing is to be imported.  Raises
    OSError, or ValueError with the reason why the command cannot be executed in advance."""
    asked: Sequence[str] = setup.settings.preload or ()
    modules = asked or (earlier.modules if earlier else ())
    if not modules:
        return None
    if not (setup.auto_beat and setup.beats.is_own):
        raise ValueError("with --no-auto-beat the command does not run ftrun's sitecustomize")
    added = _added(command)
    if earlier is not None:
        lists = [modules, earlier.own, earlier.folders, earlier.changed]
    else:
        lists = [modules, (), added, ()]
    path = f"{folder}/{FILE}"
    os.makedirs(folder, 0o700, exist_ok=True)
    content = os.fsencode("\0" + "".join("".join(f"{word}\0" for word in one) + "\0" for one in lists))
    safe_files.replace(path, content, durable=False)
    words = os.fsencode("".join(f"{word}\0" for word in command))
    safe_files.replace(f"{folder}/{layout.COMMAND}", words, durable=False)
    return path


def _added(command: Sequence[str]) -> tuple[str, ...]:
    """The folder that Python adds to sys.path for this command.  Raises ValueError if its flags may keep Python from
    running ftrun's sitecustomize."""
    words = iter(command[1:])
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word.startswith(MODULES_ONLY):
            return (os.getcwd(),)
        elif not word.startswith("-") and word:
            return (os.path.dirname(os.path.realpath(word)),)
        elif not word.startswith(WITH_VALUE) and not PLAIN_FLAGS.issuperset(word[1:]):
            raise ValueError(f"with {word} the command may not run ftrun's sitecustomize")
    raise ValueError("the command does not run a Python program")


_CODEC: Final = Codec()
