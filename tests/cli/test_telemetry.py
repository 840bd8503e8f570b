"""`--otlp` and `--journal`: the records as spans and logs of OpenTelemetry, and as entries of journald."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed: pip install 'ftrun[otel]'")

from ftrun.config import derived, option_values
from ftrun.helpers.telemetry.journal import Journald
from support.otlp_receiver import receiving
from support.runs import FTHANG, Runs, python, wait_for

TRACE = "0af7651916cd43dd8448eb211c80319c"
SECTIONS = """
import time
ft.beat(1)
with ft.section("evaluation", timeout="1h"):
    while not os.path.exists("go"): time.sleep(0.05)
ft.beat(2)
"""


def inside(parent: dict[str, Any], child: dict[str, Any]) -> bool:
    within = parent["begin"] <= child["begin"] and child["end"] <= parent["end"]
    return bool(child["parent"] == parent["id"] and within)


def test_attempts_restarts_and_hangs_are_spans_and_records_are_logs(runs: Runs) -> None:
    with receiving() as collector:
        options = ("--otlp", collector.url, "--hang-timeout", "3s", "--grace", "off", "--node-name", "here")
        slow = ("--after", "7", "--steps", "200", "--step-time", "20ms")
        runs.ends(0, *options, *FTHANG, *slow, "sleep", TRACEPARENT=f"00-{TRACE}-b7ad6b7169203331-01")
        wait_for(lambda: collector.named("run"), "the last span")
        wait_for(lambda: any(log["attributes"]["ftrun.event"] == "ended" for log in collector.logs), "the last log")
    (whole,) = collector.named("run")
    (hang,), (restart,) = collector.named("hang"), collector.named("restart")
    (first,), (second,) = collector.named("attempt 1"), collector.named("attempt 2")
    assert all(inside(whole, span) for span in (first, second, restart))
    assert inside(first, hang)
    assert hang["end"] - hang["begin"] >= 3e9
    assert "sleeps" in hang["error"]
    assert first["end"] <= second["begin"]
    assert restart["begin"] >= hang["end"]
    assert second["begin"] < restart["end"] < second["end"], "up to the first heartbeat"
    assert (second["attributes"]["ftrun.reason"], second["error"], whole["error"]) == ("hang", None, None)
    assert {span["trace"] for span in collector.spans} == {TRACE}
    assert all(resource["host.name"] == "here" for resource in collector.resources)
    logged = [log["attributes"]["ftrun.event"] for log in sorted(collector.logs, key=lambda log: int(log["time"]))]
    assert logged[0] == "started"
    assert logged[-1] == "ended"
    assert "progress" not in logged
    (told,) = [log for log in collector.logs if log["attributes"]["ftrun.event"] == "hang"]
    assert (told["severity"], told["span"]) == ("ERROR", first["id"])


def test_a_section_is_a_span(runs: Runs) -> None:
    with receiving() as collector:
        run = runs.start("--otlp", collector.url, *python(SECTIONS.replace("import time", "import os, time")))
        run.until("first_beat")
        wait_for(lambda: collector.logs, "the first logs, when the helper has looked at the sections")
        (runs.folder / "go").touch()
        assert run.wait() == 0, run.log()
        wait_for(lambda: collector.named("run"), "the last span")
    (attempt,), (section,) = collector.named("attempt 1"), collector.named("section evaluation")
    assert inside(attempt, section)
    assert section["attributes"]["ftrun.rank"] == 0


def test_a_collector_that_is_gone_delays_the_end_by_seconds_at_most(runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    runs.ends(3, "--otlp", f"http://127.0.0.1:{port}", "sh", "-c", "sleep 2; exit 3")


# --- journald ---------------------------------------------------------------------------------------------------------


def test_records_are_entries_of_the_journal(tmp_path: Path) -> None:
    problems: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "socket"))
        sender = Journald("/run", problems.append, str(tmp_path / "socket"))
        hang = {"event": "hang", "attempt": 2, "why": "train.py:8\nload", "rank": 1}
        for found in ({"event": "progress", "attempt": 2}, hang, {"event": "ended", "attempt": 2, "exit_code": 0}):
            sender.follow(found)
        entries = [journal.recv(65536) for _ in range(2)]
    fields = dict(line.split(b"=", 1) for line in entries[0].splitlines())
    assert fields[b"MESSAGE"].startswith(b"attempt 2: hang")
    assert (fields[b"PRIORITY"], fields[b"SYSLOG_IDENTIFIER"], fields[b"FTRUN_EVENT"]) == (b"3", b"ftrun", b"hang")
    assert json.loads(fields[b"FTRUN_RECORD"]) == hang
    assert b"PRIORITY=5\n" in entries[1]
    sender.follow(hang)
    sender.follow(hang)
    assert len(problems) == 1, "it is gone"


@pytest.mark.parametrize(
    ("asked", "there", "stream", "used"),
    [("auto", True, "", True), ("auto", False, "", False), ("auto", True, "own", False), ("off", True, "", False)],
)
def test_the_journal_is_used_where_it_is_there_and_does_not_get_the_lines_anyway(
    asked: str, there: bool, stream: str, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        (tmp_path / "socket").touch()
    own = os.fstat(2)
    monkeypatch.setattr(derived, "JOURNAL", str(tmp_path / "socket"))
    monkeypatch.setenv("JOURNAL_STREAM", f"{own.st_dev}:{own.st_ino}" if stream else "")
    assert derived.uses_journal(option_values.settings({"journal": asked}, {})) is used
