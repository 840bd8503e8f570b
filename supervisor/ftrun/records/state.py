"""Reads `state.json`, and checks values from files that may be damaged."""

from typing import Any, Final

from ftrun.core.machine.values import Ledger
from ftrun.core.named_tuple import NamedTuple
from ftrun.host import procfs
from ftrun.messages.codec import Malformed
from ftrun.messages.state import load_state

LIMIT: Final = 4 << 20  # bytes
LARGEST: Final = 1e15  # of any number that is shown
Kind = Any  # a function that returns None for another kind of value; a dict of kinds by name; a list of one kind


class SavedState(NamedTuple):
    """`ledger`: None if it cannot be read.  `rest`: the other parts.  `problem`: why something is missing, one line."""

    ledger: Ledger | None = None
    rest: dict[str, Any] = {}  # noqa: RUF012 - a value, never changed
    problem: str | None = None

    def part(self, name: str) -> dict[str, Any]:
        """`run`, `now` ...; empty if there is none."""
        found = self.rest.get(name)
        return found if isinstance(found, dict) else {}


def load(run_dir: str) -> SavedState:
    """Never raises."""
    path = f"{run_dir}/state.json"
    content = procfs.read(path, LIMIT)
    if content is None:
        return SavedState(problem=f"{path} cannot be read: only the records are shown")
    try:
        ledger, rest = load_state(content)
    except Malformed as error:
        return SavedState(problem=f"{path}: {error}: only the records are shown")
    if (name := malformed(rest, STATE)) is not None:
        return SavedState(ledger, problem=f"{path}: {name} is malformed: only the records are shown")
    return SavedState(ledger, rest)


# --- values of unknown origin: each as the kind that is expected, or None ---------------------------------------------


def number(found: object) -> float | None:
    if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) <= LARGEST:
        return float(found)
    return None


def integer(found: object) -> int | None:
    return found if type(found) is int and abs(found) <= LARGEST else None


def string(found: object) -> str | None:
    return found if isinstance(found, str) else None


def strings(found: object) -> tuple[str, ...] | None:
    return tuple(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def boolean(found: object) -> bool | None:
    return found if isinstance(found, bool) else None


def text_pairs(found: object) -> dict[str, tuple[str, ...]] | None:
    """Two texts for each name: of an option, its value and its source."""
    if not isinstance(found, dict):
        return None
    pairs = {name: strings(pair) for name, pair in found.items()}
    known: dict[str, tuple[str, ...]] = {name: pair for name, pair in pairs.items() if pair and len(pair) == 2}
    return known if len(known) == len(pairs) else None


def texts(found: object) -> dict[str, str] | None:
    """A text for each name."""
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        return None
    return found


class Optional:
    """This kind, or null."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind


def malformed(found: object, kind: Kind, name: str = "") -> str | None:
    """The dotted name of the first value that is not of its kind, if any.  Missing and unknown names are accepted."""
    if isinstance(kind, Optional):
        return None if found is None else malformed(found, kind.kind, name)
    if isinstance(kind, dict):
        if not isinstance(found, dict):
            return name
        inner = (malformed(found[key], of, f"{name}.{key}".lstrip(".")) for key, of in kind.items() if key in found)
        return next((one for one in inner if one is not None), None)
    if isinstance(kind, list):
        fits = isinstance(found, list) and all(malformed(one, kind[0]) is None for one in found)
    else:
        fits = kind(found) is not None
    return None if fits else name


LIMITS: Final = {
    **{name: Optional(number) for name in ("hang", "start", "section", "idle", "automatic")},
    **dict.fromkeys(("auto", "idle_given", "idle_together"), boolean),
    **dict.fromkeys(("grace", "kill_timeout", "heal_timeout", "evidence_timeout", "recover_timeout"), number),
    **{name: Optional(number) for name in ("stop_grace", "device_timeout", "link_timeout")},
    "link_library": string,
}
ATTEMPT: Final = {
    **dict.fromkeys(("number", "pid"), integer),
    **dict.fromkeys(("spawned_at", "idle_raised", "active_at"), number),
    **{name: Optional(number) for name in ("stopped_at", "idle_since", "first_beat")},
    "aways": [[number]],
    "stalled": Optional([number]),
    "processes": [[Optional(number)]],
    "exceptions": [string],
    **dict.fromkeys(("moved", "accelerator"), boolean),
    "wait": string,
    "rounds": Optional(
        {
            **dict.fromkeys(("number",), integer),
            **dict.fromkeys(("stage", "why"), string),
            "rung": Optional(string),
            **{name: [number] for name in ("replacing", "awaited")},
            **dict.fromkeys(("since", "began"), number),
        }
    ),
}
STATE: Final = {
    "beat_dir": Optional(string),
    "pid": Optional(integer),
    "pid_start": Optional(integer),
    "ended": boolean,
    "run": {
        **dict.fromkeys(("version", "boot", "began", "part", "node"), string),
        **{name: Optional(integer) for name in ("pid", "pid_start", "max_restarts")},
        **dict.fromkeys(("command", "restart_on"), strings),
        "mono": number,
        "limits": LIMITS,
        "state_dir": Optional(string),
        "options": text_pairs,
        "meanings": texts,
        "sources": {f"{rule}-timeout": string for rule in ("hang", "start", "idle")},
    },
    "now": {
        "phase": string,
        "stage": Optional(string),
        "deadline": Optional(number),
        "held": Optional(string),
        "want": {"want": string},
        "paused": Optional({"since": number, "until": Optional(number), "by": string}),
        "finding": Optional({"rank": Optional(integer), "rule": string, "mechanism": string}),
        "group": Optional({"what": string, "why": string}),
        "attempt": Optional(ATTEMPT),
    },
}
