"""`state.json`: the ledger, and beside it what run_state.py has."""

import json
from typing import Any, Final

from ftrun.core.accounting.totals import TRACE, Account, LostTime, Trace
from ftrun.core.machine.values import Ledger
from ftrun.messages.codec import Codec, Malformed, parse_json

SCHEMA: Final = 2
LIMIT: Final = 16 << 20  # bytes: it has the command, whose words may have 2 MiB, which JSON may write six times as long
STEPS: Final = 1 << 63  # one more than the largest step, and the largest count


def dump_state(ledger: Ledger, extra: dict[str, object]) -> bytes:
    state = {"schema": SCHEMA, **_CODEC.plain(ledger), **_CODEC.plain(extra)}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in state.items())  # for human readers
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def load_state(content: bytes) -> tuple[Ledger, dict[str, Any]]:
    """The ledger and the other fields; Malformed if any part of the ledger is not as ftrun writes it."""
    found = parse_json(content)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise Malformed("not a state of this version")
    ledger = {name: found.pop(name) for name in Ledger._fields if name in found}
    return _CODEC.value(Ledger, ledger), found


# --- what a part of the file has to be --------------------------------------------------------------------------------


def _account(found: object) -> Account:
    account = _CODEC.value(Account, found)
    if account.into not in ("", *LostTime._fields):
        raise Malformed(f"`into`: {account.into!r} is not a reason")
    return account


def _trace(found: object) -> Trace:
    if not isinstance(found, list) or not all(isinstance(point, list) and len(point) == 2 for point in found):
        raise Malformed("not a trace")
    trace = tuple((_amount(worked), _count(step)) for worked, step in found)
    steps = [step for _, step in trace]
    if len(trace) > TRACE or steps != sorted(set(steps)):
        raise Malformed("not a trace")
    return trace


def _count(found: object) -> int:
    if type(found) is not int or not 0 <= found < STEPS:
        raise Malformed("not a count")
    return found


def _amount(found: object) -> float:
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= 1e12:
        raise Malformed("not a number of seconds")
    return float(found)


_CODEC: Final = Codec(checks={int: _count, float: _amount, Trace: _trace, Account: _account}, complete=True)
