"""`ftrun.core.named_tuple.NamedTuple` behaves as that of `typing`."""

import copy
import inspect
import pickle
import typing
from collections.abc import Callable
from typing import Any

import pytest

from ftrun.core import named_tuple

BODY = '''
class Point(NamedTuple):
    """Where."""
    x: int
    y: "int"
    name: str | None = None
    scale: float = 1.0

    @property
    def both(self) -> tuple[int, int]:
        return self.x, self.y

    @classmethod
    def origin(cls) -> "Point":
        return cls(0, 0)
'''


def defined(base: object, body: str = BODY) -> Any:
    space: dict[str, Any] = {"NamedTuple": base, "__name__": __name__}
    exec(body, space)
    return space["Point"]


Point = defined(named_tuple.NamedTuple)  # pickle finds it here
STANDARD = defined(typing.NamedTuple)
USES: dict[str, Callable[[Any], object]] = {
    "positional": lambda kind: kind(1, 2, "n", 3.0),
    "keywords": lambda kind: kind(y=1, x=2),
    "defaults": lambda kind: kind._field_defaults,
    "fields": lambda kind: kind._fields,
    "representation": lambda kind: repr(kind(1, 2)),
    "replaced": lambda kind: kind(1, 2)._replace(y=5, name="m"),
    "unknown field replaced": lambda kind: kind(1, 2)._replace(z=5),
    "made": lambda kind: kind._make([1, 2, None, 4]),
    "made of too few": lambda kind: kind._make([1, 2]),
    "dictionary": lambda kind: kind(1, 2)._asdict(),
    "missing": lambda kind: kind(1),
    "too many": lambda kind: kind(1, 2, 3, 4, 5),
    "unknown": lambda kind: kind(1, 2, z=3),
    "twice": lambda kind: kind(1, 2, x=3),
    "assigned": lambda kind: setattr(kind(1, 2), "x", 3),
    "another attribute": lambda kind: setattr(kind(1, 2), "z", 3),
    "property": lambda kind: kind(1, 2).both,
    "class method": lambda kind: kind.origin(),
    "hash": lambda kind: hash(kind(1, 2)),
    "equality": lambda kind: kind(1, 2) == (1, 2, None, 1.0),
    "copied": lambda kind: copy.deepcopy(kind(1, 2, "n")),
    "types": lambda kind: typing.get_type_hints(kind),
    "signature, once there is a value": lambda kind: (
        kind(1, 2) and [(p.name, p.kind, p.default) for p in inspect.signature(kind).parameters.values()]
    ),
    "documentation": lambda kind: kind.__doc__,
    "patterns": lambda kind: kind.__match_args__,
    "module": lambda kind: kind.__module__,
}


@pytest.mark.parametrize("use", USES)
def test_it_behaves_as_the_standard_one(use: str) -> None:
    def outcome(kind: Any) -> object:
        try:
            found = USES[use](kind)
        except Exception as error:
            return type(error), str(error)
        return found

    assert outcome(Point) == outcome(STANDARD)


def test_it_is_pickled() -> None:
    found = pickle.loads(pickle.dumps(Point(1, 2, "n")))
    assert (found, type(found)) == (Point(1, 2, "n"), Point)


def test_a_field_without_a_default_after_one_with_a_default_is_an_error() -> None:
    with pytest.raises(TypeError):
        defined(named_tuple.NamedTuple, "class Point(NamedTuple):\n    x: int = 1\n    y: int")


def test_a_class_without_fields() -> None:
    kind = defined(named_tuple.NamedTuple, "class Point(NamedTuple):\n    pass")
    assert (kind(), repr(kind())) == ((), "Point()")
