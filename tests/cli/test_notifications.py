"""`--on-event` and `--webhook`: what they report, to a real HTTP server, and that nothing waits for them."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ftrun.config import option_table, option_values
from ftrun.helpers.notifier.program import Notifier
from ftrun.messages.exports import Destinations
from ftrun.records.files import state
from support.runs import Runs, need_mounts, wait_for

AGAIN = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "off")
# Fails, the last time when the file `go` is there.
FAILS = ("sh", "-c", 'test "$MA_PROC_START_CNT" = "$LAST" && until test -e go; do sleep 0.02; done; exit 3')


class Server:
    """A webhook's other end.  `answers`: the codes of the first requests; then 200."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.answers: list[int] = []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = owner.answers.pop(0) if owner.answers else 200
                if code == 200:
                    owner.bodies.append(json.loads(body) | {"path": self.path})
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/services/T0/secret"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def test_webhook_gets_the_events_in_order(runs: Runs, server: Server) -> None:
    """Also the verdict, which is written when ftrun ends; and it is tried again."""
    server.answers = [503]
    run = runs.start("--webhook", server.url, "--log-format", "text", *AGAIN, *FAILS, LAST="2")
    wait_for(lambda: server.bodies, "the restart")
    (runs.folder / "go").touch()
    assert run.wait() == 93
    assert [body["event"] for body in server.bodies] == ["restart", "ended"], run.log()
    restart, ended = server.bodies
    assert (restart["schema"], restart["attempt"], restart["run_dir"]) == (1, 2, str(run.run_dir))
    assert restart["command"] == [*FAILS]
    assert restart["record"] == run.named("restart")[0]
    assert "ended with 93 (failure-limit)" in ended["text"]
    assert server.url not in json.dumps(run.records)


def test_slack_gets_its_text_only(runs: Runs, server: Server) -> None:
    """The example of docs/howto/notifications.md."""
    run = runs.start("--webhook-format", "slack", "--notify-on", "ended", *FAILS, FTRUN_WEBHOOK=server.url, LAST="1")
    wait_for(lambda: run.helper("notifier"), "the helper")
    (runs.folder / "go").touch()
    assert run.wait() == 3
    (body,) = server.bodies
    assert set(body) == {"text", "path"}
    assert "ended with 3 (failed)" in body["text"]


def test_command_gets_the_notification(runs: Runs) -> None:
    hook = 'cat >> seen; echo "$FTRUN_EVENT $FTRUN_ATTEMPT $FTRUN_RUN_DIR: $FTRUN_MESSAGE" >> named'
    run = runs.start("--on-event", hook, "--notify-on", "restart", *AGAIN, *FAILS, LAST="2")
    named = wait_for(lambda: (runs.folder / "named").read_text(), "the variables")
    found = json.loads((runs.folder / "seen").read_text())
    assert found["record"] == run.named("restart")[0]
    (runs.folder / "go").touch()
    assert run.wait() == 93
    assert named.startswith(f"restart 2 {run.run_dir}: ftrun on ")


def test_destinations_that_never_answer_delay_nothing_for_long_and_leave_a_trace(runs: Runs) -> None:
    """They are a problem neither for the job nor for the other destination."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    given = ("--on-event", "sleep 3600", "--on-event", "cat > seen", "--webhook", f"http://127.0.0.1:{port}/T0")
    run = runs.start(*given, "--notify-on", "ended", *FAILS, LAST="1")
    wait_for(lambda: run.helper("notifier"), "the helper")
    (runs.folder / "go").touch()
    assert run.wait() == 3
    assert json.loads(wait_for(lambda: (runs.folder / "seen").read_text(), "the notification"))["event"] == "ended"
    trace = f"--webhook 127.0.0.1:{port}: not reported when ftrun ended: 1 notification: "
    assert trace in (run.run_dir / "run.log").read_text()


def test_a_full_disk_is_reported_though_it_can_not_be_recorded(runs: Runs) -> None:
    need_mounts()
    full, seen = runs.folder / "full", runs.folder / "seen"
    prefix = tuple(runs.mounted(f"mkdir {full}; mount -t tmpfs -o size=1m tmpfs {full}"))
    script = f"cat /dev/zero > {full}/zeros; until test -s {seen}; do sleep 0.05; done; rm {full}/zeros"
    runs.ends(0, "--on-event", f"cat >> {seen}", "sh", "-c", script, prefix=prefix, run_dir=full)
    found, _ = json.JSONDecoder().raw_decode(seen.read_text())  # another one follows at the end
    assert found["event"] == "disk"
    assert f"the disk of the run dir {full} is full" in found["text"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"webhook": "ftp://host"}, "--webhook: not a URL"),
        ({"notify-on": "hangs"}, "did you mean 'hang'"),
        ({"webhook-format": "xml"}, "--webhook-format: 'xml' is not one of json, slack"),
    ],
)
def test_bad_values_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(option_table.ConfigError, match=why):
        option_values.settings(options, {})


def test_each_option_is_in_one_group_of_the_help() -> None:
    from ftrun.cli.options import GROUPS

    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted([option.name for option in option_table.OPTIONS] + ["version", "help"])


def test_twice_a_second_it_reads_nothing_but_new_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a large group has megabytes."""
    (tmp_path / "events.jsonl").touch()
    notifier = Notifier(str(tmp_path), 0, Destinations((), (), False, ("hang",), "", "node"), mock.Mock())
    monkeypatch.setattr(state, "load", mock.Mock(side_effect=AssertionError))
    notifier._report(False)
