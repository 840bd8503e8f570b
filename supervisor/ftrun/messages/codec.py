"""One codec for every protocol: values of `NamedTuple` to JSON, and back.

A message from another process is checked field by field against the types of the value.  An invalid one raises
Malformed with the reason; nothing else is raised, whatever the bytes.
"""

import json
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

LARGEST: Final = 1 << 53  # of an integer: not every JSON parser keeps a larger one exactly
NAME: Final = 40  # characters of an unknown name that are quoted in an error
Value = TypeVar("Value", bound=tuple[Any, ...])
Check = Callable[[object], Any]


class Malformed(ValueError):
    """A message is not valid; the text is one line with the reason."""


class Codec:
    """`text` is applied to every string, in both directions.  `checks`: for these types, functions that check and
    convert the JSON representation.  `complete`: fields with a default must be there too.  `tolerant`: unknown fields
    are left out."""

    def __init__(
        self,
        text: Callable[[str], str] = str,
        checks: Mapping[object, Check] | None = None,
        complete: bool = False,
        tolerant: bool = False,
    ) -> None:
        self._text, self._complete, self._tolerant = text, complete, tolerant
        self._fields: dict[type, dict[str, Check]] = {}
        self._checks: dict[object, Check] = {
            int: _integer,
            float: _number,
            bool: _boolean,
            str: self._string,
            object: lambda value: value,
            **(checks or {}),
        }

    def plain(self, value: Any) -> Any:
        """The JSON representation of this value."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, tuple | list):
            fields = getattr(value, "_fields", None)
            content = [self.plain(one) for one in value]
            return content if fields is None else dict(zip(fields, content, strict=True))
        if isinstance(value, dict):
            return {self.plain(name): self.plain(one) for name, one in value.items()}
        return value

    def value(self, kind: type[Value], found: object) -> Value:
        """The value of this type from its JSON representation `found`, or Malformed."""
        if kind not in self._fields:
            self._fields[kind] = {name: self._check(hint) for name, hint in get_type_hints(kind).items()}
        fields = self._fields[kind]
        if not isinstance(found, dict):
            raise Malformed("not an object")
        values = {}
        for name, value in found.items():
            if name not in fields:
                if self._tolerant:
                    continue
                raise Malformed(f"unknown field {name[:NAME]!r}")
            try:
                values[name] = fields[name](value)
            except Malformed as why:
                raise Malformed(f"`{name}`: {why}") from None
        for name in fields:
            if name not in values and (self._complete or name not in kind._field_defaults):  # type: ignore[attr-defined]
                raise Malformed(f"`{name}` is missing")
        return kind(**values)

    def dump(self, value: tuple[Any, ...]) -> str:
        """One line of JSON, in ASCII."""
        return json.dumps(self.plain(value))

    def load(self, kind: type[Value], content: str | bytes) -> Value:
        """The value that `dump` has written, or Malformed."""
        return self.value(kind, parse_json(content))

    def _string(self, value: object) -> str:
        if not isinstance(value, str):
            raise Malformed("not a text")
        return self._text(value)

    def _check(self, kind: Any) -> Check:
        """The function that checks and converts the JSON representation of this type."""
        if kind in self._checks:
            return self._checks[kind]
        if hasattr(kind, "_fields"):
            return lambda value: self.value(kind, value)
        inner, origin = get_args(kind), get_origin(kind)
        if origin is Literal:
            return lambda value: _one_of(inner, value)
        if origin is tuple and inner[-1] is Ellipsis:
            return _items(self._check(inner[0]))
        if origin is tuple:
            return _row([self._check(one) for one in inner])
        if origin in (dict, Mapping):
            return _mapping(self._check(inner[1]))
        assert origin in (Union, UnionType), kind
        (some,) = (self._check(one) for one in inner if one is not type(None))
        return lambda value: None if value is None else some(value)


class Protocol(Generic[Value]):
    """One direction between two processes: each line is an object whose field `tag` names the type of the message.
    `messages`: these types, or the unions of them."""

    def __init__(self, tag: str, *messages: Any) -> None:
        kinds: list[type[Value]] = [kind for one in messages for kind in get_args(one) or (one,)]
        self._tag, self.kinds = tag, {_name(kind): kind for kind in kinds}

    def dump(self, message: Value) -> bytes:
        """The line, with the newline."""
        fields: dict[str, Any] = EXACT.plain(message)
        return json.dumps({self._tag: _name(type(message)), **fields}).encode("ascii") + b"\n"

    def load(self, line: bytes) -> Value:
        """The message of this line; Malformed if it is not of this protocol."""
        found = parse_json(line)
        name = found.pop(self._tag, None) if isinstance(found, dict) else None
        if not isinstance(name, str):
            raise Malformed(f"not an object with `{self._tag}`")
        if name not in self.kinds:
            raise Malformed(f"unknown message {name[:NAME]!r}")
        try:
            return EXACT.value(self.kinds[name], found)
        except Malformed as why:
            raise Malformed(f"message {name!r}: {why}") from None


def one_line(text: str) -> str:
    """The text on one line for a terminal, with a space for each character that is not printable."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def parse_json(content: str | bytes) -> Any:
    """The parsed JSON, or Malformed."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Malformed("not JSON") from None


def parse_object(content: bytes, limit: int) -> dict[str, Any]:
    """The parsed JSON object; Malformed if it is none, or has more than `limit` bytes."""
    if len(content) > limit:
        raise Malformed(f"more than {limit} bytes")
    found = parse_json(content)
    if not isinstance(found, dict):
        raise Malformed("not a JSON object")
    return found


def _name(kind: type) -> str:
    """The tag of a message: `CheckpointSaved` becomes `checkpoint_saved`."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in kind.__name__).lstrip("_")


def _integer(value: object) -> int:
    if type(value) is not int or abs(value) > LARGEST:
        raise Malformed("not an integer")
    return value


def _number(value: object) -> float:
    """A quantity: a negative one becomes zero, and NaN is rejected."""
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        raise Malformed("not a number")
    if value < 0:
        return 0.0
    return value if isinstance(value, float) else min(value, LARGEST)


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise Malformed("neither true nor false")
    return value


def _one_of(known: tuple[Any, ...], value: object) -> Any:
    if not isinstance(value, str) or value not in known:
        raise Malformed(f"none of {', '.join(known)}")
    return value


def _row(checks: list[Check]) -> Check:
    def check(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            raise Malformed(f"not {len(checks)} values")
        return tuple(check(one) for check, one in zip(checks, value, strict=True))

    return check


def _items(check: Check) -> Check:
    def checked(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Malformed("not a list")
        return tuple(map(check, value))

    return checked


def _mapping(check: Check) -> Check:
    def checked(value: object) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise Malformed("not an object")
        return {name: check(one) for name, one in value.items()}

    return checked


EXACT: Final = Codec()  # strings are kept as they are
TOLERANT: Final = Codec(tolerant=True)  # of files that another version may have written
DECODABLE: Final = Codec(lambda text: text.encode("utf-8", "backslashreplace").decode())  # for every reader of JSON
