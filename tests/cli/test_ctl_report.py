"""`ftctl report`: what was found when an attempt was taken for hung."""

import json
import subprocess
import sys
from pathlib import Path

from support.runs import HOUSE, Runs, python

FTCTL = (sys.executable, str(HOUSE / "bin" / "ftctl"))


def report(run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*FTCTL, "report", "--run-dir", str(run_dir), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def made(runs: Runs, attempt: int, text: str) -> None:
    folder = runs.run_dir / "reports" / f"attempt-{attempt}"
    folder.mkdir(parents=True)
    (folder / "report.md").write_text(text)
    (folder / "report.json").write_text(json.dumps({"schema": 1, "attempt": attempt}))


def test_the_report_of_a_hang_as_text_and_as_it_is(runs: Runs) -> None:
    hang = ("--hang-timeout", "500ms", "--grace", "off", "--max-restarts", "0")
    run = runs.run(*hang, *python("import time\ndef stuck(): time.sleep(3600)\nft.beat(812); stuck()"))
    assert run.wait() == 195
    done = report(run.run_dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Rank 0 stopped at step 812")
    assert "stuck" in done.stdout
    assert "`" not in done.stdout.replace("```", "")
    found = json.loads(report(run.run_dir, "1", "--json").stdout)
    assert found == json.loads((run.run_dir / "reports" / "attempt-1" / "report.json").read_text())


def test_the_last_one_or_the_one_that_is_named(runs: Runs) -> None:
    run = runs.run("true")
    for attempt in (2, 10, 9):
        made(runs, attempt, f"# Attempt {attempt}\n")
    assert report(run.run_dir).stdout == "Attempt 10\n----------\n"
    assert report(run.run_dir, "9").stdout == "Attempt 9\n---------\n"
    done = report(run.run_dir, "3")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ftctl: {run.run_dir}: no report of attempt 3; attempts with a report: 2, 9, 10\n"


def test_none_is_told_in_one_line(runs: Runs) -> None:
    run = runs.run("true")
    for words in ((), ("--json",)):
        done = report(run.run_dir, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"ftctl: {run.run_dir}: no report was written\n"


def test_one_that_was_cut_off_is_told_in_one_line(runs: Runs) -> None:
    run = runs.run("true")
    made(runs, 1, "## half a ta")
    assert report(run.run_dir).stdout.startswith("half a ta\n")
    (run.run_dir / "reports" / "attempt-1" / "report.json").write_text('{"sche')
    done = report(run.run_dir, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("report.json is not valid JSON: is it truncated?\n")
