"""A `NamedTuple` that behaves like that of `typing`, as which type checkers see it, but creates its classes faster.

PID 1 defines over a hundred of these classes before it starts the command (ADR 13).  `typing.NamedTuple` compiles a
`__new__` for each of them, and makes five more methods.  Here all classes inherit the same methods, and a class gets
its `__new__` with its first value, compiled once for each number of fields.
"""

import sys

# What `collections.namedtuple` uses for a field.
from _collections import _tuplegetter  # type: ignore[import-not-found]
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

COMPILED: dict[int, CodeType] = {}  # the code of `__new__`, by the number of fields


class NamedFields(tuple[Any, ...]):
    """The base of all classes that are defined with `NamedTuple`, which inherit their methods from it."""

    if TYPE_CHECKING:
        _fields: tuple[str, ...]
    __slots__ = ()

    def __new__(cls, *values: Any, **named: Any) -> Any:
        """The first value of a class, which gets a `__new__` of its own with it."""
        cls.__new__ = staticmethod(_new(cls))  # type: ignore[method-assign]
        return cls(*values, **named)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Any:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self, /, **changed: Any) -> Any:
        made = self._make(map(changed.pop, self._fields, self))
        if changed:
            raise ValueError(f"Got unexpected field names: {list(changed)!r}")
        return made

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        fields = (f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({', '.join(fields)})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


class Definition(type):
    """Turns the body of a class whose base is `NamedTuple` into a subclass of `NamedFields`."""

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(mcs, name, bases, body)
        fields = tuple(body.get("__annotations__", ()))
        defaults = {field: body[field] for field in fields if field in body}
        if tuple(defaults) != fields[len(fields) - len(defaults) :]:
            raise TypeError(f"{name}: a field without a default follows one with a default")
        body |= {field: _tuplegetter(index, None) for index, field in enumerate(fields)}
        body |= {"__slots__": (), "__match_args__": fields, "_fields": fields, "_field_defaults": defaults}
        return type(name, (NamedFields,), body)


def _new(kind: Any) -> FunctionType:
    """`__new__`, with the fields as parameters after the class."""
    count = len(kind._fields)
    if count not in COMPILED:
        names = "".join(f"_{index}," for index in range(count))
        COMPILED[count] = eval(f"lambda _cls, {names}: new(_cls, ({names}))").__code__
    code = COMPILED[count].replace(co_varnames=("_cls", *kind._fields), co_name="__new__")
    defaults = tuple(kind._field_defaults.values()) or None
    new = FunctionType(code, {"new": tuple.__new__, "__builtins__": {}}, "__new__", defaults)
    new.__annotations__, new.__qualname__ = kind.__annotations__, f"{kind.__qualname__}.__new__"
    return new


if TYPE_CHECKING or sys.version_info >= (3, 14):  # annotations are evaluated only when they are read
    from typing import NamedTuple as NamedTuple
else:

    class NamedTuple(metaclass=Definition):
        """The base class of a definition; no class has it as its base."""
