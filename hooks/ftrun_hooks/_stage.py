"""The stage of a trainer (validation, checkpoint, ...), as far as its callbacks show it."""

from __future__ import annotations

from ._duration import nanoseconds
from ._section import Section, section


class Stage:
    """At most one section at a time.  Trainers have events for most beginnings and ends, but not for all, so entering a
    section leaves the one before.

    ValueError if a timeout is not a duration.
    """

    def __init__(self, eval_timeout: float | str | None, save_timeout: float | str | None) -> None:
        self.timeouts = {True: save_timeout, False: eval_timeout}
        for timeout in self.timeouts.values():
            if timeout is not None:
                nanoseconds(timeout)
        self.name: str | None = None
        self._open: Section | None = None

    def timeout(self, name: str) -> float | str | None:
        return self.timeouts[name == "checkpoint"]

    def enter(self, name: str) -> None:
        """Enter the section `name`.  A repeated call, with each batch, restarts a section without a timeout of its own:
        an evaluation may take hours, but a single batch may not."""
        timeout = self.timeout(name)
        if name == self.name and timeout is not None:
            return
        fresh = section(name, timeout)
        fresh.__enter__()
        self.leave()  # only now, so that there is no moment without a section
        self.name, self._open = name, fresh

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the section, if any; with an `error`, because of it."""
        left, self.name, self._open = self._open, None, None
        if left is not None:
            left.__exit__(type(error) if error else None, error, None)
