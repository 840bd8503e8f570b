"""Whatever the files contain, there is a snapshot that can be shown, and no error."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrun.core.rules.liveness import Limits
from ftrun.records import state
from ftrun.records.run_snapshot import read_snapshot
from ftrun.records.summary import document, lines, title
from support.made_run import MadeRun

TEXTS = st.sampled_from(["", "x", "running", "stopping", "hang", "2026-01-02T03:04:05.000Z", "\udcff\n\x1b"])
NUMBERS = st.sampled_from([0, -1, 1, 5, 1 << 70, 1.5, 1e300, float("inf"), float("nan")])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
EVENTS = (
    "started",
    "spawned",
    "hang",
    "fault",
    "exited",
    "escalated",
    "stopping",
    "restart",
    "progress",
    "ended",
    "odd",
)
FIELDS = (
    "attempt",
    "mono",
    "time",
    "command",
    "reason",
    "by",
    "verdict",
    "exit_code",
    "why",
    "code",
    "signal",
    "severity",
)
FINDING = ("rule", "rank", "age", "limit", "step", "section", "pid", "learned", "cause", "device")
RECORDS = st.lists(
    st.builds(
        lambda event, more: {"event": event} | more,
        st.sampled_from(EVENTS),
        st.dictionaries(st.sampled_from(FIELDS + FINDING), VALUES, max_size=8),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeRun]:
    made = MadeRun(tmp_path_factory.mktemp("fuzz") / "run")
    made.rank(0)
    made.rank(1, moved=None)
    made.section(1, "a", 3, 60)
    made.limits = made.limits._replace(auto=True)
    made.write()
    yield made
    made.close()


def paths(content: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in it."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in inner:
        yield (*so_far, name)
        yield from paths(value, (*so_far, name))


def test_every_limit_is_checked() -> None:
    assert state.LIMITS.keys() == set(Limits._fields)


def shown(path: Path) -> None:
    found = read_snapshot(str(path))
    json.dumps(document(found))
    for line in (*title(found), *lines(found)):
        assert line.isprintable()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_state(run: MadeRun, data: st.DataObject) -> None:
    file = run.folder / "state.json"
    run.write()
    content = json.loads(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(paths(content))))
        inner = content
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = data.draw(VALUES)
    file.write_text(json.dumps(content))
    shown(run.folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS, st.booleans())
def test_any_records(run: MadeRun, records: list[dict[str, Any]], state: bool) -> None:
    run.write()
    (run.folder / "events.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    if not state:
        (run.folder / "state.json").unlink()
    shown(run.folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES, VALUES)
def test_any_samples_and_devices(run: MadeRun, one: Any, other: Any) -> None:
    run.write()
    (run.folder / "steps.jsonl").write_text(
        f"{json.dumps(one)}\n" + json.dumps({"mono": one, "attempt": 1, "low": other, "high": one}) + "\n"
    )
    device = {"id": one, "name": other, "util": one, "memory_used": other, "power": one}
    (run.folder / "devices.json").write_text(json.dumps({"mono": other, "devices": [device]}))
    shown(run.folder)
    (run.folder / "devices.json").write_text(json.dumps({"mono": 1.0, "devices": one}))
    shown(run.folder)
    (run.folder / "steps.jsonl").unlink()
    (run.folder / "devices.json").unlink()
