"""Whatever a record contains, no reader fails: a field that has another kind of value than ftrun writes is missing."""

import json
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ftctl.main import cli
from ftrun.records.files import record_files
from ftrun.records.files.record_fields import TYPES
from support.made_run import MadeRun
from support.runs import HOUSE

MEANING = runpy.run_path(str(HOUSE / "docs" / "made" / "record_meanings.py"))["MEANING"]
VERBS = (
    *("status", "status --json", "status --exit-code", "top --once", "top --once --json", "list --json"),
    *("events", "events --json", "events -n 9 --since 10m", "history", "history --json"),
    *("timeline --json", "timeline -o -", "report", "report --json", "report 1", "report 2", "logs"),
)
WRONG = (0, -1, 10**30, 1e308, float("nan"), True, "", "\x1b[31m\n", "9999-99-99T00:00:00Z", ["x"], [None], {"a": 1})
TURNS = 2
EXPECTED = ("NoneType", "SystemExit", "NoRunDir", "UserError")  # the last two are one line: `ftctl/main.py`
GOOD: dict[str, Any] = {
    **{name: ["x"] for name, types in TYPES.items() if list in types},
    **{name: "a text" for name, types in TYPES.items() if str in types},
    **{name: 1 for name, types in TYPES.items() if int in types},
    **{name: True for name, types in TYPES.items() if bool in types},
    "output": {"/gone": 7},
    "rule": "deadlock",
    "severity": "major",
    "cause": "hang",
    "what": "stop",
    "by": "checkpoint",
}


def records() -> list[dict[str, Any]]:
    """Records of every name with all their fields: a run that hung, failed, was started again, and has ended."""
    found, at = [], 100.0
    names = [name for name in MEANING if name not in ("started", "ended")]
    both = [(name, attempt) for attempt in (1, 2) for name in names]
    for event, attempt in [("started", 1), *both, ("ended", 2)]:
        at += 1
        head = {"schema": 1, "time": f"2026-01-01T00:{int(at) // 60:02}:{int(at) % 60:02}.000Z", "mono": at}
        fields = {name: GOOD.get(name, "x") for name in MEANING[event][1]}
        if "code" in fields and event not in ("exited", "rank_exited"):
            fields["code"] = "8C03A000"
        found.append(head | {"event": event, "attempt": attempt} | fields)
    return found


def readers(run_dir: str, verbs: Sequence[str] = VERBS) -> Iterator[tuple[str, Any]]:
    for verb in verbs:
        name, *words = verb.split()
        given = [name, run_dir, *words] if name == "list" else [name, *words, "--run-dir", run_dir]
        yield verb, CliRunner().invoke(cli, given)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeRun]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = MadeRun(tmp_path / "run")
    found.rank(0, moved=2, step=9)
    yield found
    found.close()


HEAD = ("event", "attempt", "time", "mono")
NAMES = sorted({name for _, own in MEANING.values() for name in own})
TOGETHER = 3  # fields that are damaged at once, other ones in each turn


def damaged_together(turn: int) -> list[tuple[str, ...]]:
    """Each field of the head by itself, since without it a record may not be read; and groups of all others."""
    groups = -(-len(NAMES) // TOGETHER)
    others = [NAMES[n::groups] if turn % 2 else NAMES[n * TOGETHER : (n + 1) * TOGETHER] for n in range(groups)]
    return [*((name,) for name in HEAD), *map(tuple, others)]


@pytest.mark.parametrize("turn", range(TURNS))
def test_no_value_of_any_field_makes_a_reader_fail(made: MadeRun, turn: int) -> None:
    good = records()
    made.write()
    for number, names in enumerate(damaged_together(turn)):
        wrong = WRONG[(number + turn * len(WRONG) // TURNS) % len(WRONG)]
        damaged = [one | {name: wrong for name in names if name in one} for one in good]
        (made.folder / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in damaged[: -1 - turn % 2]))
        for verb, result in readers(str(made.folder)):
            assert type(result.exception).__name__ in EXPECTED, (verb, names, wrong, result.exc_info)


@pytest.mark.parametrize("event", ["hang", "exited", "fault", "escalated"])
def test_no_value_of_the_last_incident_makes_a_reader_fail(made: MadeRun, event: str) -> None:
    good = [one for one in records() if one["event"] in ("started", event)][:2]
    made.write()
    for name in MEANING[event][1]:
        for wrong in (["x"], {"a": 1}, float("nan")):
            lines = [json.dumps(one | {name: wrong} if one["event"] == event else one) + "\n" for one in good]
            (made.folder / "events.jsonl").write_text("".join(lines))
            for verb, result in readers(str(made.folder), ("status", "top --once", "report 1")):
                assert type(result.exception).__name__ in EXPECTED, (verb, name, wrong, result.exc_info)


def test_a_damaged_field_is_missing_and_all_others_are_there() -> None:
    (found,) = record_files.all_parsed([b'{"event": "hang", "mechanism": ["x"], "rank": 3, "code": null, "own": []}'])
    assert found == {"event": "hang", "rank": 3, "code": None, "own": []}
    for one in records():
        assert record_files.record(json.dumps(one).encode()) == one, "what ftrun writes"
    assert record_files.record(b'{"event": "exited", "code": [1], "oom_kills": NaN}') == {
        "event": "exited",
        "oom_kills": None,
    }
