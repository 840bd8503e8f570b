"""Checks of the installed packages."""

import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from ftrun import __version__
from ftrun.cli.doctor.finding import Finding

# The verbs or options that need it, and how to install it.
PACKAGES: Final = {
    "pyzmq": ("restart, stop, pause and resume", "pip install ftrun"),
    "rich": ("top", "pip install ftrun"),
    "prometheus-client": ("--metrics", "pip install 'ftrun[metrics]'"),
    "starlette": ("serve", "pip install 'ftrun[page]'"),
    "uvicorn": ("serve", "pip install 'ftrun[page]'"),
    "pillow": ("timeline as PNG", "pip install 'ftrun[page]'"),
}


def versions(running: str) -> Iterator[Finding]:
    """`running`: the version of the running ftrun, empty if none is running."""
    text = f"ftctl {__version__}, Python {platform.python_version()}, Linux {os.uname().release}"
    if running and running != __version__:
        means = "ftctl may not understand all that this ftrun writes"
        yield Finding("versions", "warning", f"{text}; the running ftrun is {running}", means, f"use ftctl {running}")
    else:
        yield Finding("versions", "ok", text, "they match")
    present, absent = [], []
    for package in PACKAGES:
        try:
            present.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            absent.append(package)
    if absent:
        needed = dict.fromkeys(PACKAGES[package][0] for package in absent)
        remedy = "; ".join(dict.fromkeys(PACKAGES[package][1] for package in absent))
        yield Finding(
            "packages", "missing", f"not installed: {', '.join(absent)}", f"without: {', '.join(needed)}", remedy
        )
    else:
        yield Finding("packages", "ok", ", ".join(present), "all verbs work")
