"""Processes of another user in the same container."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
AS_NOBODY = """
import ctypes, json, os, signal, socket, sys  # all modules: their files may not be readable below
os.setgroups([]); os.setgid(65534); os.setuid(65534); os.umask(0)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")


def words(code: str, *more: object) -> list[str]:
    """The command line of a small program of another user; `sys.argv[1:]` are `more`."""
    return [sys.executable, "-I", "-c", AS_NOBODY + code, *map(str, more)]


def nobody(code: str, *more: object) -> str:
    """Run it, and return its output."""
    return subprocess.run(words(code, *more), capture_output=True, text=True, timeout=60, check=True).stdout


def link(place: Path, to: Path) -> None:
    nobody("os.symlink(sys.argv[2], sys.argv[1])", place, to)


def pipe(place: Path) -> None:
    nobody("os.mkfifo(sys.argv[1], 0o666)", place)


def file(place: Path, text: str = "") -> None:
    nobody("open(sys.argv[1], 'w').write(sys.argv[2])", place, text)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users may write to, without a sticky bit, so that no kernel setting protects it."""
    folder = Path(tempfile.mkdtemp(prefix="ft-shared-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of this user with a file in it, which no other user may change."""
    folder = tmp_path / "precious"
    folder.mkdir(0o700)
    (folder / "file").write_text("precious")
    return folder
