"""The folder that comes first on the command's PYTHONPATH: a link to our sitecustomize, which finds the other hooks.

Every user may read it, and nobody but ftrun's may write in it: a command may change its user before it starts Python.
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
    """With a copy of all the hooks in it, where they are installed in a folder that not all may read.  OSError."""
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
    """Whether the link is still there.  OSError where there is none."""
    return os.readlink(f"{path}/sitecustomize.py").endswith("/auto/sitecustomize.py")


def _folder(path: str) -> None:
    """Whatever the umask.  With the folder that a Python of ours would make in it for compiled forms, as open as the
    umask of the command is: who can write there has his code run by others."""
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
