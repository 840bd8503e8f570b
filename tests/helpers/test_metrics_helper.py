"""The metrics helper as PID 1 starts it: an address, a file, and their errors."""

import json
import os
import socket
import stat
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse

from support.helper_process import HelperProcess
from support.runs import wait_for

Samples = dict[tuple[str, str], float]
parse_openmetrics: Callable[[str], Iterator[Metric]] = openmetrics_parser.text_string_to_metric_families


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of an ftrun that has ended."""
    made = tmp_path / "run"
    made.mkdir()
    record(made, "started", version="0.1.0")
    record(made, "spawned", pid=1)
    return made


def record(run_dir: Path, event: str, **more: object) -> None:
    with (run_dir / "events.jsonl").open("a") as stream:
        time = {"schema": 1, "time": "2026-01-01T00:00:00.000Z", "mono": 1.0, "attempt": 1}
        stream.write(json.dumps({**time, "event": event, **more}) + "\n")


def quick(period: float = 0.05) -> str:
    module = "ftrun.helpers.metrics.program"
    return f"import {module} as m; m.PERIOD = m.RETRY = {period}"


def scrape(address: str, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def samples(text: str) -> Samples:
    return {(s.name, ",".join(s.labels.values())): s.value for family in parse(text) for s in family.samples}


def test_a_scrape_shows_the_current_state_also_beside_a_file(run_dir: Path) -> None:
    path = run_dir.parent / "train.prom"
    with HelperProcess("metrics", str(run_dir), "127.0.0.1:0", str(path)) as helper:
        address = helper.event("listening")["address"]
        wait_for(path.exists, "the file")
        text, kind = scrape(address)
        assert kind.startswith("text/plain")
        assert samples(text)["ftrun_up", ""] == 0
        assert samples(text)["ftrun_phase", "cut off"] == 1
        record(run_dir, "ended", verdict="hang-limit", exit_code=195)
        wait_for(lambda: "ftrun_verdict_info" in scrape(address)[0], "the next snapshot")
        text, kind = scrape(address, "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert any(family.name == "ftrun_verdict" for family in parse_openmetrics(text))
        assert helper.end() == 0
        assert helper.problems == []


def test_an_address_in_use_is_one_problem_and_tried_again(run_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with HelperProcess("metrics", str(run_dir.parent / "none"), address, "", before=quick()) as helper:
            what = helper.event("problem")["what"]
            assert what == f"--metrics {address}: Address already in use; ftrun tries again"
            taken.close()
            assert helper.event("listening")["address"] == address
            assert samples(scrape(address)[0])["ftrun_up", ""] == 0  # of a run dir that does not exist any more
            assert helper.end() == 0
            assert len(helper.problems) == 1


def test_without_prometheus_client_it_reports_that_and_exits_with_0(run_dir: Path) -> None:
    with HelperProcess(
        "metrics", str(run_dir), "127.0.0.1:0", "", before="sys.modules['prometheus_client'] = None"
    ) as helper:
        assert helper.ended() == 0
        assert helper.problems == ["no metrics: prometheus-client is not installed (pip install 'ftrun[metrics]')"]


def test_the_file_is_written_periodically_and_keeps_the_verdict(run_dir: Path) -> None:
    path = run_dir.parent / "train.prom"
    with HelperProcess("metrics", str(run_dir), "", str(path), before=quick()) as helper:
        wait_for(path.exists, "the file")
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        first = path.stat().st_ino
        wait_for(lambda: path.stat().st_ino != first, "the next one takes its place")
        record(run_dir, "ended", verdict="succeeded", exit_code=0)
        assert helper.end() == 0
        assert helper.problems == []
    found = samples(path.read_text())
    assert found["ftrun_up", "train"] == 0
    assert {labels for name, labels in found if name == "ftrun_verdict_info"} == {"0,train,succeeded"}
    assert sorted(os.listdir(path.parent)) == ["run", "train.prom"]


@pytest.mark.parametrize("reads", [2, 1_000_000])
def test_the_last_file_of_a_killed_ftrun_has_the_phase_cut_off(run_dir: Path, reads: int) -> None:
    """The helper gets the end of its stdin before the process is gone: so many reads find it alive."""
    alive = f'lambda d: seen._replace(alive=True, phase="running") if next(n) <= {reads} else real(d)'
    patch = f"real, n = v.read_snapshot, itertools.count(1); v.read_snapshot = {alive}"
    look = f"import itertools, ftrun.records.present.run_snapshot as v; {patch}"
    before = f"{look}; seen = real({str(run_dir)!r})"
    path = run_dir.parent / "train.prom"
    with HelperProcess("metrics", str(run_dir), "", str(path), before=before) as helper:
        wait_for(path.exists, "the file")
        assert samples(path.read_text())["ftrun_phase", "running,train"] == 1
        assert helper.end() == 0
    found = samples(path.read_text())
    assert found["ftrun_up", "train"] == 0
    assert found["ftrun_phase", "running,train"] == 0
    assert found["ftrun_phase", "cut off,train"] == 1


def test_a_file_that_cannot_be_written_is_a_problem_and_is_tried_again(run_dir: Path) -> None:
    path = run_dir.parent / "later" / "train.prom"
    with HelperProcess("metrics", str(run_dir), "", str(path), before=quick()) as helper:
        assert helper.event("problem")["what"] == f"--metrics-file {path}: No such file or directory"
        path.parent.mkdir()
        wait_for(path.exists, "the file")
        assert helper.end() == 0
        assert len(helper.problems) == 1
