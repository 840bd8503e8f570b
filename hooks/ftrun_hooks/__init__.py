"""Report to ftrun that training makes progress, and go on after a fault without ending the process.

Standard library only, Python 3.8 and later.  Outside ftrun every call does nothing.  No call ever blocks or raises, but
for the ValueError of a section whose timeout is no duration; `@recoverable` and its `run` say what they do.
"""

# Everything is imported now: a program may give up its rights, or its root folder, before its first beat.  Only what a
# decorated function needs is imported where the program names it.
from ._attempt import Attempt, attempt
from ._beat import beat, checkpoint, done, fail
from ._section import section

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._recover import Retry, Run, recoverable

__all__ = [
    "Attempt",
    "Retry",
    "Run",
    "attempt",
    "beat",
    "checkpoint",
    "done",
    "fail",
    "recoverable",
    "section",
]


def __getattr__(name: str) -> object:
    if name in ("Retry", "Run", "recoverable"):
        from . import _recover

        return getattr(_recover, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
