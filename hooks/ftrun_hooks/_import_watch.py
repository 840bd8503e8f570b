"""What imports in a standby read of the environment, and the modules that they have not found.

A standby loads this file without making a module of it (`_parked.py`).
"""

from __future__ import annotations

import os
import sys
from typing import Any


class Reads:
    """What imports read of the environment, while `os.environ` is of another class: `names` that were asked for, and
    whether a copy of all of it is `kept`.  Programs often go through all variables, to find those with some prefix:
    that alone is neither."""

    MARK = "FTRUN_PARKED.MARK"

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.kind = type(os.environ)
        names, mark, kind = self.names, self.MARK, self.kind
        self.value = value = "".join(("kept ", mark))  # one object, whose references show who kept it
        os.environ[mark] = value

        class All(kind):  # type: ignore[valid-type,misc]
            def __getitem__(self, key: Any) -> Any:
                return value if key == mark else kind.__getitem__(self, key)

        class Environ(All):
            def __getitem__(self, key: Any) -> Any:
                names.add(os.fsdecode(key))
                return All.__getitem__(self, key)

            def items(self) -> Any:
                everything = All.__new__(All)
                everything.__dict__.update(self.__dict__)
                return kind.items(everything)

        for one in (os.environ, os.environb):
            one.__class__ = Environ
        self.references = sys.getrefcount(value)

    def end(self) -> None:
        for one in (os.environ, os.environb):
            one.__class__ = self.kind
        del os.environ[self.MARK]
        self.kept = sys.getrefcount(self.value) > self.references


class Missing:
    """The last finder: the modules that were not found."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if path is None:
            self.names.add(name)
