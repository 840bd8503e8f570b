"""Parsers of option texts.  Each raises ValueError with one line for the user."""

import re
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeVar

T = TypeVar("T")

UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
CAUSES: Final = ("hang", "fault", "failure")


def duration(text: str) -> float:
    """`500ms`, `90s`, `10m`, `1h`, `1d` as seconds."""
    for unit, factor in UNITS.items():
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdecimal() and number.isascii():
            seconds = float(number) * factor
            if not 0 < seconds < 3660 * UNITS["d"]:
                raise ValueError(f"{text!r} is out of range; write a duration above zero and below 3660d")
            return seconds
    raise ValueError(f"{text!r} is not a duration; write 500ms, 90s, 10m, 1h or 1d")


def or_off(read: Callable[[str], T]) -> Callable[[str], T | None]:
    """A parser that takes `off`, as None, or what `read` takes."""

    def reader(text: str) -> T | None:
        if text == "off":
            return None
        try:
            return read(text)
        except ValueError as error:
            raise ValueError(f"{error}, or off") from None

    return reader


def or_auto(read: Callable[[str], T]) -> Callable[[str], T | Literal["auto"]]:
    """A parser that takes `auto`, unchanged, or what `read` takes."""
    return lambda text: "auto" if text == "auto" else read(text)


def or_words(read: Callable[[str], T], *words: str) -> Callable[[str], T | str]:
    """A parser that takes one of these words, unchanged, or what `read` takes."""

    def reader(text: str) -> T | str:
        if text in words:
            return text
        try:
            return read(text)
        except ValueError as error:
            raise ValueError(f"{error}, or {', '.join(words)}{near(text, words)}") from None

    return reader


def count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        too_large = text.isascii() and text.isdecimal()
        raise ValueError(f"{text!r} is " + ("too large" if too_large else "not a whole number such as 3"))
    return int(text)


def ranks(text: str) -> frozenset[int]:
    """Local ranks, such as `0,1`, as torchrun takes them."""
    return frozenset(count(number.strip()) for number in text.split(","))


def module_names(text: str) -> tuple[str, ...]:
    """Python modules, such as `torch,transformers`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is not the name of a module")
    return tuple(dict.fromkeys(names))


def amount(text: str) -> float:
    if not (text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) < 16):
        raise ValueError(f"{text!r} is not a number such as 0.05 or 16384")
    return float(text)


def some_of(*choices: str) -> Callable[[str], frozenset[str]]:
    """A list of these, with commas, or `none`."""

    def reader(text: str) -> frozenset[str]:
        named = [name.strip() for name in text.split(",") if name.strip()]
        if named == ["none"]:
            return frozenset()
        for name in named:
            if name == "none":
                raise ValueError("none cannot be combined with others")
            if name not in choices:
                raise ValueError(f"{name!r} is not one of {', '.join(choices)}, none{near(name, (*choices, 'none'))}")
        if not named:
            raise ValueError(f"the value is empty; name some of {', '.join(choices)}, or none")
        return frozenset(named)

    return reader


causes: Final = some_of(*CAUSES)


def one_of(*choices: str) -> Callable[[str], str]:
    def reader(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}{near(text, choices)}")
        return text

    return reader


def above_zero(text: str) -> int:
    number = count(text)
    if number == 0:
        raise ValueError("'0' is not allowed; write a number above zero")
    return number


def members(text: str) -> int | tuple[int, int]:
    """`N`, or `MIN:MAX` as a pair; equal numbers are one."""
    least, colon, most = text.partition(":")
    if not colon:
        return above_zero(text)
    low, high = above_zero(least), above_zero(most)
    if low > high:
        raise ValueError(f"{text!r} is not MIN:MAX, because {low} is greater than {high}; write {high}:{low}")
    return high if low == high else (low, high)


def address(text: str) -> str:
    """`HOST:PORT`.  Without a host it means all interfaces of this machine; port 0 means any free port."""
    host, colon, port = text.rpartition(":")
    numbered = port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536
    if not (colon and numbered and (not host or _is_host(host))):
        raise ValueError(f"{text!r} is not HOST:PORT; write 127.0.0.1:9400, [::1]:9400, or :9400 for all interfaces")
    return text


def endpoint(text: str) -> str:
    """`HOST:PORT` of another machine, or `:PORT` where the host is known from elsewhere."""
    try:
        if int(address(text).rpartition(":")[2]):
            return text
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not HOST:PORT; write train-0.train:29470, [fd00::1]:29470, or :29470") from None


def label(text: str) -> str:
    """A name that can be printed, sent and compared."""
    if not (0 < len(text.encode("utf-8", "replace")) <= 255 and text.isprintable()):
        raise ValueError(f"{text[:80]!r} is not a name; write 1 to 255 printable bytes")
    return text


def _is_host(text: str) -> bool:
    """Whether it is an IPv4, an [IPv6] or a host name.  A text that ends in a number is not a host name: a resolver
    takes `0x7f000001` for an IPv4 address."""
    import ipaddress  # needed for addresses only

    bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.]+(%[\w.-]+)?)\]", text, re.ASCII)
    try:
        ipaddress.IPv6Address(bracketed[1]) if bracketed else ipaddress.IPv4Address(text)
    except ValueError:
        name = r"(?=.{1,253}$)([\w-]{1,63}\.)*(?!(\d+|0[xX][0-9A-Fa-f]*)\.?$)[\w-]{1,63}\.?"
        return re.fullmatch(name, text, re.ASCII) is not None
    return True


def textfile(text: str) -> str:
    """A path that node_exporter's textfile collector takes."""
    if "\0" in text or not re.fullmatch(r"(.*/)?[^/]+\.prom", text, re.DOTALL):
        raise ValueError(f"{text!r} is not the name of a textfile; it has to end in .prom")
    return text


NOTICES: Final = (
    *("hang", "stalled", "restart", "recovering", "fault", "lost", "waiting", "frozen", "straggler", "escalated"),
    *("ended", "paused", "resumed", "problem", "disk"),
)
notices: Final = some_of(*NOTICES)


def urls(text: str) -> tuple[str, ...]:
    """A list of HTTP URLs, one per line."""
    for line in paths(text):
        if not re.fullmatch(r"https?://[^\s/@:]+[^\s]*", line):
            raise ValueError("not a URL; write https://HOST/PATH")
    return paths(text)


def url(text: str) -> str:
    """One HTTP URL."""
    if len(urls(text)) != 1:
        raise ValueError("write one URL")
    return text


def path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("the value is empty")
    return text


def paths(text: str) -> tuple[str, ...]:
    """A list of paths, one per line, since any other character may be part of a path."""
    return tuple(path(line) for line in text.split("\n") if line) or (path(""),)


def truth(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither on nor off")


def near(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    import difflib  # needed for an error only

    found = difflib.get_close_matches(name, list(known), 1, cutoff)
    return f" (did you mean {found[0]!r}?)" if found else ""
