"""What this process has imported by its first heartbeat, for the standbys of the next start (`_parked.py`).

Written only where ftrun asks for it: `$FTRUN_BEAT_DIR/imports/command` is the command line that ftrun executes.  A
process that runs another process, such as a shell or a launcher before this Python, could not be started in advance
without its effects, so its report says why not.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from . import layout as at
from ._command import mark, obstacle

# What they replace in modules depends on the order of the program's own imports.
ORDERED = ("gevent", "eventlet", "unsloth")
# Set by `_torch_adapter.py`, and read when a process group is made, not by an import.
OURS = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_RETHROW_CUDA_ERRORS")
LIMIT = 1 << 20  # bytes of a report


def write(folder: str) -> None:
    """Write the report.  Never raises.  The report is complete once it has its name."""
    try:
        folder = os.path.join(folder, at.IMPORTS)
        with open(os.path.join(folder, at.COMMAND), "rb") as file:
            command = file.read()
        content = os.fsencode("\0".join(_report(command)))
        if len(content) > LIMIT:
            content = b"it has imported too many modules"
        path = os.path.join(folder, str(os.getpid()))
        with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(content)
        os.rename(f"{path}.new", path)
    except Exception:
        pass


def _report(command: bytes) -> list[str]:
    """The report: why this program cannot be started in advance, or nothing; then four lists, each ended by an empty
    item: the modules that can be imported in advance, in their order; the names of the program's own modules; the
    folders that the program's start has added to sys.path; and the variables that the program has changed, each with
    the mark of its value."""
    modules: list[str] = []
    own: set[str] = set()
    for name, module in list(sys.modules.items()):
        if is_library(name, module):
            modules.append(name)
        elif getattr(module, "__file__", None) or ("." not in name and hasattr(module, "__path__")):
            own.add(name.partition(".")[0])
    finder = next((one for one in sys.meta_path if type(one).__name__ == "FtrunFinder"), None)
    known = getattr(finder, "known_path", [])
    added = [os.path.abspath(entry) for entry in sys.path if entry not in known]
    return [_obstacle(command, finder), *modules, "", *sorted(own), "", *added, "", *_changed(finder), ""]


def is_library(name: str, module: Any) -> bool:
    """Whether it belongs to the standard library or an installed package, and not to the program."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not isinstance(module, ModuleType) or spec is None or spec.name != name or not isinstance(origin, str):
        return False
    if name in ("__main__", "sitecustomize", "usercustomize") or name.startswith("ftrun_hooks"):
        return False
    if "/site-packages/" in origin or "/dist-packages/" in origin:
        return True
    folder = os.path.dirname(os.__file__)
    return origin.startswith((folder + "/", os.path.realpath(folder) + "/"))


def _obstacle(command: bytes, finder: Any) -> str:
    if finder is None:
        return "the Python of the command does not run ftrun's sitecustomize"
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a debugger or profiler follows the program"
    ordered = [name for name in ("usercustomize", *ORDERED) if name in sys.modules]
    return f"{ordered[0]} has to come before other imports" if ordered else obstacle(command)


def _changed(finder: Any) -> list[str]:
    """The variables that the program has changed before its imports, each with the mark of its value."""
    if finder is None or finder.changed is not None:
        return list(finder.changed) if finder else []
    begun, now = finder.begun, os.environ if finder.imported is None else finder.imported
    names = (begun.keys() | now.keys()) - set(OURS)
    return sorted(f"{name}={mark(now.get(name))}" for name in names if begun.get(name) != now.get(name))
