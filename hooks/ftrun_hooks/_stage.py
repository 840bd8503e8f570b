"""Where a trainer is, as far as its callbacks are told."""

from __future__ import annotations

from ._duration import nanoseconds
from ._section import Section, section


class Stage:
    """At most one section at a time: trainers tell of most beginnings and ends, and not of all, so to enter one is to
    leave the other.

    ValueError for a timeout that is no duration.
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
        """Be in `name`.  Said again, with each batch, it gives the time without a timeout of the user's anew: whoever
        evaluates for hours is not hung, but who takes as long for a batch."""
        timeout = self.timeout(name)
        if name == self.name and timeout is not None:
            return
        fresh = section(name, timeout)
        fresh.__enter__()
        self.leave()  # not before: there would be a moment outside
        self.name, self._open = name, fresh

    def leave(self, error: BaseException | None = None) -> None:
        """Be in none, if in any; with an `error`, because of it."""
        left, self.name, self._open = self._open, None, None
        if left is not None:
            left.__exit__(type(error) if error else None, error, None)
