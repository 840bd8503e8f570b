"""MindCluster's reset.json, as the helper says it on: whole, of this container, and only what changed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.platform.reset import local_ranks, parse
from ftrun.messages.codec import EXACT
from ftrun.messages.platform import Platform
from support.helper_process import HelperProcess, Line
from support.runs import wait_for

PERIOD = "0.05"
NOTHING = EXACT.plain(Platform())
QUICK = "import ftrun.helpers.platform.__main__ as p; p.PATIENCE = 0.4"
SLOW = "import ftrun.helpers.platform.__main__ as p; p.PATIENCE = 600"
BARE = {key: value for key, value in os.environ.items() if "RANK" not in key and not key.startswith("VC_")}
Content = dict[str, Any]


def rank(number: int, status: str = "fault", codes: str = "", **other: Any) -> Content:
    return {"RankId": number, "LogicId": number, "Status": status, "ErrorCode": [], "ErrorCodeHex": codes} | other


def content(*ranks: object, **other: Any) -> Content:
    return {"RankList": ranks, "UpdateTime": 7, "RetryTime": 0, "FaultFlushing": False, "GracefulExit": 0} | other


def put(path: Path, *ranks: object, **other: Any) -> Path:
    beside = path.with_name(".beside")
    beside.write_text(json.dumps(content(*ranks, **other)))
    return beside.rename(path)


def fault(number: int, code: str, severity: str, status: str = "fault") -> Content:
    return {"rank": number, "logic": number, "code": code, "severity": severity, "status": status}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reset.json"


def watch(path: Path, *table: str, before: str = QUICK, **environment: str) -> HelperProcess:
    words = (str(path), PERIOD, *table)
    return HelperProcess("platform", *words, before=before, environment=BARE | environment)


@pytest.fixture
def watcher(path: Path) -> Iterator[HelperProcess]:
    with watch(path) as watcher:
        watcher.event("ready")
        yield watcher


def said(watcher: HelperProcess) -> Line:
    line = watcher.event("platform")
    assert set(line) == {"event", *NOTHING}
    return line


def test_without_a_file_all_is_clear(watcher: HelperProcess, path: Path) -> None:
    """Which is said: an earlier life of the helper may have said otherwise."""
    assert said(watcher) == {"event": "platform", **NOTHING}
    assert watcher.read(1)
    assert watcher.end() == 0
    assert len(watcher.lines) == 2


def test_before_the_first_fault_all_is_clear(path: Path) -> None:
    path.write_text('{ "status": "initializing" }')
    with watch(path) as watcher:
        watcher.event("ready")
        assert watcher.read(0.3)
        assert watcher.lines == [{"event": "platform", **NOTHING, "retry_time": 0}, {"event": "ready"}]


def test_what_is_there_at_the_start_is_said_before_it_is_ready(path: Path) -> None:
    put(path, rank(0, codes="80C98002"), UpdateTime=1700000000, RetryTime=2, GracefulExit=1, RestartFaultProcess=True)
    with watch(path) as watcher:
        watcher.event("ready")
        expected: Content = {"flushing": False, "graceful": True, "restart_process": True, "clear": False}
        expected |= {"update_time": 1700000000, "retry_time": 2, "faults": [fault(0, "80C98002", "minor+user")]}
        assert watcher.lines[0] == {"event": "platform"} | expected


def test_only_changes_are_said(watcher: HelperProcess, path: Path) -> None:
    put(path, FaultFlushing=True)
    assert (said(watcher)["flushing"], watcher.lines[-1]["clear"]) == (True, False)
    put(path, FaultFlushing=True)
    put(path, rank(3))
    assert said(watcher)["faults"] == [fault(3, "reset.json", "unknown")]
    put(path, rank(3, "recovered"))
    line = said(watcher)
    assert line["clear"]
    assert line["faults"] == []
    assert watcher.end() == 0
    assert len(watcher.lines) == 4


def test_a_hot_reset_from_its_begin_to_its_end(watcher: HelperProcess, path: Path) -> None:
    """Rank 1 is reset with its neighbour, and has no fault of its own."""
    neighbour = rank(1, "unrecovered", Policy="reset", InitialPolicy="empty")
    put(path, rank(0, "unrecovered", "80C78008,80C98002,BAD"), neighbour)
    line = said(watcher)
    codes = [("80C78008", "major"), ("80C98002", "minor+user"), ("BAD", "unknown")]
    assert line["faults"] == [fault(0, code, severity, "unrecovered") for code, severity in codes]
    assert not line["clear"]
    put(path, neighbour)  # as in a container that has only that one
    told = {
        "clear": False,
        "update_time": 7,
        "retry_time": 0,
        "faults": [fault(1, "reset.json", "unknown", "unrecovered")],
    }
    assert said(watcher) == {**NOTHING, "event": "platform", **told}
    put(path, rank(0, "recovered"), rank(1, "recovered"))
    assert said(watcher)["clear"]
    put(path, rank(0, "failed", "80C78008"))
    line = said(watcher)
    assert (line["clear"], line["faults"]) == (False, [fault(0, "80C78008", "major", "failed")])


def test_a_file_that_vanishes_is_clear(watcher: HelperProcess, path: Path) -> None:
    put(path, rank(0), FaultFlushing=True)
    assert not said(watcher)["clear"]
    path.unlink()
    assert said(watcher) == {**NOTHING, "event": "platform"}
    assert watcher.problems == []


def test_a_file_that_is_torn_for_an_instant_changes_nothing(path: Path) -> None:
    put(path, rank(0))
    with watch(path, before=SLOW) as watcher:
        watcher.event("ready")
        whole = path.read_bytes()
        torn: list[Any] = [
            b"",
            whole[:40],
            b'{"RankList": 3}',
            b"[]",
            b"null",
            b"[" * 100_000,
            b"\xff",
            b"\0" * (2 << 20),
        ]
        torn += [json.dumps(content() | {name: "x"}).encode() for name in content()]
        for half in torn:
            path.write_bytes(half)
            assert watcher.read(0.12)
        path.unlink()
        assert watcher.read(0.12)
        os.mkfifo(path)
        assert watcher.read(0.12)
        path.unlink()
        put(path, rank(0), rank(1))
        assert len(said(watcher)["faults"]) == 2
        assert len(watcher.lines) == 3


def test_one_that_stays_torn_is_a_problem_and_what_was_known_holds(path: Path) -> None:
    put(path, rank(0))
    with watch(path) as watcher:
        watcher.event("ready")
        path.write_bytes(b'{"RankList": [')
        assert "remains in force" in watcher.event("problem")["what"]
        assert watcher.read(0.6)
        assert [line["event"] for line in watcher.lines] == ["platform", "ready", "problem"]
        put(path)
        assert said(watcher)["clear"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_a_problem(path: Path, make: Any) -> None:
    make(path)
    with watch(path) as watcher:
        watcher.event("ready")
        assert "regular file" in watcher.event("problem")["what"]
        assert watcher.end() == 0


def test_a_mounted_config_map_is_followed_as_it_is_swapped(tmp_path: Path) -> None:
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
            assert [one["rank"] for one in watcher.event("platform", lambda line: line["faults"])["faults"]] == [number]
        assert watcher.problems == []


@pytest.mark.parametrize(
    "bad",
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
def test_an_entry_of_wrong_types_is_dropped_and_said(watcher: HelperProcess, path: Path, bad: object) -> None:
    put(path, bad, rank(1), bad)
    assert [one["rank"] for one in said(watcher)["faults"]] == [1]
    assert len(watcher.problems) == 1
    assert "RankList[0]" in watcher.problems[0]
    assert "1 more" in watcher.problems[0]


def test_codes_come_as_numbers_or_as_text_and_each_is_told_once(watcher: HelperProcess, path: Path) -> None:
    put(path, rank(0, codes="0x80c78008, 80C98002;[80CB8002]", ErrorCode=[0x80C78008, 0x80E01801]))
    codes = [one["code"] for one in said(watcher)["faults"]]
    assert codes == ["80C78008", "80E01801", "80C98002", "80CB8002"]


def test_fields_may_be_missing_or_null(watcher: HelperProcess, path: Path) -> None:
    """Go writes an empty list as null."""
    path.write_text(json.dumps({"RankList": [{"RankId": 1, "Status": "fault", "ErrorCode": None}], "RetryTime": None}))
    assert said(watcher)["faults"] == [fault(1, "reset.json", "unknown") | {"logic": 0}]
    path.write_text('{"RankList": null, "UpdateTime": 5}')
    assert said(watcher)["clear"]


def test_only_ranks_of_this_container_are_told(path: Path) -> None:
    put(path, rank(3), rank(12, "unrecovered", "80C78008"))
    with watch(path, NODE_RANK="1", LOCAL_WORLD_SIZE="8") as watcher:
        line = said(watcher)
        assert line["faults"] == [fault(12, "80C78008", "major", "unrecovered")]
        put(path, rank(3))
        line = said(watcher)
        assert (line["clear"], line["faults"]) == (True, [])
        put(path, rank(3), FaultFlushing=True)
        assert not said(watcher)["clear"]


def test_a_table_of_the_site_wins(path: Path, tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.write_text("80C78008 critical ours\nreset.json minor a rank that MindCluster names without a code\n")
    put(path, rank(0, codes="80C78008,80C98002"), rank(1))
    with watch(path, str(table)) as watcher:
        assert [one["severity"] for one in said(watcher)["faults"]] == ["critical", "minor+user", "minor"]


@pytest.mark.parametrize("table", [None, b"80C78008 deadly", b"\xff\xfe"])
def test_a_table_that_is_wrong_is_a_problem_and_ours_holds(path: Path, tmp_path: Path, table: bytes | None) -> None:
    if table is not None:
        (tmp_path / "table").write_bytes(table)
    put(path, rank(0, codes="80C78008"))
    with watch(path, str(tmp_path / "table")) as watcher:
        assert [one["severity"] for one in said(watcher)["faults"]] == ["major"]
        assert str(tmp_path / "table") in watcher.problems[0]


def test_a_file_full_of_faults_fits_in_a_line(watcher: HelperProcess, path: Path) -> None:
    put(path, *[rank(n, codes=",".join(f"{n:04X}{m:04X}" for m in range(20))) for n in range(1000)])
    assert len(watcher.event("platform", lambda line: line["faults"])["faults"]) == 256  # it may have begun as clear
    assert len(json.dumps(watcher.lines[-1])) < 65536


def test_it_ends_when_nobody_reads(watcher: HelperProcess, path: Path) -> None:
    assert watcher.process.stdout is not None
    watcher.process.stdout.close()
    watcher.process.stdout = None
    put(path, rank(0))
    wait_for(lambda: watcher.process.poll() is not None, "it ends")
    assert watcher.process.returncode == 0


def test_an_empty_object_is_nothing() -> None:
    assert parse(b"{}", None, lambda code: "unknown") == (Platform(retry_time=0), [])


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
def test_ranks_of_this_container(environment: dict[str, str], ranks: set[int] | None) -> None:
    assert local_ranks(environment) == ranks


@pytest.mark.parametrize("codes", ["80E01801,80C98002", "[0x80e01801, 0x80c98002]", ["80E01801", "0x80C98002"]])
def test_codes_are_read_in_whatever_form_they_are_written(watcher: HelperProcess, path: Path, codes: Any) -> None:
    put(path, rank(0, codes=codes))
    assert [one["code"] for one in said(watcher)["faults"]] == ["80E01801", "80C98002"]
