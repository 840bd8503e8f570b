"""What the core did in every transcript of tests/scenarios: its records and its transitions."""

import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

HOUSE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOUSE / "supervisor"), str(HOUSE / "hooks"), str(HOUSE / "tests")]

from core import transcript  # noqa: E402
from ftrun.core.machine import effects as do  # noqa: E402
from ftrun.core.machine.job import decide  # noqa: E402


class Edge(NamedTuple):
    """By their names: in this phase, upon this event, on to that phase."""

    phase: str
    event: str
    to: str


class Played(NamedTuple):
    """`records`: of each, its fields, and of each field the names of the types it had."""

    records: dict[str, dict[str, set[str]]]
    edges: frozenset[Edge]


@cache
def played() -> Played:
    """All transcripts, as the code answers now."""
    records: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    edges: set[Edge] = set()

    def watched(job: Any, event: Any, policy: Any) -> Any:
        after, effects = decide(job, event, policy)
        edges.add(Edge(*(type(one).__name__ for one in (job.phase, event, after.phase))))
        for effect in effects:
            if isinstance(effect, do.Persist):
                fields = records[effect.event]
                for name, value in effect.fields:
                    fields[name].add(type(value).__name__)
        return after, effects

    kept = transcript.decide
    transcript.decide = watched  # type: ignore[attr-defined]
    try:
        for path in sorted((HOUSE / "tests" / "scenarios").glob("*.txt")):
            transcript.play(path.read_text(encoding="utf-8"))
    finally:
        transcript.decide = kept  # type: ignore[attr-defined]
    return Played({name: dict(fields) for name, fields in records.items()}, frozenset(edges))
