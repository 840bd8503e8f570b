"""MindCluster's reset.json: what it means for this container, and when the helper reports it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.rules.fault_codes import UNKNOWN
from ftrun.helpers.reset_file.contents import local_ranks, parse
from ftrun.messages.codec import EXACT
from ftrun.messages.healing import RESET_EVENTS, Contents, RankFault
from ftrun.messages.helpers import LINE_LIMIT
from support.helper_process import HelperProcess, Line

PERIOD = "0.05"
NOTHING = EXACT.plain(Contents())
QUICK = "import ftrun.helpers.reset_file.program as p; p.PATIENCE = 0.4"
SLOW = "import ftrun.helpers.reset_file.program as p; p.PATIENCE = 600"
BARE = {key: value for key, value in os.environ.items() if "RANK" not in key and not key.startswith("VC_")}
Content = dict[str, Any]


def rank(number: int, status: str = "fault", codes: str = "", **other: Any) -> Content:
    return {"RankId": number, "LogicId": number, "Status": status, "ErrorCode": [], "ErrorCodeHex": codes} | other


def content(*ranks: object, **other: Any) -> Content:
    return {"RankList": ranks, "UpdateTime": 7, "RetryTime": 0, "FaultFlushing": False, "GracefulExit": 0} | other


def put(path: Path, *ranks: object, **other: Any) -> Path:
    new = path.with_name(".new")
    new.write_text(json.dumps(content(*ranks, **other)))
    return new.rename(path)


def fault(
    number: int, code: str, severity: str, status: str = "fault", retry: str = "", local: int | None = None
) -> Content:
    found = {"rank": number, "logic": number, "code": code, "severity": severity, "status": status, "retry": retry}
    return found | {"local": local}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reset.json"


def watch(path: Path, *table: str, before: str = QUICK, **environment: str) -> HelperProcess:
    return HelperProcess("reset_file", str(path), PERIOD, *table, before=before, environment=BARE | environment)


@pytest.fixture
def watcher(path: Path) -> Iterator[HelperProcess]:
    """It has reported a file without faults, so that the next report is that of a change."""
    put(path)
    with watch(path) as watcher:
        watcher.event("ready")
        yield watcher


def reported(watcher: HelperProcess) -> Line:
    line = watcher.event("contents")
    assert set(line) == {"event", *NOTHING}
    return line


def test_missing_file_is_clear_and_is_reported(path: Path) -> None:
    """An earlier process of the helper may have reported otherwise."""
    with watch(path) as watcher:
        assert reported(watcher) == {"event": "contents", **NOTHING}


def test_content_at_the_start_is_reported_before_ready(path: Path) -> None:
    put(path, rank(0, codes="80C98002"), RetryTime=2, GracefulExit=1)
    with watch(path) as watcher:
        watcher.event("ready")
        faults = [fault(0, "80C98002", "minor+user")]
        expected = {"flushing": False, "graceful": True, "clear": False, "retry_time": 2, "faults": faults}
        assert watcher.lines[0] == {**NOTHING, "event": "contents"} | expected


def test_only_changes_are_reported(watcher: HelperProcess, path: Path) -> None:
    put(path, FaultFlushing=True)
    assert reported(watcher) == {**NOTHING, "event": "contents", "flushing": True, "clear": False, "retry_time": 0}
    put(path, FaultFlushing=True)
    put(path, rank(3))
    assert reported(watcher)["faults"] == [fault(3, "reset.json", "unknown")]
    put(path, rank(3, "recovered"))
    line = reported(watcher)
    assert (line["clear"], line["faults"]) == (True, [])
    path.unlink()
    assert reported(watcher) == {**NOTHING, "event": "contents"}, "a file that vanishes is clear"
    assert watcher.end() == 0
    assert [line["event"] for line in watcher.lines].count("contents") == 5
    assert watcher.problems == []


def test_hot_reset(watcher: HelperProcess, path: Path) -> None:
    """Rank 1 is reset with its neighbour, and has no fault of its own."""
    neighbour = rank(1, "unrecovered", Policy="reset", InitialPolicy="empty")
    put(path, rank(0, "unrecovered", "80C78008,80C98002,BAD"), neighbour)
    line = reported(watcher)
    codes = [("80C78008", "major"), ("80C98002", "minor+user"), ("BAD", "unknown")]
    assert line["faults"] == [fault(0, code, severity, "unrecovered") for code, severity in codes]
    assert not line["clear"]
    put(path, neighbour)  # as in a container that has only that one
    expected = {"clear": False, "retry_time": 0, "faults": [fault(1, "reset.json", "unknown", "unrecovered")]}
    assert reported(watcher) == {**NOTHING, "event": "contents", **expected}
    put(path, rank(0, "recovered"), rank(1, "recovered"))
    assert reported(watcher)["clear"]
    put(path, rank(0, "failed", "80C78008"))
    line = reported(watcher)
    assert (line["clear"], line["faults"]) == (False, [fault(0, "80C78008", "major", "failed")])


def test_what_may_be_cured_by_less_than_the_end_of_all_is_reported(watcher: HelperProcess, path: Path) -> None:
    put(path, rank(0, "unrecovered", "80E01801"), rank(1, "unrecovered", "80C98002", Policy="restart_request"))
    memory = fault(0, "80E01801", "minor", "unrecovered", "memory")
    asked = fault(1, "80C98002", "minor+user", "unrecovered", "request")
    assert reported(watcher)["faults"] == [memory, asked]
    put(path, rank(1), RestartFaultProcess=True)
    assert reported(watcher)["one_process"]


def test_file_that_is_incomplete_for_an_instant_changes_nothing(path: Path) -> None:
    put(path, rank(0))
    with watch(path, before=SLOW) as watcher:
        watcher.event("ready")
        half = path.read_bytes()[:40]
        for incomplete in (b"", half, b'{"RankList": 3}', b"null", b"[" * 100_000, b"\xff", b"\0" * (2 << 20)):
            path.write_bytes(incomplete)
            assert watcher.read(0.12)
        path.unlink()
        assert watcher.read(0.12)
        os.mkfifo(path)
        assert watcher.read(0.12)
        path.unlink()
        put(path, rank(0), rank(1))
        assert len(reported(watcher)["faults"]) == 2
        assert len(watcher.lines) == 3


def test_file_that_stays_incomplete_is_a_problem_and_changes_nothing(path: Path) -> None:
    put(path, rank(0))
    with watch(path) as watcher:
        watcher.event("ready")
        path.write_bytes(b'{"RankList": [')
        assert "remains in force" in watcher.event("problem")["what"]
        assert watcher.read(0.6)
        assert [line["event"] for line in watcher.lines] == ["contents", "ready", "problem"]
        put(path)
        assert reported(watcher)["clear"]


def test_entry_that_is_no_regular_file_is_a_problem(path: Path) -> None:
    path.symlink_to("/dev/zero")
    with watch(path) as watcher:
        watcher.event("ready")
        assert "regular file" in watcher.event("problem")["what"]
        assert watcher.end() == 0


def test_mounted_config_map_that_is_replaced(tmp_path: Path) -> None:
    """The kubelet renames the link `..data`, through which the link `reset.json` leads."""
    folder = tmp_path / "config"
    folder.mkdir()

    def swap(name: str, *ranks: Content) -> None:
        (folder / name).mkdir()
        put(folder / name / "reset.json", *ranks)
        (folder / "..data_tmp").symlink_to(name)
        (folder / "..data_tmp").rename(folder / "..data")

    swap("..1")
    (folder / "reset.json").symlink_to("..data/reset.json")
    with watch(folder / "reset.json") as watcher:
        watcher.event("ready")
        for number in range(2, 8):
            swap(f"..{number}", rank(number))
            assert [one["rank"] for one in watcher.event("contents", lambda line: line["faults"])["faults"]] == [number]
        assert watcher.problems == []


# --- the content ------------------------------------------------------------------------------------------------------


def parsed(*ranks: object, **other: Any) -> tuple[Contents, list[str]]:
    return parse(json.dumps(content(*ranks, **other)).encode(), None, lambda code: UNKNOWN)


@pytest.mark.parametrize(
    "invalid",
    [
        3,
        {},
        {"RankId": 0},
        {"Status": "fault"},
        rank(0, RankId="0"),
        rank(0, RankId=True),
        rank(0, Status=1),
        rank(0, ErrorCode=["1"]),
        rank(0, ErrorCode=[-1]),
        rank(0, ErrorCode=3),
        rank(0, ErrorCodeHex=3),
        rank(0, LogicId="0"),
    ],
)
def test_invalid_entry_is_dropped(invalid: object) -> None:
    found, dropped = parsed(invalid, rank(1))
    assert [one.rank for one in found.faults] == [1]
    (reason,) = dropped
    assert reason.startswith("RankList[0]: ")


def test_dropped_entries_are_one_problem(watcher: HelperProcess, path: Path) -> None:
    put(path, 3, rank(1), {})
    assert [one["rank"] for one in reported(watcher)["faults"]] == [1]
    (problem,) = watcher.problems
    assert "RankList[0]" in problem
    assert "1 more" in problem


@pytest.mark.parametrize("name", ["RankList", "RetryTime", "FaultFlushing", "GracefulExit"])
def test_field_of_another_type_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        parsed(**{name: "x"})


@pytest.mark.parametrize(
    ("text", "numbers", "expected"),
    [
        ("0x80c78008, 80C98002;[80CB8002]", [0x80C78008, 0x80E01801], "80C78008 80E01801 80C98002 80CB8002"),
        ("[0x80e01801, 0x80c98002]", [], "80E01801 80C98002"),
        (["80E01801", "0x80C98002"], None, "80E01801 80C98002"),
    ],
)
def test_codes_in_any_form(text: str | list[str], numbers: list[int] | None, expected: str) -> None:
    found, dropped = parsed(rank(0, ErrorCodeHex=text, ErrorCode=numbers))
    assert ([one.code for one in found.faults], dropped) == (expected.split(), [])


def test_fields_may_be_missing_or_null() -> None:
    """Go writes an empty list as null."""
    entry = {"RankId": 1, "Status": "fault", "ErrorCode": None}
    found, _ = parsed(entry, RetryTime=None)
    assert found.faults == (RankFault(1, 0, "reset.json", "unknown", "fault"),)
    for text in (b"{}", b'{"RankList": null}', b'{"status": "initializing"}'):  # the last before the first fault
        assert parse(text, None, lambda code: UNKNOWN) == (Contents(retry_time=0), [])


def test_message_with_many_faults_fits_in_a_line() -> None:
    found, _ = parsed(*[rank(n, codes=",".join(f"{n:04X}{m:04X}" for m in range(20))) for n in range(1000)])
    assert len(found.faults) == 256
    assert len(RESET_EVENTS.dump(found)) < LINE_LIMIT


def test_only_ranks_of_this_container_count(path: Path) -> None:
    put(path, rank(3), rank(12, "unrecovered", "80C78008"))
    with watch(path, NODE_RANK="1", LOCAL_WORLD_SIZE="8") as watcher:
        line = reported(watcher)
        assert line["faults"] == [fault(12, "80C78008", "major", "unrecovered", local=4)]
        put(path, rank(3))
        line = reported(watcher)
        assert (line["clear"], line["faults"]) == (True, [])
        put(path, rank(3), FaultFlushing=True)
        assert not reported(watcher)["clear"]


def test_table_of_the_site_replaces_entries(path: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.write_text("80C78008 critical ours\nreset.json minor a rank that MindCluster lists without a code\n")
    put(path, rank(0, codes="80C78008,80C98002"), rank(1))
    with watch(path, str(table)) as watcher:
        assert [one["severity"] for one in reported(watcher)["faults"]] == ["critical", "minor+user", "minor"]
    table.write_text("80C78008 deadly")
    with watch(path, str(table)) as watcher:
        assert reported(watcher)["faults"][0]["severity"] == "major"
        assert str(table) in watcher.problems[0]


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, None),
        ({"RANK": "3"}, {3}),
        ({"RANK": "3", "LOCAL_WORLD_SIZE": "1"}, {3}),
        ({"RANK": "11", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, {11}),
        ({"RANK": "1", "LOCAL_RANK": "0,1,2,3", "LOCAL_WORLD_SIZE": "4"}, {4, 5, 6, 7}),  # Ascend's operator
        ({"RANK": "1", "LOCAL_RANK": "{0,1}", "LOCAL_WORLD_SIZE": "2"}, {2, 3}),
        ({"RANK": "1", "LOCAL_WORLD_SIZE": "8"}, None),
        ({"NODE_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, {4, 5}),
        ({"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, {0, 1}),
        ({"VC_TASK_INDEX": "1", "MA_NUM_GPUS": "4"}, {4, 5, 6, 7}),  # ModelArts
        ({"VC_TASK_INDEX": "1", "MA_NUM_GPUS": "4", "RANK": "9"}, {4, 5, 6, 7}),
        ({"MS_NODE_RANK": "1", "MS_LOCAL_WORKER": "2"}, {2, 3}),  # MindSpore
        ({"NODE_RANK": "2"}, None),
        ({"NODE_RANK": "2", "RANK": "9"}, None),
        ({"LOCAL_WORLD_SIZE": "8"}, None),
        ({"NODE_RANK": "x", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, {2, 3}),
        ({"NODE_RANK": "1", "LOCAL_WORLD_SIZE": "0"}, None),
        ({"NODE_RANK": "1", "LOCAL_WORLD_SIZE": "-8"}, None),
        ({"NODE_RANK": "1", "LOCAL_WORLD_SIZE": "99999999"}, None),
        ({"RANK": "9" * 30}, None),
        ({"RANK": ""}, None),
    ],
)
def test_local_ranks(environment: dict[str, str], ranks: set[int] | None) -> None:
    assert local_ranks(environment) == ranks


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, {6, 7, 8}),
        ({"LOCAL_WORLD_SIZE": "8"}, {6, 7, 8}),  # ftrun starts the ranks, whatever else is in the environment
        ({"RANK": "1"}, {6, 7, 8}),
        ({"VC_TASK_INDEX": "1"}, {3, 4, 5}),  # the platform's own number
    ],
)
def test_a_member_of_a_group_has_the_ranks_of_its_number(environment: dict[str, str], ranks: set[int] | None) -> None:
    """Each of its containers sees the same file, and would take the faults of all others for its own."""
    assert local_ranks(environment, started=3, member=2) == ranks
