"""Records as lines of `events.jsonl`, and the ledger to and from `state.json`."""

import json
from collections.abc import Iterable
from typing import Any, Final

from ftrun.core.accounting.totals import TRACE, Account, LostTime, RestartCounts, Trace
from ftrun.core.machine.values import LearnedTimeouts, Ledger, SavedFile
from ftrun.core.rules.fault_history import Clock, Occurrence

SCHEMA: Final = 1
MESSAGE_LIMIT: Final = 4096  # bytes of a Kubernetes termination message

_ENCODE: Final = json.JSONEncoder(default=str).encode  # json.dumps would create an encoder for each record
_COUNTS: Final = ("start_cnt", "schedule_cnt", "hang", "fault", "failure", "epoch")
_STEPS: Final = ("best_step", "best_checkpoint", "last_step")
_TEXTS: Final = ("last_checkpoint", "last_section")
_BOOLEANS: Final = ("reached", "faulted")
_LISTS: Final = ("removed", "visible")
_NESTED: Final = ("learned", "occurrences", "saved", "account")
_DURATIONS: Final = ("wall", "kept", "open", "earlier", "silent")  # of the account
_TRACES: Final = ("trace", "past")
_SUMS: Final = (("lost", LostTime), ("restarts", RestartCounts))
_REASONS: Final = ("first", "hang", "fault", "failure", "manual", "peer")


class Corrupt(ValueError):
    """The content is not a state that ftrun wrote."""


def timestamp(nanoseconds: int, parts: tuple[int, ...]) -> str:
    """ISO-8601 UTC with milliseconds, from the wall clock and its `time.gmtime`."""
    year, month, day, hour, minute, second = parts[:6]
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds // 1_000_000 % 1000:03}Z"


def line(time: str, mono: float, event: str, attempt: int, fields: Iterable[tuple[str, object]]) -> bytes:
    """One record; always one line of ASCII, whatever bytes a name has."""
    record = {"schema": SCHEMA, "time": time, "mono": round(mono, 6), "event": event, "attempt": attempt}
    for name, value in fields:
        record.setdefault(name, round(value, 6) if isinstance(value, float) else value)
    return _ENCODE(record).encode("ascii") + b"\n"


def dump_state(ledger: Ledger, extra: dict[str, object]) -> bytes:
    nested = {
        "learned": None if ledger.learned is None else ledger.learned._asdict(),
        "occurrences": [occurrence(one) for one in ledger.occurrences],
        "account": _account(ledger.account),
    }
    state = {"schema": SCHEMA, **ledger._asdict(), **nested, **extra}
    lines = (
        f"{json.dumps(name)}: {json.dumps(value)}" for name, value in state.items()
    )  # one field per line, for human readers
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def load_state(content: bytes) -> tuple[Ledger, dict[str, Any]]:
    """The ledger and the other fields; Corrupt if any part is not valid."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Corrupt(str(error)) from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise Corrupt("not a state of this version")
    found.setdefault("epoch", 0)  # written by an ftrun without groups
    if found.setdefault("first_beat") is not None:
        _amount("first_beat", found["first_beat"])
    if not isinstance(found.setdefault("job", ""), str):  # written by an ftrun without job names
        raise Corrupt(f"job is {found['job']!r}")
    for name in (*_COUNTS, *_STEPS):
        value = found.get(name)
        if (value is None and name in _STEPS) or (type(value) is int and 0 <= value < 1 << 63):
            continue
        raise Corrupt(f"{name} is {value!r}")
    for name in _TEXTS:
        if not isinstance(found.get(name), str | None):
            raise Corrupt(f"{name} is {found.get(name)!r}")
    if found.get("reason") not in _REASONS:
        raise Corrupt(f"reason is {found.get('reason')!r}")
    for name in _BOOLEANS:
        if type(found.get(name)) is not bool:
            raise Corrupt(f"{name} is {found.get(name)!r}")
    learned = _learned(found.pop("learned", None))
    for name in _LISTS:
        items = found.get(name)
        if not isinstance(items, list) or not all(isinstance(one, str) for one in items):
            raise Corrupt(f"{name} is {items!r}")
        found[name] = tuple(items)
    occurrences = found.pop("occurrences", None)
    if not isinstance(occurrences, list):
        raise Corrupt("the faults are not a list")
    kept = tuple(map(load_occurrence, occurrences))
    saved = _load_files(found.pop("saved", []))  # absent if written by an older ftrun
    account = _load_account(found.pop("account")) if "account" in found else Account()
    if missing := [name for name in (*_STEPS, *_TEXTS) if name not in found]:  # the others are never null
        raise Corrupt(f"{missing[0]} is missing")
    flat = {name: found.pop(name) for name in Ledger._fields if name not in _NESTED}
    return Ledger(**flat, learned=learned, occurrences=kept, saved=saved, account=account), found


def occurrence(one: Occurrence) -> dict[str, object]:
    """Its representation in the file: flat."""
    at = one.at._asdict()
    return {name: value for name, value in one._asdict().items() if name != "at"} | at


def load_occurrence(found: object) -> Occurrence:
    """The value, or Corrupt."""
    if not isinstance(found, dict):
        raise Corrupt(f"a fault is {found!r}")
    texts = [found.get(name) for name in ("node", "device", "code", "severity", "boot")]
    times: list[Any] = [found.get(name) for name in ("wall", "mono")]
    valid_times = all(type(time) in (int, float) and abs(time) <= 1e12 for time in times)
    if not valid_times or not all(type(text) is str for text in texts):
        raise Corrupt(f"a fault is {found!r}")
    node, device, code, severity, boot = map(str, texts)
    clock, job = Clock(float(found["wall"]), boot, float(found["mono"])), found.get("job", "")
    if not isinstance(job, str):
        raise Corrupt(f"a fault is {found!r}")
    return Occurrence(node, device, code, severity, clock, job)


def _load_files(found: object) -> tuple[SavedFile, ...]:
    """The values, or Corrupt."""
    if not isinstance(found, list):
        raise Corrupt(f"saved is {found!r}")
    for one in found:
        if not isinstance(one, list) or len(one) != 2 or not all(isinstance(text, str) for text in one):
            raise Corrupt(f"a saved file is {one!r}")
    return tuple(SavedFile(path, version) for path, version in found)


def _learned(found: object) -> LearnedTimeouts | None:
    if found is None:
        return None
    if not isinstance(found, dict) or found.keys() != set(LearnedTimeouts._fields):
        raise Corrupt(f"learned is {found!r}")
    for name, value in found.items():
        if type(value) not in (int, float) or not 0 <= value <= 1e12:
            raise Corrupt(f"learned.{name} is {value!r}")
    return LearnedTimeouts(**found)


def _account(account: Account) -> dict[str, object]:
    """Its representation in the file.  A trace is one string, which is shorter than a list."""
    traces = {name: " ".join(f"{worked!r}:{step}" for worked, step in getattr(account, name)) for name in _TRACES}
    return account._asdict() | {"lost": account.lost._asdict(), "restarts": account.restarts._asdict()} | traces


def _load_account(found: object) -> Account:
    """The value, or Corrupt."""
    table = _table("account", found, Account._fields)
    lost, restarts = (_table(f"account.{name}", table[name], kind._fields) for name, kind in _SUMS)
    for name, number in restarts.items():
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise Corrupt(f"account.restarts.{name} is {number!r}")
    for name in ("begun", "saved"):
        if type(table[name]) is not bool:
            raise Corrupt(f"account.{name} is {table[name]!r}")
    if table["into"] not in ("", *LostTime._fields):
        raise Corrupt(f"account.into is {table['into']!r}")
    known: dict[str, Any] = {name: _amount(f"account.{name}", table[name]) for name in _DURATIONS}
    known["at"] = None if table["at"] is None else _amount("account.at", table["at"])
    known |= {name: _trace(f"account.{name}", table[name]) for name in _TRACES}
    known["lost"] = LostTime(**{name: _amount(f"account.lost.{name}", seconds) for name, seconds in lost.items()})
    return Account(**table | known | {"restarts": RestartCounts(**restarts)})


def _table(name: str, found: object, fields: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(found, dict) or found.keys() != set(fields):
        raise Corrupt(f"{name} is {found!r}")
    return found


def _amount(name: str, found: object) -> float:
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= 1e12:
        raise Corrupt(f"{name} is {found!r}")
    return float(found)


def _trace(name: str, found: object) -> Trace:
    points = found.split() if isinstance(found, str) else [""]
    try:
        pairs = [point.split(":") for point in points]
        trace = tuple((_amount(name, float(worked)), int(step)) for worked, step in pairs)
    except ValueError:
        raise Corrupt(f"{name} is {found!r}") from None
    steps = [step for _, step in trace]
    if len(trace) > TRACE or steps != sorted(set(steps)) or not all(0 <= step < 1 << 63 for step in steps):
        raise Corrupt(f"{name} is {found!r}")
    return trace


def message(fields: dict[str, object]) -> bytes:
    """The termination message: JSON of at most 4,096 bytes; the longest text is truncated if needed."""
    content = json.dumps(fields).encode("ascii")
    while len(content) > MESSAGE_LIMIT:
        name = max(fields, key=lambda key: len(str(fields[key])))
        text = str(fields[name])
        fields = {**fields, name: text[: max(0, len(text) - max(64, (len(content) - MESSAGE_LIMIT)))] + "..."}
        content = json.dumps(fields).encode("ascii")
    return content
