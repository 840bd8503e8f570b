"""The functions that take the place of those of a library: each calls the original one, and notes what it has done.

The name of this file matters.  A warning that is given with `stacklevel=2` names the caller of the function that warns,
and filters go by that place.  Python does not count the frames of its import system there (`warnings.warn`, and
`stacklevel` of `logging`): it knows them by `importlib` and `_bootstrap` in the name of their file.  So the functions
of this file are not counted either, and such a warning of torch.load names the program's line, as without ftrun.
`__tracebackhide__` leaves them out of what pytest and IPython show.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any, Callable, Optional, Tuple

from . import _last
from ._section import Automatic

AnyFunction = Callable[..., Any]
Target = Tuple[Optional[int], Tuple[str, ...]]  # the position and keywords of the file argument of a call
DEFAULTS = ("__defaults__", "__kwdefaults__")  # by position, and by keyword


def is_compiling() -> bool:
    """Whether dynamo traces the caller; replaced by torch's own function once that is imported.

    No name in this file, or in `_auto.py`, may be a torch module: dynamo would compile the functions that use it.
    """
    return False


def alike(function: AnyFunction) -> Callable[[AnyFunction], AnyFunction]:
    """As `wraps`; and with the defaults of the original: some programs change that of torch.load's `weights_only`."""

    def decorate(within: Any) -> Any:
        for name in DEFAULTS:
            setattr(within, name, getattr(function, name, None))
        return wraps(function)(within)

    return decorate


def pass_on_defaults(within: Any, function: Any) -> None:
    for name in DEFAULTS:
        given = getattr(within, name)
        if getattr(function, name, None) is not given:
            setattr(function, name, given)


def noting(function: AnyFunction, note: Callable[[Any], None], target: Target, section: str) -> AnyFunction:
    """The function in a section of this name, if any; then the file that it has saved or loaded is noted."""

    @alike(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if is_compiling():
            return function(*args, **kwargs)
        pass_on_defaults(within, function)
        if section:
            with Automatic(section):
                result = function(*args, **kwargs)
        else:
            result = function(*args, **kwargs)
        try:
            file = _of_call(target, args, kwargs)
            if file is not None:
                note(file)
        except Exception:
            pass
        return result

    return within


def _of_call(target: Target, args: Any, kwargs: Any) -> Any:
    """The file that is the argument of a call, or None."""
    number, names = target
    if number is not None and len(args) > number:
        return args[number]
    for name in names:
        if kwargs.get(name) is not None:
            return getattr(kwargs[name], "path", None) if name.startswith("storage_") else kwargs[name]
    return None


def after(function: AnyFunction, note: Callable[[Any], None], before: bool = False) -> AnyFunction:
    """The function, and `note` with its first argument when it has returned; or before it runs."""

    @alike(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if before:
            _noted(note, args)
        result = function(*args, **kwargs)
        if not before:
            _noted(note, args)
        return result

    return within


def _noted(note: Callable[[Any], None], args: Any) -> None:
    try:
        note(args[0])
    except Exception:
        pass


def with_exit_noted(function: AnyFunction) -> AnyFunction:
    """A function that ends the program with sys.exit after an exception, which is then recorded as the cause."""

    @alike(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except SystemExit as end:
            _last.leave(os.environ.get("FTRUN_BEAT_DIR", ""), end)
            raise

    return within


def in_trial(function: AnyFunction, training: Any) -> AnyFunction:
    """A function whose steps are none of the training, such as one that only makes the state of an optimizer."""

    @alike(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        training.trials += 1
        try:
            return function(*args, **kwargs)
        finally:
            training.trials -= 1

    return within


def with_beats(function: Callable[[Any], Any], training: Any) -> Callable[[Any], Any]:
    """The `__next__` of an iterator over batches."""

    @alike(function)
    def __next__(self: Any) -> Any:
        __tracebackhide__ = True
        if is_compiling():
            return function(self)
        try:
            batch = function(self)
        except StopIteration:
            training.data_ended()
            raise
        training.batch_arrived()
        return batch

    return __next__


def with_movement(function: AnyFunction, training: Any) -> AnyFunction:
    """A function that computes gradients."""

    @alike(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        gradients = function(*args, **kwargs)
        if not is_compiling():
            try:
                training.went_backward()
            except Exception:
                pass
        return gradients

    return within
