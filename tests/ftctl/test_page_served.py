"""`ftctl serve` as a program: its event streams continue after an interruption, are bounded, and end with Ctrl-C."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'ftrun[page]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'ftrun[page]'")

from ftctl.page import app, feed
from ftctl.page.app import Page
from ftctl.verbs import serve
from ftrun.records.present.snapshot import Snapshot
from support.pages import FTCTL, Event, empty, ftctl_serve, serving
from support.runs import Runs, wait_for
from support.runs import runs as runs
from support.snapshots import snapshot


def is_record(name: str) -> Callable[[Event], bool]:
    return lambda event: event.name == "record" and bool(event.data["event"] == name)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    run_dir = empty(tmp_path / "run")
    return Page(lambda: str(run_dir))


def test_an_interrupted_stream_continues_in_another_server(runs: Runs) -> None:
    os.mkfifo(runs.folder / "go")
    run = runs.spawned("sh", "-c", "read line < go; exit 3")
    with ftctl_serve(run.run_dir) as (_, served):
        one = served.stream()
        before = one.until(is_record("spawned"))
        assert [event.name for event in before[:2]] == ["fresh", "snapshot"]
        assert before[1].data["alive"] is True
        one.close()
        assert served.get("/healthz") == (200, "ok\n")
        assert served.get("/", host="evil.example")[0] == 421
    (runs.folder / "go").write_text("now\n")
    assert run.wait() == 3
    with ftctl_serve(run.run_dir) as (_, served):
        for options in ({"Last_Event_ID": before[-1].id}, {"path": f"/events?after={before[-1].id}"}):
            one = served.stream(**options)
            after = one.until(is_record("ended"))
            assert "fresh" not in [event.name for event in after]
            records = [event.data["event"] for event in (*before, *after) if event.name == "record"]
            assert records == run.order
            (shown,) = [event.data for event in after if event.name == "snapshot"]
            assert (shown["alive"], shown["phase"], shown["exit_code"]) == (False, "done", 3)
            one.close()


def test_a_stream_without_news_sends_heartbeats(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "read_snapshot", lambda run_dir: snapshot())
    monkeypatch.setattr(feed, "BEAT", 0.2)
    with serving(page) as served:
        one = served.stream()
        assert [event.name for event in one.until(lambda event: event.name == "beat")] == ["fresh", "snapshot", "beat"]
        one.close()


def test_all_streams_share_one_reader(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def read(run_dir: str) -> Snapshot:
        reads.append(run_dir)
        return snapshot(step=len(reads))

    monkeypatch.setattr(feed, "read_snapshot", read)
    monkeypatch.setattr(feed, "PERIOD", 0.2)
    with serving(page) as served:
        begun = time.monotonic()
        streams = [served.stream() for _ in range(8)]
        for one in streams:
            one.until(lambda event: event.name == "snapshot" and event.data["step"] >= 4)
        assert len(reads) <= (time.monotonic() - begun) / feed.PERIOD + 3
        for one in streams:
            one.close()
        wait_for(lambda: page.feed.clients == 0, "the streams to be gone", 60)
        wait_for(lambda: page.feed._task is None or page.feed._task.done(), "the reader to stop", 60)


def test_the_number_of_streams_is_bounded(page: Page) -> None:
    with serving(page) as served:
        streams = [served.stream() for _ in range(app.STREAMS)]
        assert {one.status for one in streams} == {200}
        assert served.get("/events")[0] == 503
        assert served.get("/healthz")[0] == 200
        streams[0].close()

        def admitted() -> bool:
            one = served.stream()
            one.close()
            return one.status == 200

        wait_for(admitted, "room for another", 60)
        for one in streams:
            one.close()


def test_a_client_that_does_not_read_is_dropped(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()

    def read(run_dir: str) -> Snapshot:
        return snapshot(why="x" * 4_000_000, step=next(numbers))

    monkeypatch.setattr(feed, "read_snapshot", read)
    monkeypatch.setattr(feed, "PERIOD", 0.05)
    monkeypatch.setattr(serve, "UNREAD_TIMEOUT_MS", 500)
    with serving(page) as served, socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: page.feed.clients == 1, "the stream", 60)
        wait_for(lambda: page.feed.clients == 0, "it to be dropped", 60)


def test_half_requests_block_no_other_client(page: Page) -> None:
    with serving(page) as served, contextlib.ExitStack() as clients:
        for _ in range(100):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            client.sendall(b"GET /")
        assert served.get("/healthz") == (200, "ok\n")


def test_head_ends_without_a_stream(page: Page) -> None:
    with serving(page) as served:
        assert served.get("/events", "HEAD") == (200, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_with_open_streams(tmp_path: Path, number: int) -> None:
    with ftctl_serve(empty(tmp_path / "run")) as (process, served):
        streams = [served.stream() for _ in range(3)]
        for one in streams:
            one.until(lambda event: event.name == "snapshot")
        begun = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert time.monotonic() - begun < 30
        assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM}[signal.Signals(number)]
        assert out == ""
        assert len(err.strip().splitlines()) == 1, err
        assert all(event.name == "beat" for one in streams for event in one.events())  # and then its end
        for one in streams:
            one.close()


def test_a_remote_address_needs_an_option(tmp_path: Path) -> None:
    with ftctl_serve(empty(tmp_path / "run"), "--host", "0.0.0.0", "--allow-remote") as (process, served):
        assert served.get("/healthz", host="10.1.2.3:80")[0] == 200
        assert served.get("/healthz", host=socket.gethostname())[0] == 200
        assert served.get("/healthz", host="evil.example")[0] == 421
        process.send_signal(signal.SIGINT)
        assert "without a password" in process.communicate(timeout=60)[1]
    for host in ("0.0.0.0", "::", ""):
        message = refused("--run-dir", str(tmp_path / "run"), "--host", host, code=2)
        assert "no password" in message
        assert "--allow-remote" in message


def refused(*words: str, code: int) -> str:
    done = subprocess.run([*FTCTL, "serve", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_errors_are_one_line(tmp_path: Path) -> None:
    run_dir = str(empty(tmp_path / "run"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        message = refused("--run-dir", run_dir, "--port", str(port), code=1)
    assert f"127.0.0.1 port {port}: Address already in use" in message
    for words in (("--host", "no.such.host.invalid"), ("--port", "99999")):
        refused("--run-dir", run_dir, *words, code=2)
    assert str(tmp_path) in refused("--run-dir", str(tmp_path), "--port", "0", code=1)


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.modules['starlette'] = None; sys.argv = ['ftctl', 'serve', '--run-dir', "
    code += f"{str(empty(tmp_path / 'run'))!r}]; "
    code += f"runpy.run_path({FTCTL[1]!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'ftrun[page]'" in done.stderr
