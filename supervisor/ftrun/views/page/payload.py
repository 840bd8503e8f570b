"""What the server sends to the page: the snapshot as JSON values, and what the page shows beside it."""

from math import isfinite
from typing import Any, Final

from ftrun.core.rules import exit_codes
from ftrun.views.snapshot import RankNow, Snapshot

SCHEMA: Final = 1
SHOWN: Final = 64  # ranks, unless all are requested
STATES: Final = ("gone", "starting", "section", "moving", "done")


def payload(shown: Snapshot, paces: list[tuple[float, float]]) -> dict[str, Any]:
    """With all ranks, the stalest first; `outer`: what the outer scheduler should do after the verdict."""
    verdict = next((v for v in exit_codes.TABLE if v.name == shown.verdict), None)
    plain: dict[str, Any] = _plain(shown._replace(ranks=tuple(sorted(shown.ranks, key=_order))))
    return {
        "schema": SCHEMA,
        **plain,
        "meaning": verdict.meaning if verdict else None,
        "outer": verdict.outer if verdict else None,
        "states": _states(shown.ranks),
        "paces": paces,
    }


def brief(document: dict[str, Any]) -> dict[str, Any]:
    """With only the first ranks; `states` counts all of them."""
    return document | {"ranks": document["ranks"][:SHOWN]}


def _order(rank: RankNow) -> tuple[float, int, int]:
    """The rank nearest to its limit first; then those without a limit, by state."""
    used = 0.0 if rank.age is None or not rank.limit else rank.age / rank.limit
    state = STATES.index(rank.state) if rank.state in STATES else 0
    return -used, state, rank.rank


def _states(ranks: tuple[RankNow, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for rank in ranks:
        found[rank.state] = found.get(rank.state, 0) + 1
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(one) for name, one in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, float):
        return round(value, 3) if isfinite(value) else None
    return value
