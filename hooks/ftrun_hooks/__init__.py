"""Report to ftrun that training makes progress.

Standard library only, Python 3.8 and later.  Outside ftrun every call does nothing.  No call ever blocks or raises, but
for the ValueError of a section whose timeout is no duration.
"""

# Everything is imported now: a program may give up its rights, or its root folder, before its first beat.
from ._attempt import Attempt, attempt
from ._beat import beat, checkpoint, done, fail
from ._section import section

__all__ = ["Attempt", "attempt", "beat", "checkpoint", "done", "fail", "section"]
