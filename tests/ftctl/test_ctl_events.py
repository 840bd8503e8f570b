"""`ftctl events` as a program: all records, the last ones, and those to come."""

import json
import runpy
import signal
import subprocess
from pathlib import Path
from typing import Any

from ftctl.verbs.events import EVENTS
from support.runs import FTCTL, HOUSE, Runs, ftctl, python, wait_for


def events(run_dir: Path, *words: str) -> list[str]:
    done = ftctl("events", "--run-dir", str(run_dir), *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


class Follower:
    """A running `ftctl events -f --json`."""

    def __init__(self, runs: Runs, *words: str) -> None:
        self._out = runs.folder / "followed"
        with self._out.open("wb") as out:
            command = [*FTCTL, "events", "--json", "-f", "--run-dir", str(runs.run_dir), *words]
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, env=runs.environment)

    def seen(self) -> list[Any]:
        """The events of the complete lines: the last one may be half written."""
        return [json.loads(line)["event"] for line in self._out.read_text().split("\n")[:-1]]

    def end(self) -> tuple[int, bytes]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


def test_records_of_a_finished_run_are_printed(runs: Runs) -> None:
    run = runs.run("sh", "-c", "exit 3")
    lines = events(run.run_dir)
    assert [line.split()[2] for line in lines] == run.order
    assert lines[0].split()[1] == "1"
    assert 'command="sh -c exit 3"' in lines[0]
    assert [json.loads(line) for line in events(run.run_dir, "--json")] == run.records
    assert [json.loads(line) for line in events(run.run_dir, "--json", "-n", "2")] == run.records[-2:]
    assert len(events(run.run_dir, "-f", "-n", "1")) == 1
    assert len(events(run.run_dir, "-f", "-n", "0")) == 0

    file = run.run_dir / "events.jsonl"
    records = file.read_bytes()
    with file.open("ab") as stream:
        stream.write(b'\xff garbage\n[]\n{"event": "odd", "what": "a\\u001b[2Jb\\n"}\n' + b"x" * (10 << 20) + b"\n{")
    (odd,) = events(run.run_dir, "-n", "1")
    assert odd.endswith("what=a\\x1b[2Jb\\n")

    file.write_bytes(records * 2000)
    command = " ".join([*FTCTL, "events", "--run-dir", str(run.run_dir)])
    cut = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, timeout=60
    )
    assert (cut.returncode, cut.stderr) == (0, ""), "a reader that closes the pipe is no error"
    assert cut.stdout.count("\n") == 1
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command.split(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "ftctl: cannot write: No space left on device\n")


def test_a_name_that_no_record_has_is_refused(tmp_path: Path) -> None:
    done = ftctl("events", "--run-dir", str(tmp_path), "--event", "ended,spawnd")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no record is named 'spawnd' (did you mean 'spawned'?)" in done.stderr
    meanings = runpy.run_path(str(HOUSE / "docs" / "made" / "record_meanings.py"))["MEANING"]
    assert sorted(EVENTS) == sorted(meanings)


def test_following_ends_with_the_run(runs: Runs) -> None:
    run = runs.spawned("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
    follower = Follower(runs)
    wait_for(lambda: "spawned" in follower.seen(), "the records so far")
    (runs.folder / "go").touch()
    assert follower.end() == (0, b"")
    run.wait()
    assert follower.seen() == run.order
    assert follower.seen()[-1] == "ended"


def test_following_ends_by_ctrl_c_and_when_ftrun_is_killed(runs: Runs) -> None:
    run = runs.start(*python("import time; ft.beat(1); time.sleep(3600)"))
    run.until("first_beat")
    follower = Follower(runs)
    wait_for(follower.seen, "the records so far")
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == (0, b"")
    follower = Follower(runs, "-n", "1")
    wait_for(follower.seen, "the last record")
    run.kill_ftrun()
    assert follower.end() == (0, b"")
