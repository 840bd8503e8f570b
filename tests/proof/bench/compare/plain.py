"""The Python that all of them run by: that of this environment, without its `.pth` files.

Such a file is executed at each start of a Python.  That of `pynvml`, which nvidia-resiliency-ext brings, takes three
times as long as the rest of the start together, and would be in all figures, of those who do not need it as well.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path


@cache
def plain() -> str:
    """Its path, in a folder that is removed when this program ends; outside of a virtual environment, this one."""
    if sys.prefix == sys.base_prefix:
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="ftrun-bench-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    packages = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), folder)
    _linked(Path(sys.executable).parent, folder / "bin")
    _linked(Path(sysconfig.get_path("purelib")), packages)
    return str(folder / "bin" / Path(sys.executable).name)


def by_plain(words: Sequence[str]) -> list[str]:
    """The same command line, by that Python if it is one of Python."""
    program = shutil.which(words[0]) or words[0]
    if Path(program).samefile(sys.executable):
        return [plain(), *words[1:]]
    with open(program, "rb") as script:
        first = script.readline(200)
    return [plain(), program, *words[1:]] if first.startswith(b"#!") and b"python" in first else list(words)


def _linked(there: Path, here: Path) -> None:
    """A folder with links to all that is there, but for `.pth` files."""
    here.mkdir(parents=True)
    for entry in there.iterdir():
        if entry.suffix != ".pth":
            (here / entry.name).symlink_to(entry)
