"""Tell ftrun that training moves.

Standard library only, Python 3.8 and later.  Outside ftrun every call does nothing.  No call ever blocks or raises, but
for the ValueError of a section whose timeout is no duration.
"""

from typing import TYPE_CHECKING

__all__ = ["Attempt", "attempt", "beat", "checkpoint", "done", "fail", "section"]

if TYPE_CHECKING:
    from ._attempt import Attempt, attempt
    from ._beat import beat, checkpoint, done, fail
    from ._section import section
else:

    def __getattr__(name):
        # PID 1 reads layout.py of this package and nothing else: the rest is loaded when training first asks for it.
        if name not in __all__:
            raise AttributeError("module %r has no attribute %r" % (__name__, name))
        from . import _attempt, _beat, _section

        for module in (_attempt, _beat, _section):
            globals().update((n, getattr(module, n)) for n in __all__ if hasattr(module, n))
        return globals()[name]
