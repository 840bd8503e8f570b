"""Texts of options to values; each reader raises ValueError with one line for a person."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

HOUR: Final = 3600.0
UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": HOUR, "d": 24 * HOUR}
CAUSES: Final = ("hang", "fault", "failure")


def duration(text: str) -> float:
    """`500ms`, `90s`, `10m`, `1h`, `1d` as seconds."""
    for unit in ("ms", "s", "m", "h", "d"):
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdecimal() and number.isascii():
            seconds = float(number) * UNITS[unit]
            if not 0 < seconds < 3660 * UNITS["d"]:
                raise ValueError(f"{text!r} is out of range: a duration is above zero (`off` disables)")
            return seconds
    raise ValueError(f"{text!r} is no duration; write 500ms, 90s, 10m, 1h or 1d")


def or_off(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """`off` (as None) or what `read` takes."""

    def reader(text: str) -> Any:
        if text == "off":
            return None
        try:
            return read(text)
        except ValueError as error:
            raise ValueError(f"{error}, or off") from None

    return reader


def or_auto(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """`auto` as itself, or what `read` takes."""
    return lambda text: text if text == "auto" else read(text)


def count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{text!r} is no count; write a whole number such as 3")
    return int(text)


def amount(text: str) -> float:
    if not (text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) < 16):
        raise ValueError(f"{text!r} is no amount; write a number such as 0.05 or 16384")
    return float(text)


def causes(text: str) -> frozenset[str]:
    named = [word.strip() for word in text.split(",") if word.strip()]
    if named == ["none"]:
        return frozenset()
    for word in named:
        if word not in CAUSES:
            raise ValueError(f"{word!r} is none of {', '.join(CAUSES)}, none{near(word, (*CAUSES, 'none'))}")
    if not named:
        raise ValueError(f"it is empty; name some of {', '.join(CAUSES)}, or none")
    return frozenset(named)


def one_of(*choices: str) -> Callable[[str], str]:
    def reader(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}{near(text, choices)}")
        return text

    return reader


def above_zero(text: str) -> int:
    number = count(text)
    if number == 0:
        raise ValueError("'0' is none; write a number above zero")
    return number


def address(text: str) -> str:
    """`HOST:PORT`; no host: all of this machine's; port 0: any that is free."""
    host, colon, port = text.rpartition(":")
    numbered = port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536
    if not (colon and numbered and (not host or _is_host(host))):
        raise ValueError(f"{text!r} is no HOST:PORT; write 127.0.0.1:9400, [::1]:9400, or :9400 for all interfaces")
    return text


def endpoint(text: str) -> str:
    """`HOST:PORT` of another machine, or `:PORT`, whose host is known otherwise."""
    try:
        if int(address(text).rpartition(":")[2]):
            return text
    except ValueError:
        pass
    raise ValueError(f"{text!r} is no HOST:PORT; write train-0.train:29470, [fd00::1]:29470, or :29470") from None


def label(text: str) -> str:
    """A name that is printed, sent and compared."""
    if not (0 < len(text.encode("utf-8", "replace")) <= 255 and text.isprintable()):
        raise ValueError(f"{text[:80]!r} is no name; write 1 to 255 bytes that can be printed")
    return text


def _is_host(text: str) -> bool:
    """An IPv4, [IPv6] or a name.  What ends in a number is no name: a resolver takes `0x7f000001` for an IPv4."""
    import ipaddress  # only ever for an address

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
        raise ValueError(f"{text!r} is no name of a textfile; it has to end in .prom")
    return text


def path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("it is empty")
    return text


def paths(text: str) -> tuple[str, ...]:
    """Those of a list of paths, which is one to a line: any other character may be part of one."""
    return tuple(path(line) for line in text.split("\n") if line) or (path(""),)


def truth(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither on nor off")


def near(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    import difflib  # only ever for an error

    found = difflib.get_close_matches(word, list(known), 1, cutoff)
    return f" (did you mean {found[0]!r}?)" if found else ""
