"""The Python that runs all programs under comparison: the one of this environment, without its `.pth` files.

Such a file is executed at each start of Python.  The one of `pynvml`, which nvidia-resiliency-ext installs, takes three
times as long as the rest of the start, and would be included also in the figures of programs that do not need it.
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
    """Its path, in a folder that is removed at exit; outside of a virtual environment, the running Python."""
    if sys.prefix == sys.base_prefix:
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="ftrun-bench-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    packages = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), folder)
    _linked(Path(sys.executable).parent, folder / "bin")
    _linked(Path(sysconfig.get_path("purelib")), packages)
    return str(folder / "bin" / Path(sys.executable).name)


def by_plain(arguments: Sequence[str]) -> list[str]:
    """The same command line, run by that Python if it is a Python program."""
    program = shutil.which(arguments[0]) or arguments[0]
    if Path(program).samefile(sys.executable):
        return [plain(), *arguments[1:]]
    with open(program, "rb") as script:
        first = script.readline(200)
    return [plain(), program, *arguments[1:]] if first.startswith(b"#!") and b"python" in first else list(arguments)


def _linked(there: Path, here: Path) -> None:
    """Create the folder `here` with links to all files of `there` except `.pth` files."""
    here.mkdir(parents=True)
    for entry in there.iterdir():
        if entry.suffix != ".pth":
            (here / entry.name).symlink_to(entry)
