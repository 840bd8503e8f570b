"""Values from files that others wrote, or nobody: each as it is meant to be, or None."""

from collections.abc import Callable
from typing import Any, Final

MOST: Final = 1e15  # of any number that we show
Kind = Any  # a function that tells; by name, kinds; a list with the kind of all its elements


def number(found: object) -> float | None:
    known = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) <= MOST
    return float(found) if known and isinstance(found, int | float) else None


def whole(found: object) -> int | None:
    return found if type(found) is int and abs(found) <= MOST else None


def text(found: object) -> str | None:
    return found if isinstance(found, str) else None


def texts(found: object) -> tuple[str, ...] | None:
    return tuple(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def truth(found: object) -> bool | None:
    return found if isinstance(found, bool) else None


class Maybe:
    """Or None."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind


def misfit(found: object, kind: Kind, name: str = "") -> str | None:
    """The name of what is not of its kind, if anything; what is missing, and what is more, is no misfit."""
    if isinstance(kind, Maybe):
        return None if found is None else misfit(found, kind.kind, name)
    if isinstance(kind, dict):
        if not isinstance(found, dict):
            return name
        inner = (misfit(found[key], of, f"{name}.{key}".lstrip(".")) for key, of in kind.items() if key in found)
        return next((one for one in inner if one is not None), None)
    if isinstance(kind, list):
        whole_list = isinstance(found, list) and all(misfit(one, kind[0]) is None for one in found)
        return None if whole_list else name
    tells: Callable[[object], object] = kind
    return None if tells(found) is not None else name


PAIR: Final = [number]
LIMITS: Final = {name: Maybe(number) for name in ("hang", "start", "section", "idle", "automatic")} | dict.fromkeys(
    ("start_given", "auto", "idle_given", "automatic_learned"), truth
)
ATTEMPT: Final = {
    **dict.fromkeys(("number", "pid", "patience"), whole),
    **dict.fromkeys(("spawned_at", "idle_raised", "start_raised"), number),
    **{name: Maybe(number) for name in ("stopped_at", "idle_since", "first_beat")},
    **{name: [PAIR] for name in ("aways", "raised")},
    "moved": truth,
    "accelerator": truth,
}
STATE: Final = {
    "beat_dir": Maybe(text),
    "pid": Maybe(whole),
    "pid_start": Maybe(whole),
    "ended": truth,
    "run": {
        **dict.fromkeys(("version", "boot", "began", "part"), text),
        **{name: Maybe(whole) for name in ("pid", "pid_start", "max_restarts")},
        **dict.fromkeys(("command", "restart_on"), texts),
        "mono": number,
        "limits": LIMITS,
        "sources": {f"{rule}-timeout": text for rule in ("hang", "start", "idle")},
    },
    "now": {
        "phase": text,
        "stage": Maybe(text),
        "deadline": Maybe(number),
        "held": Maybe(text),
        "want": {"want": text},
        "paused": Maybe({"since": number, "until": Maybe(number)}),
        "finding": Maybe({"rank": Maybe(whole)}),
        "group": Maybe({"what": text, "why": text}),
        "attempt": Maybe(ATTEMPT),
    },
}
