"""Reads `state.json`, and checks values from files that may be damaged."""

from typing import Final

from ftrun.core.machine.values import Ledger
from ftrun.core.named_tuple import NamedTuple
from ftrun.host import procfs
from ftrun.messages import run_state
from ftrun.messages import state as written
from ftrun.messages.codec import Malformed
from ftrun.messages.run_state import LARGEST, RunState

LIMIT: Final = written.LIMIT  # bytes of any JSON file


class SavedState(NamedTuple):
    """`ledger`: None if it cannot be read.  `rest`: all else.  `problem`: why something is missing, one line."""

    ledger: Ledger | None = None
    rest: RunState = RunState()
    problem: str | None = None


def load(run_dir: str) -> SavedState:
    """The state in this run dir.  Never raises: `problem` says what is missing."""
    path, ledger = f"{run_dir}/state.json", None
    content = procfs.read(path, LIMIT)
    if content is None:
        return SavedState(problem=f"{path} cannot be read: only the records are shown")
    try:
        ledger, rest = written.load_state(content)
        return SavedState(ledger, run_state.read(rest))
    except Malformed as error:
        return SavedState(ledger, problem=f"{path} is malformed ({error}): only the records are shown")


# --- values of unknown origin: each as the kind that is expected, or None ---------------------------------------------


def number(found: object) -> float | None:
    if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) <= LARGEST:
        return float(found)
    return None


def integer(found: object) -> int | None:
    return found if type(found) is int and abs(found) <= LARGEST else None


def string(found: object) -> str | None:
    return found if isinstance(found, str) else None


def strings(found: object) -> tuple[str, ...] | None:
    return tuple(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else None
