"""`state.json`: the ledger, and beside it what run_state.py has."""

import json
from typing import Any, Final

from ftrun.core.accounting.totals import TRACE, Account, LostTime, RestartCounts, Trace
from ftrun.core.machine.values import Ledger, SavedFile, VisibleDevices
from ftrun.core.rules.fault_history import Clock, Occurrence
from ftrun.messages.codec import EXACT, Codec, Malformed, parse_json

SCHEMA: Final = 1
STEPS: Final = 1 << 63  # one more than the largest step, and the largest count


def dump_state(ledger: Ledger, extra: dict[str, object]) -> bytes:
    nested = {
        "visible": [ledger.visible.variable, *ledger.visible.names] if ledger.visible else [],
        "learned": ledger.learned and ledger.learned._asdict(),
        "occurrences": [_flat(one) for one in ledger.occurrences],
        "account": _plain(ledger.account),
    }
    state = {"schema": SCHEMA, **ledger._asdict(), **nested, **EXACT.plain(extra)}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in state.items())  # for human readers
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def load_state(content: bytes) -> tuple[Ledger, dict[str, Any]]:
    """The ledger and the other fields; Malformed if any part of the ledger is not as ftrun writes it."""
    found = parse_json(content)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise Malformed("not a state of this version")
    added: dict[str, Any] = {"epoch": 0, "first_beat": None, "job": "", "learned": None, "saved": [], "regained": []}
    added |= {"ended_at": [], "troubles": []}
    added |= dict.fromkeys(("replacements", "retried", "replaced"), 0)
    found = added | {"account": _plain(Account())} | found  # an older version may have written it
    account = found["account"]
    if isinstance(account, dict):
        nested = {"restarts": RestartCounts()._asdict(), "lost": {"discarded": 0.0}}
        whole = {name: of | account[name] for name, of in nested.items() if isinstance(account.get(name), dict)}
        found["account"] = {"stepped": bool(account.get("saved") or account.get("trace"))} | account | whole
    if isinstance(learned := found["learned"], dict) and "intervals" in learned:  # an older version learned a timeout
        found["learned"] = {name: learned.get(name) for name in ("usual", "longest")} | {"steps": learned["intervals"]}
    ledger = {name: found.pop(name) for name in Ledger._fields if name in found}
    return _CODEC.value(Ledger, ledger), found


# --- how the file represents some types -------------------------------------------------------------------------------


def _plain(account: Account) -> dict[str, object]:
    nested = {"lost": account.lost._asdict(), "restarts": account.restarts._asdict()}
    # One string for a trace is shorter than a list.
    traces = {name: " ".join(f"{at!r}:{step}" for at, step in getattr(account, name)) for name in ("trace", "past")}
    return account._asdict() | nested | traces


def _account(found: object) -> Account:
    account = _CODEC.value(Account, found)
    if account.into not in ("", *LostTime._fields):
        raise Malformed(f"`into`: {account.into!r} is not a reason")
    return account


def _trace(found: object) -> Trace:
    points = found.split() if isinstance(found, str) else [""]
    try:
        pairs = [point.split(":") for point in points]
        trace = tuple((_amount(float(worked)), int(step)) for worked, step in pairs)
    except ValueError:
        raise Malformed("not a trace") from None
    steps = [step for _, step in trace]
    if len(trace) > TRACE or steps != sorted(set(steps)) or not all(0 <= step < STEPS for step in steps):
        raise Malformed("not a trace")
    return trace


def _flat(one: Occurrence) -> dict[str, object]:
    return {name: value for name, value in one._asdict().items() if name != "at"} | one.at._asdict()


def _occurrence(found: object) -> Occurrence:
    if not isinstance(found, dict):
        raise Malformed("not an object")
    at = {name: value for name, value in found.items() if name in Clock._fields}
    rest = {name: value for name, value in found.items() if name not in at}
    return _CODEC.value(Occurrence, {"job": "", **rest, "at": at})  # an older version wrote no job


def _saved_file(found: object) -> SavedFile:
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(text, str) for text in found):
        raise Malformed("not a path and a version")
    return SavedFile(*found)


def _visible(found: object) -> VisibleDevices | None:
    """The file has a list: the variable, then the words; empty where no device was taken away."""
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise Malformed("not a list of texts")
    return VisibleDevices(found[0], tuple(found[1:])) if found else None


def _count(found: object) -> int:
    if type(found) is not int or not 0 <= found < STEPS:
        raise Malformed("not a count")
    return found


def _amount(found: object) -> float:
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= 1e12:
        raise Malformed("not a number of seconds")
    return float(found)


_CODEC: Final = Codec(
    checks={
        int: _count,
        float: _amount,
        Trace: _trace,
        Account: _account,
        Occurrence: _occurrence,
        SavedFile: _saved_file,
        VisibleDevices | None: _visible,
    },
    complete=True,
)
