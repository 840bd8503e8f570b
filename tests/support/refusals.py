"""What ftrun answers to a command line that it refuses, without a process for each of hundreds of cases."""

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from ftrun.cli.run import run


def refusal(folder: Path, *words: str, environment: Mapping[str, str] = {}) -> str:
    """The one line that ftrun writes when it refuses these arguments in `folder`; it has supervised nothing."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_"))}
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, kept | dict(environment), clear=True),
        mock.patch("ftrun.pid1.loop.supervise", None),  # accepting the arguments would be a TypeError
        mock.patch("ftrun.pid1.phases.run", None),
    ):
        assert run(words) == 2
    assert out.getvalue() == ""
    (line,) = err.getvalue().splitlines()
    assert line.startswith("ftrun: ")
    return line.removeprefix("ftrun: ")
