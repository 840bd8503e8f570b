"""Foreign names and texts that would act on a terminal, a log, a browser or Prometheus are only displayed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ftctl.timeline import html
from ftrun.helpers.metrics.exporter import Exporter
from ftrun.records.past import history
from support.runs import HOUSE, Run, Runs, python

NASTY = '\x1b[2J\x1b]0;x\x07\r\n[ftrun] forged\n{"event": "ended"}\u202e\u2028\x85<img src=x onerror=alert(1)>|`*_\x9b'
TRAINING = """
import ctypes, os, time
nasty = os.environ["NASTY"]
ctypes.CDLL(None).prctl(15, nasty.encode()[:15])
print(nasty, flush=True)
ft.beat(1)
os.mkdir(os.environ["PLACE"] + "/" + nasty)
ft.checkpoint(1, os.environ["PLACE"] + "/" + nasty)
ft.beat(2)
with ft.section(nasty, timeout="300ms"):
    exec(compile("def f():\\n time.sleep(600)\\nf()", nasty, "exec"))
"""


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that hung and then failed, with that text in every name."""
    runs = Runs(tmp_path_factory.mktemp("hung"))
    place = runs.folder / "saved"
    place.mkdir()
    again = f"if ft.attempt().is_restart: raise ValueError({NASTY!r})\n"
    run = runs.run(
        *("-v", "--on-exit", f"false '{NASTY}'", *python(again + TRAINING, NASTY, f"--name={NASTY}")),
        NASTY=NASTY,
        PLACE=str(place),
    )
    yield run
    runs.end()


def assert_plain(text: str) -> None:
    """Printable lines only."""
    assert [c for c in text.replace("\n", "") if not c.isprintable()] == []


def test_stderr_and_run_log_have_no_forged_line(hung: Run) -> None:
    assert hung.process.returncode == 1, hung.log()
    text = (hung.run_dir.parent / "stderr-0").read_bytes().decode().split("Traceback")[0]  # Python wrote the traceback
    log = (hung.run_dir / "run.log").read_bytes().decode()
    assert_plain(text + log)
    assert all(line.startswith("[ftrun] ") and not line.startswith("[ftrun] forged") for line in text.splitlines())
    assert not [line for line in log.splitlines() if "forged" in line[:40]]


def test_a_record_is_one_line(hung: Run) -> None:
    content = (hung.run_dir / "events.jsonl").read_bytes()
    assert content.isascii()
    assert [json.loads(line)["schema"] for line in content.splitlines()] == [1] * len(hung.records)
    assert hung.order.count("ended") == 1
    assert hung.named("hang")[0]["section"].startswith("\x1b[2J")
    assert NASTY in hung.named("started")[0]["command"]
    assert NASTY in hung.state["last_checkpoint"]
    assert hung.named("exited")[-1]["why"].startswith("ValueError: ?[2J?]0;x?")


def test_a_report_is_only_text(hung: Run) -> None:
    folder = hung.run_dir / "reports" / "attempt-1"
    text = (folder / "report.md").read_bytes().decode()
    assert_plain(text)
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert "forged" in page
    assert re.findall("<img[^>]*>", page) == ['<img src="waits-1.svg" alt="What waits for what" />']
    assert "<p>[ftrun]" not in page
    for path in folder.glob("stacks/*"):
        assert_plain(path.read_bytes().decode())
    assert (folder / "report.json").read_bytes().isascii()


def test_the_termination_message_is_one_object(hung: Run) -> None:
    content = (hung.run_dir.parent / "termination-log").read_bytes()
    assert content.isascii()
    assert content.count(b"\n") <= 1
    assert json.loads(content)["exit_code"] == 1


@pytest.mark.parametrize("words", ["status", "events", "report 1"])
def test_ftctl_prints_only_text(hung: Run, words: str) -> None:
    program = [sys.executable, str(HOUSE / "bin" / "ftctl"), *words.split(), "--run-dir", str(hung.run_dir)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert_plain(done.stdout)
    assert done.stderr == ""


def test_the_page_of_the_timeline_has_no_foreign_markup(hung: Run) -> None:
    page = html.render(history.read(str(hung.run_dir)))
    assert_plain(page)
    assert "forged" in page
    assert "<img" not in page


def test_a_label_of_prometheus_keeps_the_text(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    device = {"vendor": "", "index": 0, "id": NASTY, "name": NASTY, "util": 1, "memory_used": 2, "memory_total": 3}
    (tmp_path / "devices.json").write_text(json.dumps({"mono": 1.0, "devices": [device]}))
    content = generate_latest(Exporter(str(tmp_path)))
    found = [one for family in text_string_to_metric_families(content.decode()) for one in family.samples]
    names = {sample.labels["device"] for sample in found if sample.name.startswith("ftrun_device_")}
    assert names == {NASTY}


@pytest.mark.parametrize(
    "words", [("--run-dir", "/proc/{}"), ("--", "/nowhere/{}"), ("--config", "/nowhere/{}"), ("--{}",)]
)
def test_an_error_message_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    program = [sys.executable, str(HOUSE / "bin" / "ftrun"), *(word.format(NASTY) for word in words), "true"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode in (2, 127)
    assert done.stderr.count("\n") == 1
    assert_plain(done.stderr)
