"""`ftctl events`: all, the last ones, and those to come."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.runs import HOUSE, Runs, python, wait_for

FTCTL = (sys.executable, str(HOUSE / "bin" / "ftctl"))


def events(run_dir: Path, *words: str) -> list[str]:
    command = [*FTCTL, "events", "--run-dir", str(run_dir), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


class Follower:
    """`ftctl events -f --json`, as it goes on."""

    def __init__(self, runs: Runs, *words: str) -> None:
        self._out = runs.folder / "followed"
        with self._out.open("wb") as out:
            command = [*FTCTL, "events", "--json", "-f", "--run-dir", str(runs.run_dir), *words]
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, env=runs.environment)

    def seen(self) -> list[Any]:
        return [json.loads(line)["event"] for line in self._out.read_text().splitlines()]

    def end(self) -> tuple[int, bytes]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


def test_events_are_shown_oldest_first(runs: Runs) -> None:
    run = runs.run("sh", "-c", "exit 3")
    said = events(run.run_dir)
    assert [line.split()[2] for line in said] == run.order
    assert said[0].split()[1] == "1"
    assert 'command="sh -c exit 3"' in said[0]
    assert [json.loads(line) for line in events(run.run_dir, "--json")] == run.records
    assert [json.loads(line) for line in events(run.run_dir, "--json", "-n", "2")] == run.records[-2:]


def test_truncated_or_foreign_line_is_skipped(runs: Runs) -> None:
    run = runs.run("true")
    with (run.run_dir / "events.jsonl").open("ab") as file:
        file.write(b'\xff garbage\n[]\n{"event": "odd", "what": "a\\u001b[2Jb\\n"}\n' + b"x" * (10 << 20) + b"\n{")
    odd = events(run.run_dir)[-1]
    assert odd.endswith("what=a\\x1b[2Jb\\n")
    assert events(run.run_dir, "-n", "1") == [odd]


def test_following_ends_with_the_run(runs: Runs) -> None:
    run = runs.start("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
    run.until("spawned")
    follower = Follower(runs)
    wait_for(lambda: "spawned" in follower.seen(), "the records so far")
    (runs.folder / "go").touch()
    assert follower.end() == (0, b"")
    run.wait()
    assert follower.seen() == run.order
    assert follower.seen()[-1] == "ended"


def test_following_an_ended_run_ends_at_once(runs: Runs) -> None:
    run = runs.run("true")
    assert len(events(run.run_dir, "-f", "-n", "1")) == 1
    assert len(events(run.run_dir, "-f", "-n", "0")) == 0


def test_following_ends_when_ftrun_is_killed(runs: Runs) -> None:
    run = runs.start(*python("import time; ft.beat(1); time.sleep(3600)"))
    run.until("first_beat")
    follower = Follower(runs, "-n", "1")
    wait_for(follower.seen, "the last record")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert follower.end() == (0, b"")


def test_ctrl_c_ends_following(runs: Runs) -> None:
    run = runs.start("sleep", "3600")
    run.until("spawned")
    follower = Follower(runs)
    wait_for(follower.seen, "the records so far")
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == (0, b"")


def test_reader_that_closes_the_pipe_is_no_error(runs: Runs) -> None:
    run = runs.run("true")
    events_file = run.run_dir / "events.jsonl"
    events_file.write_bytes(events_file.read_bytes() * 2000)
    command = " ".join([*FTCTL, "events", "--run-dir", str(run.run_dir)])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_full_disk_is_one_line(runs: Runs) -> None:
    run = runs.run("true")
    with open("/dev/full", "wb") as full:
        command = [*FTCTL, "events", "--run-dir", str(run.run_dir)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "ftctl: cannot write: No space left on device\n")
