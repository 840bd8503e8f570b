"""What the targets share: folders, a beat folder, a policy, and ways to cut bytes."""

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from ftrun.config import derived, option_values
from ftrun.core.rules.policy import Policy
from ftrun.helpers.lines import ProtocolLines
from ftrun.host.beats import Beats

NOW: Final = 1000.0  # s
PAGE: Final = 4096
_FOLDERS: Final[list[Path]] = []


@cache
def folder(name: str) -> Path:
    """Of a target."""
    _FOLDERS.append(Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-")))
    return _FOLDERS[-1]


@cache
def beat_folder() -> Beats:
    return Beats(str(folder("beats")))


def clean() -> None:
    """Nothing of them stays."""
    if beat_folder.cache_info().currsize:
        beat_folder().close()
    while _FOLDERS:
        shutil.rmtree(_FOLDERS.pop(), ignore_errors=True)
    folder.cache_clear()
    beat_folder.cache_clear()


@cache
def policy() -> Policy:
    return derived.policy(option_values.settings({"hang-timeout": "60s"}, {}))


class Quiet(ProtocolLines):
    """Says nothing to anybody."""

    def say(self, message: tuple[Any, ...]) -> None:
        self._events.dump(message)


def pieces(content: bytes, number: int) -> list[bytes]:
    """That many, cut where there is a zero byte."""
    found = content.split(b"\0", number - 1)
    return found + [b""] * (number - len(found))


def text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def one_line(error: BaseException, most: int = 1 << 20) -> None:
    assert "\n" not in str(error), "it is no line"
    assert len(str(error)) <= most, "it is too long"
