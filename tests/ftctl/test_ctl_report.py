"""`ftctl report`: the evidence on which an attempt was found hung."""

import json
import subprocess
from pathlib import Path

from support.runs import Runs, ftctl, python


def report(run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ftctl("report", "--run-dir", str(run_dir), *words)


def error(run_dir: Path, *words: str) -> str:
    done = report(run_dir, *words)
    if "--json" in words:  # a program reads the error where it reads the report
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (1, "", 1)
        found = json.loads(done.stdout)
        assert found["ok"] is False
        return f"ftctl: {found['why']}\n"
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    return done.stderr


def test_the_report_of_a_hang_is_printed_as_text_and_json(runs: Runs) -> None:
    hang = ("--hang-timeout", "500ms", "--grace", "off", "--max-restarts", "0")
    run = runs.ends(195, *hang, *python("import time\ndef stuck(): time.sleep(3600)\nft.beat(812); stuck()"))
    done = report(run.run_dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Rank 0 sleeps at <string>:3 stuck")
    assert "Rank 0 stopped at step 812" in done.stdout
    assert "stuck" in done.stdout
    assert "`" not in done.stdout.replace("```", "")
    found = json.loads(report(run.run_dir, "1", "--json").stdout)
    assert found == json.loads((run.run_dir / "reports" / "attempt-1" / "report.json").read_text())


def test_the_last_or_the_named_report_is_printed(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    none = f"ftctl: {tmp_path}: no report was written; `ftctl status` shows the present state\n"
    assert error(tmp_path) == error(tmp_path, "--json") == none
    for attempt in (2, 10, 9):
        folder = tmp_path / "reports" / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        (folder / "report.md").write_text(f"# Attempt {attempt}")
        (folder / "report.json").write_text('{"sche')
    assert report(tmp_path).stdout == "Attempt 10\n----------\n"
    assert report(tmp_path, "9").stdout == "Attempt 9\n---------\n"
    assert error(tmp_path, "3") == f"ftctl: {tmp_path}: no report of attempt 3; attempts with a report: 2, 9, 10\n"
    assert error(tmp_path, "--json").endswith("report.json is not valid JSON: is it truncated?\n")
