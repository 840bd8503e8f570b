"""The versions of Python on this machine."""

import re
import sys
from pathlib import Path

FOUND = sorted(
    Path.home().glob(".pyenv/versions/*/bin/python"),
    key=lambda path: [int(number) for number in re.findall(r"\d+", path.parts[-3])],
)
OLD = [path for path in FOUND if path.parts[-3].startswith(("2.", "3.6.", "3.7."))]  # without the hooks
NEW = [Path(sys.executable), *(path for path in FOUND if path not in OLD)]
EXTREMES = [NEW[0], *NEW[1:2], *NEW[2:][-1:]]  # this one, the oldest, the newest


def version(python: Path) -> str:
    return "this" if python == NEW[0] else python.parts[-3]
