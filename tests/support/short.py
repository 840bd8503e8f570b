"""Of many similar cases, which ones the gate tries: `-m slow` has the others, and `.ci/run` names their files."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], chosen: Collection[Any] | int = 1, ids: Any = None) -> list[Any]:
    """Parameters.  `chosen`: the values that the gate tries, or how many of the first.  A value is a tuple where a test
    takes several; `ids` gives a name for a value."""
    found = []
    for at, value in enumerate(values):
        slow = at >= chosen if isinstance(chosen, int) else value not in chosen
        name = {} if ids is None else {"id": ids(value)}
        words = value if isinstance(value, tuple) else (value,)
        found.append(pytest.param(*words, marks=pytest.mark.slow if slow else (), **name))
    return found
