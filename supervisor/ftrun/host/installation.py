"""How ftrun was installed, and so how its optional requirements can be installed.  Not for PID 1: it reads the metadata
of packages."""

import os
from typing import Final

import ftrun

NAME: Final = "ftrun"


def command(*extras: str) -> str:
    """What a person types to install ftrun's own requirements and these optional ones, from any folder.

    An installed ftrun is asked for by its name, which pip finds installed.  One that runs from a checkout is no package
    of this Python: by its name, pip would look for a package of strangers."""
    import shlex  # here, like what follows: nearly always nothing is missing

    chosen = f"[{','.join(dict.fromkeys(extras))}]" if extras else ""
    return f"pip install {shlex.quote(_source() + chosen)}"


def _source() -> str:
    from importlib import metadata

    try:
        metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(ftrun.__file__))))
        return root if os.path.isfile(os.path.join(root, "pyproject.toml")) else NAME
    return NAME
