"""How `ftctl` and `ftrun` answer: errors, help, pipes, and whose runs a command may reach."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.records.files import rundir
from support.runs import FTCTL, FTRUN, Runs, ftctl, wait_for

OTHER = 65534  # a user that is not root


# --- errors and help --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["stauts"], "no such verb: stauts (did you mean 'status'?)"),
        (["events", "-n", "foo"], "Invalid value for '-n' / '--last': 'foo' is not a whole number"),
        (["events", "-n", "-1"], "Invalid value for '-n' / '--last': -1 is less than 0"),
        (["serve", "--port", "70000"], "Invalid value for '--port': 70000 is more than 65535"),
    ],
)
def test_a_mistake_is_explained_in_one_line(words: list[str], line: str) -> None:
    done = ftctl(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"ftctl: {line}\n")


def test_an_error_is_json_where_json_was_asked_for() -> None:
    done = ftctl("status", "--json", "--run-dir", "/no/where")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout) == {"ok": False, "why": "/no/where: no such folder"}
    done = ftctl("events", "--json", "-n", "foo")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (2, False)


@pytest.mark.parametrize("program", [FTRUN, (*FTCTL, "status")])
def test_h_is_help(program: tuple[str, ...]) -> None:
    short, long = (subprocess.run([*program, word], capture_output=True, timeout=120) for word in ("-h", "--help"))
    assert (short.returncode, short.stderr) == (0, b"")
    assert short.stdout == long.stdout
    assert b"-h, --help" in short.stdout


def test_the_run_dir_may_come_before_the_verb(runs: Runs) -> None:
    run = runs.run("true")
    first = ftctl("--run-dir", str(run.run_dir), "status", "--json")
    assert (first.returncode, first.stderr) == (0, "")
    assert json.loads(first.stdout)["run_dir"] == str(run.run_dir)
    assert "no such folder" in ftctl("--run-dir", str(run.run_dir), "status", "--run-dir", "/no/where").stderr


# --- whose run --------------------------------------------------------------------------------------------------------


@pytest.fixture
def of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The only running ftrun: that of another user, with another temp folder."""
    if os.getuid() != 0:
        pytest.skip("only root can reach the run of another user")
    monkeypatch.delenv("FTRUN_RUN_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = subprocess.Popen(["setpriv", f"--reuid={OTHER}", "--clear-groups", "sleep", "3600"])
    try:
        wait_for(lambda: os.stat(f"/proc/{process.pid}").st_uid == OTHER, "that it is another user's process")
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        (folder / "events.jsonl").touch()
        monkeypatch.setattr(rundir, "running", lambda: {str(folder): process.pid})
        yield str(folder)
    finally:
        process.kill()
        process.wait()


def test_a_command_reaches_another_users_run_only_by_name(of_another_user: str) -> None:
    assert rundir.find(None) == of_another_user, "what only reads may choose it"
    with pytest.raises(rundir.NoRunDir, match="only of other users"):
        rundir.find(None, own=True)
    assert rundir.find(of_another_user, own=True) == of_another_user


# --- lines of ftrun ---------------------------------------------------------------------------------------------------


def test_who_reads_a_line_finds_its_record(runs: Runs) -> None:
    """With -v each record is a line: at that moment it is in the file."""
    command = [*FTRUN, "-v", "--run-dir", str(runs.run_dir), "sh", "-c", "exit 3"]
    missing, seen = [], []
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=runs.environment) as ftrun:
        assert ftrun.stderr is not None
        while chunk := os.read(ftrun.stderr.fileno(), 65536):
            written = (runs.run_dir / "events.jsonl").read_text()
            for line in chunk.decode().splitlines():
                words = line.split()
                if len(words) > 2 and words[0] == "[ftrun]" and words[1].endswith("Z"):
                    seen.append(words[2])
                    missing += [] if f'"{words[1]}"' in written else [line]
    assert ftrun.returncode == 3
    assert not missing
    assert {"started", "spawned", "exited", "ended"} <= set(seen)


def test_a_run_dir_that_is_deleted_is_called_so(runs: Runs) -> None:
    restarting = ("--restart-on", "failure", "--backoff", "off")
    run = runs.start(*restarting, "sh", "-c", "[ -e again ] && exec sleep 3600; touch again; exit 3")
    run.until("spawned", 2)

    def is_deleted() -> bool:
        shutil.rmtree(run.run_dir, ignore_errors=True)  # ftrun may create a file there meanwhile
        return not run.run_dir.exists()

    wait_for(is_deleted, "the end of the folder")
    done = run.ftctl("status")
    assert done.returncode == 1
    assert f"was deleted while its ftrun, process {run.pid}, runs" in done.stderr
    run.process.terminate()
    run.wait()
    assert run.whole_stderr.splitlines()[-1].endswith(f"records: {run.run_dir}, which was deleted")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    (tmp_path / "output.log").symlink_to("nothing")
    done = ftctl("logs", "--run-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ftctl: {tmp_path}/output.log: No such file or directory\n"


def test_json_is_understood_after_the_verb_alone() -> None:
    done = ftctl("--json", "status")
    assert (done.returncode, json.loads(done.stdout)) == (2, {"ok": False, "why": "--json comes after the verb"})


def test_a_choice_that_is_missing_is_one_line() -> None:
    done = ftctl("completion")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "\\" not in done.stderr
    assert "bash, zsh" in done.stderr


def test_an_empty_run_dir_does_not_name_another_run() -> None:
    for words in (("status", "--run-dir", ""), ("--run-dir", "", "status")):
        done = ftctl(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "ftctl: Invalid value for '--run-dir': it is empty\n"
