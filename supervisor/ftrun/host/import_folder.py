"""The first folder on the command's PYTHONPATH: a link to ftrun's sitecustomize, which finds the other hooks.

Every user may read it, and only ftrun's user may write to it: a command may change its user before it starts Python.
"""

import os
from typing import Final

from ftrun.host import procfs
from ftrun.host.beat_access import READ, closed_to_others
from ftrun_hooks import layout

HOOKS: Final = os.path.dirname(os.path.abspath(layout.__file__))
SITECUSTOMIZE: Final = os.path.join(HOOKS, "auto", "sitecustomize.py")
MODE: Final = 0o755


def make(path: str) -> None:
    """Create the folder; it includes a copy of all hooks if they are installed in a folder that not all users may read.
    Raises OSError."""
    _folder(path)
    target = SITECUSTOMIZE
    if closed_to_others(target, READ) is not None:
        target = f"{os.path.basename(HOOKS)}/auto/sitecustomize.py"
        for folder in ("", "/auto"):
            _folder(f"{path}/{os.path.basename(HOOKS)}{folder}")
            for name in os.listdir(HOOKS + folder):
                if name.endswith(".py"):
                    _copy(f"{HOOKS}{folder}/{name}", f"{path}/{os.path.basename(HOOKS)}{folder}/{name}")
    os.symlink(target, f"{path}/sitecustomize.py")


def is_intact(path: str) -> bool:
    """Return whether the link is still there.  Raises OSError if there is no link."""
    return os.readlink(f"{path}/sitecustomize.py").endswith("/auto/sitecustomize.py")


def _folder(path: str) -> None:
    """Create a folder independent of the umask, including the `__pycache__` that Python would create in it for compiled
    modules with the command's umask: whoever can write there can have other users run their code."""
    for folder in (path, f"{path}/__pycache__"):
        os.mkdir(folder, 0o700)
        os.chmod(folder, MODE)


def _copy(source: str, path: str) -> None:
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, procfs.read(source, 1 << 20) or b"")
        os.fchmod(file, 0o644)
    finally:
        os.close(file)
