"""Names and texts of others, with all that acts on a terminal, a log, a browser or Prometheus: shown, not acted on."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ftrun.helpers.metrics.exporter import Exporter
from ftrun.views import history, html
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
    """A run that hung, and failed in the start after it, with such a name wherever there is one."""
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


def plain(text: str) -> None:
    """Lines, and nothing in them that acts."""
    assert [c for c in text.replace("\n", "") if not c.isprintable()] == []


def test_all_of_it_happened(hung: Run) -> None:
    assert hung.process.returncode == 1, hung.log()
    assert hung.named("hang")[0]["section"].startswith("\x1b[2J")
    assert NASTY in hung.named("started")[0]["command"]
    assert NASTY in hung.state["last_checkpoint"]
    assert hung.named("exited")[-1]["why"].startswith("ValueError: ?[2J?]0;x?")


def test_stderr_has_no_line_of_another(hung: Run) -> None:
    ours = (hung.run_dir.parent / "stderr-0").read_bytes().decode().split("Traceback")[0]  # that is Python's own
    plain(ours)
    assert [line for line in ours.splitlines() if not line.startswith("[ftrun] ")] == []
    assert not any(line.startswith("[ftrun] forged") for line in ours.splitlines())


def test_run_log_has_no_line_of_another(hung: Run) -> None:
    text = (hung.run_dir / "run.log").read_bytes().decode()
    plain(text)
    assert [line for line in text.splitlines() if "forged" in line[:40]] == []


def test_a_record_is_a_line(hung: Run) -> None:
    content = (hung.run_dir / "events.jsonl").read_bytes()
    assert content.isascii()
    assert [json.loads(line)["schema"] for line in content.splitlines()] == [1] * len(hung.records)
    assert hung.order.count("ended") == 1


def test_a_report_is_only_text(hung: Run) -> None:
    folder = hung.run_dir / "reports" / "attempt-1"
    text = (folder / "report.md").read_bytes().decode()
    plain(text)
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert "forged" in page
    assert "<img" not in page
    assert "<p>[ftrun]" not in page
    for path in folder.glob("stacks/*"):
        plain(path.read_bytes().decode())
    assert (folder / "report.json").read_bytes().isascii()


def test_the_termination_message_is_one_object(hung: Run) -> None:
    content = (hung.run_dir.parent / "termination-log").read_bytes()
    assert content.isascii()
    assert content.count(b"\n") <= 1
    assert json.loads(content)["exit_code"] == 1


@pytest.mark.parametrize("words", ["status", "events", "report 1"])
def test_ftctl_shows_it(hung: Run, words: str) -> None:
    program = [sys.executable, str(HOUSE / "bin" / "ftctl"), *words.split(), "--run-dir", str(hung.run_dir)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    plain(done.stdout)
    assert done.stderr == ""


def test_a_page_of_the_timeline_holds_no_markup_of_others(hung: Run) -> None:
    page = html.render(history.read(str(hung.run_dir)))
    plain(page)
    assert "forged" in page
    assert "<img" not in page


def test_a_label_of_prometheus_is_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    device = {"id": NASTY, "name": NASTY, "util": 1, "memory_used": 2, "memory_total": 3, "power": None}
    (tmp_path / "devices.json").write_text(json.dumps({"mono": 1.0, "devices": [device]}))
    content = generate_latest(Exporter(str(tmp_path)))
    found = [one for family in text_string_to_metric_families(content.decode()) for one in family.samples]
    names = {sample.labels["device"] for sample in found if sample.name.startswith("ftrun_device_")}
    assert names == {NASTY}


@pytest.mark.parametrize(
    "words", [("--run-dir", "/proc/{}"), ("--", "/nowhere/{}"), ("--config", "/nowhere/{}"), ("--{}",)]
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    program = [sys.executable, str(HOUSE / "bin" / "ftrun"), *(word.format(NASTY) for word in words), "true"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode in (2, 127)
    assert done.stderr.count("\n") == 1
    plain(done.stderr)
