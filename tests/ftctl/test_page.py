"""The answers of the page: read-only, for permitted hosts only, and without anything that a browser could execute."""

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'ftrun[page]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'ftrun[page]'")

from starlette.testclient import TestClient

from ftctl.page import app, feed, reports
from ftctl.page.app import FILES, Page
from ftctl.page.middleware import Middleware
from ftrun.host import procfs
from ftrun.messages import group_view
from ftrun.messages.group_view import GroupView, MemberRow, SlowRank
from ftrun.messages.run_state import RunFacts, RunState
from ftrun.records.files import steps
from ftrun.records.files.rundir import NoRunDir, find
from ftrun.records.files.state import SavedState
from ftrun.records.past import schedules
from ftrun.records.past.history import History
from ftrun.records.past.schedules import AttemptLine, RunLife
from ftrun.records.present.snapshot import Snapshot
from support.pages import empty
from support.snapshots import snapshot

ROUTES = ("/", *(f"/{name}" for name in FILES if name != "index.html"), "/snapshot.json", "/timeline.svg", "/healthz")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return empty(tmp_path / "run")


@pytest.fixture
def client(run_dir: Path) -> Iterator[TestClient]:
    with TestClient(Page(lambda: find(str(run_dir))).application(), base_url="http://localhost") as client:
        yield client


def show(monkeypatch: pytest.MonkeyPatch, shown: Snapshot) -> None:
    monkeypatch.setattr(feed, "read_snapshot", lambda run_dir: shown)


@pytest.mark.parametrize("path", [*ROUTES, "/report/1", "/nothing"])
def test_every_response_restricts_the_browser(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == (404 if path in ("/report/1", "/nothing") else 200)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self'" in policy or "script" not in policy
    assert "unsafe" not in policy or path == "/timeline.svg"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert client.head(path).status_code == answer.status_code


@pytest.mark.parametrize("path", [*ROUTES, "/events", "/report/1", "/nothing"])
def test_only_reading_methods_are_permitted(client: TestClient, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = client.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"


def test_only_permitted_host_names_are_answered(client: TestClient, run_dir: Path) -> None:
    for host in ("localhost", "LocalHost:9", "localhost.", "127.0.0.1:8642", "127.1.2.3", "[::1]:80"):
        assert client.get("/healthz", headers={"host": host}).text == "ok\n", host
    foreign = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0", "[::2]")
    for host in (*foreign, "", "["):
        for path in ("/", "/snapshot.json", "/events", "/nothing"):
            assert client.get(path, headers={"host": host}).status_code == 421, (host, path)
    named = Page(lambda: str(run_dir)).application(frozenset({"node-1", "10.0.0.1"}))
    any_address = Page(lambda: str(run_dir)).application(any_address=True)
    for application, right, wrong in ((named, "Node-1:80", "10.0.0.2"), (any_address, "10.0.0.2", "node-1")):
        other = TestClient(application, base_url="http://localhost")
        assert other.get("/healthz", headers={"host": right}).status_code == 200
        assert other.get("/healthz", headers={"host": wrong}).status_code == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_only_link_to_the_page(client: TestClient, site: str) -> None:
    other = {"sec-fetch-site": site, "sec-fetch-mode": "cors"}
    assert client.get("/snapshot.json", headers=other).status_code == 403
    assert client.get("/", headers=other | {"sec-fetch-mode": "navigate"}).status_code == 200


def test_the_snapshot_has_all_ranks_and_a_stream_the_first(
    client: TestClient, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, snapshot(1024, command=("\udcff", "\0", "</script>")))
    found: dict[str, Any] = client.get("/snapshot.json").json()
    assert set(Snapshot._fields) <= set(found)
    assert found["ranks"][0]["rank"] == 3
    assert sorted(rank["rank"] for rank in found["ranks"]) == list(range(1024))
    assert found["states"] == {"moving": 1013, "section": 11}
    assert found["trouble"]["cause"] == "hang"
    assert found["command"] == ["\\udcff", "\0", "</script>"]
    view = Page(lambda: str(run_dir)).feed._read()
    assert not isinstance(view, str)
    brief = json.loads(view.text)
    assert (len(brief["ranks"]), brief["ranks"][0]["rank"]) == (feed.SHOWN, 3)
    assert len(view.text) < 40_000


def test_paces_are_those_of_this_attempt(run_dir: Path) -> None:
    seen = [(1, 0.0, 5), (2, 10.0, 3), (2, 11.0, 5), (2, 12.0, 5), (2, 14.0, 6), (2, 14.0, 7), (2, float("inf"), 9)]
    lines = [json.dumps({"mono": mono, "attempt": attempt, "low": 0, "high": high}) for attempt, mono, high in seen]
    (run_dir / "steps.jsonl").write_text("\n".join([*lines, "torn"]))
    assert steps.paces(str(run_dir), 2) == [(11.0, 0.5), (14.0, 2.0)]
    assert steps.paces(str(run_dir), 3) == []


def test_a_report_is_escaped_text(client: TestClient, run_dir: Path) -> None:
    folder = run_dir / "reports" / "attempt-2"
    folder.mkdir(parents=True)
    (folder / "report.md").write_bytes(b"**Rank 0** <script>alert(1)</script> \x1b[31m {number} \xff")
    answer = client.get("/report/2")
    assert answer.headers["content-type"].startswith("text/html")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
    assert "{number}" in answer.text
    assert "\x1b" not in answer.text
    assert "<script>" not in answer.text


def test_the_picture_of_a_report_is_shown(client: TestClient, run_dir: Path, tmp_path: Path) -> None:
    folder = run_dir / "reports" / "attempt-2"
    folder.mkdir(parents=True)
    (folder / "report.md").write_text("# Rank 0 sleeps\n\n![What waits for what](waits-3.svg)\n")
    (folder / "waits-3.svg").write_text("<svg/>")
    (folder / "waits-4.svg").symlink_to(tmp_path / "secret")
    assert '<img src="2/waits-3.svg"' in client.get("/report/2").text
    picture = client.get("/report/2/waits-3.svg")
    assert (picture.text, picture.headers["content-type"]) == ("<svg/>", "image/svg+xml")
    assert "default-src 'none'" in picture.headers["content-security-policy"]
    for other in ("2/waits-4.svg", "2/waits-9.svg", "2/waits-x.svg", "x/waits-3.svg", "2/waits-3.svg/x", "2/report.md"):
        assert client.get(f"/report/{other}").status_code == 404, other


def test_only_regular_files_of_reports_are_shown(client: TestClient, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for number in (1, 2, 3, 5):
        (run_dir / "reports" / f"attempt-{number}").mkdir(parents=True)
    (run_dir / "reports/attempt-1/report.md").symlink_to(tmp_path / "secret")
    os.mkfifo(run_dir / "reports/attempt-2/report.md")
    (run_dir / "reports/attempt-5/report.md").touch()
    assert client.get("/report/5").status_code == 200
    for other in ("1", "2", "3", "4", "9" * 300, "9" * 5000, "-1", "1/../../secret", "x", "05", "5%0a", "٥", "0"):
        assert client.get(f"/report/{other}").status_code == 404, other


def test_the_picture_is_inline_or_a_document(client: TestClient) -> None:
    alone, inline = client.get("/timeline.svg"), client.get("/timeline.svg?inline&width=700")
    assert alone.headers["content-type"] == inline.headers["content-type"] == "image/svg+xml"
    assert "<style>" in alone.text
    assert "<style" not in inline.text
    assert " style=" not in inline.text
    assert 'width="700"' in inline.text
    for width in ("0", "99999", "-1", "x", "9" * 400, "٣"):
        assert client.get(f"/timeline.svg?width={width}").status_code == 200


def test_the_picture_is_drawn_again_only_for_new_records(
    client: TestClient, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def read(path: str) -> History:
        reads.append(path)
        return History(path)

    monkeypatch.setattr("ftrun.records.past.history.read", read)
    monkeypatch.setattr(app, "FRESH", 0.0)
    monkeypatch.setattr(app, "SHARE", 0)
    for number in (1, 2):
        with (run_dir / "events.jsonl").open("a") as stream:
            stream.write("{}\n")
        for _ in range(2):
            assert client.get("/timeline.svg").status_code == 200
            assert len(reads) == number


def test_a_missing_run_dir_is_reported(client: TestClient, run_dir: Path) -> None:
    (run_dir / "events.jsonl").unlink()
    for path, status in {"/snapshot.json": 503, "/timeline.svg": 404}.items():
        answer = client.get(path)
        assert answer.status_code == status
        assert str(run_dir) in answer.text
        assert answer.text.count("\n") == 1
    assert client.get("/").status_code == 200


def test_an_internal_error_is_one_short_line(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("never seen" + "\u202e" * 5000)

    monkeypatch.setattr(feed, "read_snapshot", fail)
    assert "never seen" in client.get("/snapshot.json").text
    monkeypatch.setattr(app.TimelineCache, "picture", fail)
    assert client.get("/timeline.svg").status_code == 500
    assert capsys.readouterr().err.count("\n") == 1
    assert TestClient(Middleware(fail), base_url="http://localhost").get("/" + "x" * 5000).status_code == 500  # type: ignore[arg-type]
    line = capsys.readouterr().err
    assert len(line) < 400
    assert line.removesuffix("\n").isprintable()


def test_a_disk_that_does_not_answer_blocks_only_its_readers(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def wait() -> str:
        answers.wait(60)
        raise NoRunDir("gone")

    for module in (feed, reports):
        monkeypatch.setattr(module, "PATIENCE", 0.05)
    with TestClient(Page(wait).application(), base_url="http://localhost") as client:
        try:
            for _ in range(app.THREADS + 2):
                assert client.get("/report/1").status_code == 503
            answer = client.get("/snapshot.json")
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert client.get("/healthz").text == "ok\n"
        finally:
            answers.set()


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_files_have_no_foreign_address_and_no_inline_code(name: str) -> None:
    text = (files("ftctl.page") / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert "//" not in re.sub(r"(?m)(^|[ ;{])// .*$", "", text), "an address"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|javascript:", text)
    if name == "index.html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)", text)


@pytest.mark.parametrize(
    ("changed", "health", "ready"),
    [
        ({}, 200, 200),
        ({"phase": "waiting"}, 200, 503),
        ({"phase": "done", "alive": False, "exit_code": 0}, 200, 503),
        ({"phase": "done", "alive": False, "exit_code": 195}, 503, 503),
        ({"phase": "cut off", "alive": False}, 503, 503),
    ],
)
def test_health_and_readiness_are_true_after_the_end(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], health: int, ready: int
) -> None:
    show(monkeypatch, snapshot(**changed))
    assert (client.get("/healthz").status_code, client.get("/readyz").status_code) == (health, ready)


# --- the whole job ----------------------------------------------------------------------------------------------------


def test_the_group_is_shown_with_what_needs_attention_first(
    client: TestClient, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, snapshot(3)._replace(run_dir=str(run_dir), node="here"))
    now = time.monotonic()
    slow = SlowRank(5, 2.0, 1.0, "1", 30.0)
    rows = [
        MemberRow(0, "here", "running", "healthy", 1, now),
        MemberRow(1, "there", "running", "healthy", 2, now, step=7, beat=1.0, report=1, trouble="hang in attempt 1: x"),
        MemberRow(2, "yonder", "running", "healthy", 2, now, slow=(slow,)),
    ]
    view = GroupView(1, 4, 0, now, 2, "run", rows=tuple(rows), boot=procfs.boot_id())
    (run_dir / "group.json").write_bytes(group_view.dump(view))
    found = client.get("/snapshot.json").json()["members"]
    assert [member["rank"] for member in found["members"]] == [2, 0, 1]
    assert found["never_seen"] == [3]
    assert found["headline"] == "group of 4, epoch 2, running (seen from member 0)"
    assert found["members"][0]["slow"][0]["text"].startswith("rank 5, device 1, is a straggler: 2s per step")
    assert found["members"][2]["state"] == "running"


def test_reports_of_other_members_come_from_the_messengers(run_dir: Path) -> None:
    asked = []

    def read(folder: str, member: int, attempt: int) -> str:
        asked.append((folder, member, attempt))
        if member == 7:
            raise ValueError("member 7 is not connected to rank 0")
        return "# Rank <b> sleeps\n"

    with TestClient(Page(lambda: str(run_dir), read).application(), base_url="http://localhost") as client:
        answer = client.get("/member/1/report/2")
        assert "<h1>Rank &lt;b&gt; sleeps</h1>" in answer.text
        refused = client.get("/member/7/report/2")
        assert (refused.status_code, refused.text) == (404, "member 7 is not connected to rank 0\n")
        assert client.get("/member/x/report/2").status_code == 404
        assert client.get("/member/1/report/0").status_code == 404
    assert asked == [(str(run_dir), 1, 2), (str(run_dir), 7, 2)]


def test_the_history_has_the_reports_that_outlived_their_containers(
    client: TestClient, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    (folder / "runs").mkdir(parents=True)
    lost = AttemptLine(1, "first", 10.0, 15.0, "hang", "it hung", "train.py:8 load", lost={"hang": 3.0})
    again = AttemptLine(2, "hang", 15.0, 20.0, open=True)
    life = RunLife(1, "pod-1", 1, 0, "node-1", "", "", "/gone", "train", 10.0, attempts=(lost, again))
    (folder / "runs" / "pod-1.json").write_bytes(schedules.dump(life))
    copy = Path(schedules.report_copy(str(folder), "pod-1", 1))
    copy.parent.mkdir(parents=True)
    copy.write_text("# It hung\n")
    known = SavedState(rest=RunState(run=RunFacts(state_dir=str(folder))))
    monkeypatch.setattr("ftrun.records.files.state.load", lambda run_dir: known)
    found = client.get("/history.json").json()
    assert found["source"] == str(folder)
    first, second = found["rows"]
    assert (first["cause"], first["place"], first["cost"]) == ("hang", "train.py:8 load", "3s (3s hang)")
    assert (first["link"], second["link"], second["open"]) == ("history/pod-1/1", None, True)
    assert "<h1>It hung</h1>" in client.get("/history/pod-1/1").text
    for other in ("history/pod-1/2", "history/pod-2/1", "history/..%2f..%2f/1", "history/pod-1/x"):
        assert client.get(f"/{other}").status_code == 404, other
