"""What the page answers: only reading, only to those who were meant, and never with more than it should show."""

import json
import os
import re
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'ftrun[page]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'ftrun[page]'")

from starlette.testclient import TestClient

from ftrun.views.history import History
from ftrun.views.page import app, feed, timeline_cache
from ftrun.views.page.app import FILES, Page
from ftrun.views.page.middleware import Middleware
from ftrun.views.page.payload import SHOWN
from ftrun.views.rundir import NoRunDir, find
from ftrun.views.snapshot import Snapshot
from support.pages import empty, snapshot

ROUTES = ("/", *(f"/{name}" for name in FILES if name != "index.html"), "/snapshot.json", "/timeline.svg", "/healthz")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return empty(tmp_path / "run")


@pytest.fixture
def client(run_dir: Path) -> Iterator[TestClient]:
    with TestClient(Page(lambda: find(str(run_dir))).application(), base_url="http://localhost") as client:
        yield client


def made_up(monkeypatch: pytest.MonkeyPatch, shown: Snapshot) -> None:
    monkeypatch.setattr(feed, "read_snapshot", lambda run_dir: shown)


@pytest.mark.parametrize("path", [*ROUTES, "/report/1", "/nothing"])
def test_every_answer_keeps_a_browser_to_itself(client: TestClient, path: str) -> None:
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


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", [*ROUTES, "/events", "/report/1", "/nothing"])
def test_it_steers_nothing(client: TestClient, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("host", ["localhost", "LocalHost:9", "localhost.", "127.0.0.1:8642", "127.1.2.3", "[::1]:80"])
def test_this_machine_may_read(client: TestClient, host: str) -> None:
    assert client.get("/healthz", headers={"host": host}).text == "ok\n"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0", "[::2]", "", "["],
)
@pytest.mark.parametrize("path", ["/", "/snapshot.json", "/events", "/nothing"])
def test_a_name_that_was_made_to_lead_here_reads_nothing(client: TestClient, host: str, path: str) -> None:
    assert client.get(path, headers={"host": host}).status_code == 421


def test_a_host_that_was_given_may_read_too(run_dir: Path) -> None:
    guarded = Page(lambda: str(run_dir)).application(frozenset({"node-1", "10.0.0.1"}))
    anywhere = Page(lambda: str(run_dir)).application(any_address=True)
    for application, right, wrong in ((guarded, "Node-1:80", "10.0.0.2"), (anywhere, "10.0.0.2", "node-1")):
        client = TestClient(application, base_url="http://localhost")
        assert client.get("/healthz", headers={"host": right}).status_code == 200
        assert client.get("/healthz", headers={"host": wrong}).status_code == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_others_take_no_stream(client: TestClient, site: str) -> None:
    other = {"sec-fetch-site": site, "sec-fetch-mode": "cors"}
    assert client.get("/snapshot.json", headers=other).status_code == 403
    assert client.get("/", headers=other | {"sec-fetch-mode": "navigate"}).status_code == 200


def test_the_snapshot_has_all_ranks_the_stalest_first(
    client: TestClient, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = snapshot(run_dir, 1024)
    made_up(monkeypatch, shown)
    found = client.get("/snapshot.json").json()
    assert set(Snapshot._fields) <= set(found)
    assert [rank["rank"] for rank in found["ranks"][:1]] == [3]
    assert sorted(rank["rank"] for rank in found["ranks"]) == list(range(1024))
    assert found["states"] == {"moving": 1024}
    assert found["trouble"]["cause"] == "hang"


def test_a_stream_is_sent_few_ranks(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch, snapshot(run_dir, 1024))
    found = Page(lambda: str(run_dir)).feed._read()
    assert not isinstance(found, str)
    brief = json.loads(found.text)
    assert len(brief["ranks"]) == SHOWN
    assert brief["ranks"][0]["rank"] == 3
    assert len(found.text) < 40_000


def test_the_verdict_says_what_is_to_be_done(
    client: TestClient, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch, snapshot(run_dir, alive=False, phase="done", verdict="hang-limit", exit_code=195))
    found = client.get("/snapshot.json").json()
    assert (found["outer"], found["exit_code"]) == ("reschedule the job", 195)


def test_foreign_bytes_and_figures_are_still_json(
    client: TestClient, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch, snapshot(run_dir, command=("\udcff", "\0", "</script>"), goodput=float("nan")))
    found: dict[str, Any] = client.get("/snapshot.json").json()
    assert found["command"] == ["\udcff", "\0", "</script>"]
    assert found["goodput"] is None


def test_a_report_is_text(client: TestClient, run_dir: Path) -> None:
    folder = run_dir / "reports" / "attempt-2"
    folder.mkdir(parents=True)
    (folder / "report.md").write_bytes(b"**Rank 0** <script>alert(1)</script> \x1b[31m {number} \xff")
    answer = client.get("/report/2")
    assert answer.headers["content-type"].startswith("text/html")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
    assert "{number}" in answer.text
    assert "\x1b" not in answer.text
    assert "<script>" not in answer.text


def test_what_is_no_report_is_not_shown(client: TestClient, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for number in (1, 2, 3):
        (run_dir / "reports" / f"attempt-{number}").mkdir(parents=True)
    (run_dir / "reports/attempt-1/report.md").symlink_to(tmp_path / "secret")
    os.mkfifo(run_dir / "reports/attempt-2/report.md")
    assert client.get("/report/1").status_code == 404
    (run_dir / "reports" / "attempt-5").mkdir()
    (run_dir / "reports" / "attempt-5" / "report.md").touch()
    assert client.get("/report/5").status_code == 200
    for other in ("2", "3", "4", "9" * 300, "9" * 5000, "-1", "1/../../secret", "x", "05", "5%0a", "٥", "0"):
        assert client.get(f"/report/{other}").status_code == 404, other


def test_the_picture_is_for_the_page_or_alone(client: TestClient) -> None:
    alone, inline = client.get("/timeline.svg"), client.get("/timeline.svg?inline&width=700")
    assert alone.headers["content-type"] == inline.headers["content-type"] == "image/svg+xml"
    assert "<style>" in alone.text
    assert "<style" not in inline.text
    assert " style=" not in inline.text
    assert 'width="700"' in inline.text
    for width in ("0", "99999", "-1", "x", "9" * 400, "٣"):
        assert client.get(f"/timeline.svg?width={width}").status_code == 200


def test_records_are_read_for_the_picture_only_when_they_are_new(
    client: TestClient, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def read(path: str) -> History:
        reads.append(path)
        return History(path)

    monkeypatch.setattr("ftrun.views.history.read", read)
    monkeypatch.setattr(timeline_cache, "FRESH", 0.0)
    monkeypatch.setattr(timeline_cache, "SHARE", 0)
    for number in (1, 2):
        with (run_dir / "events.jsonl").open("a") as stream:
            stream.write("{}\n")
        for _ in range(2):
            assert client.get("/timeline.svg").status_code == 200
            assert len(reads) == number


def test_a_run_dir_that_vanished_is_said(client: TestClient, run_dir: Path) -> None:
    (run_dir / "events.jsonl").unlink()
    for path, status in {"/snapshot.json": 503, "/timeline.svg": 404}.items():
        answer = client.get(path)
        assert answer.status_code == status
        assert str(run_dir) in answer.text
        assert answer.text.count("\n") == 1
    assert client.get("/").status_code == 200


def test_whatever_goes_wrong_is_one_line(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("never seen")

    monkeypatch.setattr(feed, "read_snapshot", fails)
    assert "never seen" in client.get("/snapshot.json").text
    monkeypatch.setattr(timeline_cache.TimelineCache, "picture", fails)
    assert client.get("/timeline.svg").status_code == 500
    assert capsys.readouterr().err.count("\n") == 1


def test_that_line_is_short_whatever_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fails(*_: object) -> None:
        raise ValueError("\u202e" * 5000)

    client = TestClient(Middleware(fails), base_url="http://localhost")
    assert client.get("/" + "x" * 5000).status_code == 500
    line = capsys.readouterr().err
    assert len(line) < 400
    assert line.removesuffix("\n").isprintable()


def test_a_disk_that_does_not_answer_holds_up_nobody_else(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def waits() -> str:
        answers.wait(60)
        raise NoRunDir("gone")

    monkeypatch.setattr(feed, "PATIENCE", 0.05)
    monkeypatch.setattr(app, "PATIENCE", 0.05)
    with TestClient(Page(waits).application(), base_url="http://localhost") as client:
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
def test_nothing_is_asked_of_another_host_and_nothing_is_inline(name: str) -> None:
    text = (files("ftrun.views.page") / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert "//" not in re.sub(r"(?m)(^|[ ;{])// .*$", "", text), "an address"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|javascript:", text)
    if name == "index.html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)", text)
