"""`ftctl status` beside a real ftrun, and without a readable one."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.runs import (
    FTCTL,
    FTHANG,
    HOUSE,
    PID1,
    Run,
    Runs,
    children,
    ftctl,
    need_pid1,
    python,
    state_of,
    stop_inside,
    wait_for,
)

HANG = ("--hang-timeout", "500ms", "--grace", "off", "--max-restarts", "1")


def status(run: Run) -> dict[str, Any]:
    done = run.ftctl("status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*words: str, **environment: str) -> str:
    done = ftctl(*words, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ftctl: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_status_of_a_running_and_of_a_stopped_run(runs: Runs) -> None:
    code = "import time\nfor n in range(3): ft.beat(n)\nft.checkpoint(2, '/c/2')\ntime.sleep(3600)"
    run = runs.start("--hang-timeout", "1h", *python(code), RANK="5")
    run.until("progress")
    wait_for(lambda: status(run)["checkpoint_step"] == 2, "the checkpoint to be seen")
    found = status(run)
    assert (found["schema"], found["alive"], found["phase"], found["attempt"]) == (1, True, "running", 1)
    assert (found["step"], found["checkpoint"]) == (2, "/c/2")
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["pid"], rank["state"]) == (5, found["pid"], "moving")
    assert found["stalest"] == rank
    assert rank["limit"] == 3600
    assert 0 <= rank["age"] < 60
    assert found["next"].startswith("Rank 5 would be suspected in ")
    assert found["next"].endswith("(timeout 60m, set by --hang-timeout).")
    assert found["left"] == {"hang": 3, "fault": 3, "failure": 0}
    text = run.ftctl("status").stdout
    assert text.startswith("running for ")
    assert "\x1b" not in text, "standard output is not a terminal"
    os.kill(run.pid, signal.SIGTERM)
    run.wait()
    after = status(run)
    assert (after["alive"], after["phase"], after["verdict"]) == (False, "done", "stopped")
    assert after["trouble"] is None


def test_the_exit_code_is_the_same_if_nobody_reads_the_text(runs: Runs) -> None:
    run = runs.run("sh", "-c", "exit 3")
    for words in ((), ("--json",), ("--all",), ("--all", "--json")):
        reader, writer = os.pipe()
        os.close(reader)
        command = [*FTCTL, "status", "--exit-code", *words, "--run-dir", str(run.run_dir)]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(writer)
        assert (done.returncode, done.stderr) == (4, "")


def test_status_after_a_verdict_names_the_action_of_the_scheduler(runs: Runs) -> None:
    run = runs.ends(195, *HANG, *python("import time; ft.beat(1); time.sleep(3600)"))
    found = status(run)
    assert (found["verdict"], found["exit_code"], found["restarts"]["hang"]) == ("hang-limit", 195, 1)
    assert found["trouble"]["cause"] == "hang"
    assert Path(found["trouble"]["report"]).is_file()
    assert found["goodput"] < 0.9
    assert found["lost"]["hang"] > 0.9
    text = ftctl("status", FTRUN_RUN_DIR=str(run.run_dir)).stdout
    assert text.startswith("ended with 195 (hang-limit) in attempt 2\n")
    assert "scheduler   should reschedule" in text


def test_status_of_a_killed_ftrun_is_cut_off(runs: Runs) -> None:
    run = runs.start(*FTHANG, "sleep", "--after", "2")
    run.until("first_beat")
    run.kill_ftrun()
    found = status(run)
    assert (found["alive"], found["phase"], found["verdict"]) == (False, "cut off", None)
    assert "ftrun is gone and left no verdict" in run.ftctl("status").stdout


def test_the_run_in_the_temp_folder_is_found_as_from_docker_exec(runs: Runs) -> None:
    run = runs.spawned("sleep", "3600", run_dir=runs.folder / f"ftrun-{os.getuid()}-1-abc")
    (runs.folder / f"ftrun-{os.getuid()}-2-gone").mkdir()
    (runs.folder / f"ftrun-{os.getuid()}-2-gone" / "events.jsonl").touch()
    done = ftctl("status", "--json", TMPDIR=str(runs.folder))
    assert json.loads(done.stdout)["run_dir"] == str(run.run_dir)


def test_a_run_in_another_pid_namespace_is_alive_by_its_lock(runs: Runs) -> None:
    need_pid1()
    run = runs.start(*python("import time; ft.beat(1); time.sleep(3600)"), prefix=PID1)
    run.until("first_beat")
    found = status(run)
    assert (found["alive"], found["phase"]) == (True, "running")
    assert [rank["state"] for rank in found["ranks"]] == ["moving"], "its pid says nothing here"
    stop_inside(run)


def test_of_phases_the_running_one_is_shown(runs: Runs) -> None:
    file = runs.folder / "phases.toml"
    tables = [f'[[phase]]\nname = "{name}"\ncommand = {json.dumps(words)}\n' for name, words in PHASES]
    file.write_text("".join(tables))
    run = runs.start("--config", str(file))
    found = wait_for(lambda: (f := run.ftctl("status", "--json")).returncode == 0 and f, "a phase")
    wait_for(lambda: status(run)["part"] == "second", f"the second phase, after {found.stdout}")
    assert status(run)["command"] == ["sleep", "3600"]


PHASES = (("first", ["true"]), ("second", ["sleep", "3600"]))


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_wrong_run_dir_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no such folder" in refused("status", "--run-dir", str(tmp_path / "none"))
    assert "it has no events.jsonl" in refused("status", FTRUN_RUN_DIR=str(tmp_path / "empty"))
    for verb in ("events", "report", "stacks"):
        assert "it has no events.jsonl" in refused(verb, "--run-dir", str(tmp_path / "empty"))


AS_NOBODY = """
import os, sys
sys.path[:0] = sys.argv[1].split(":")
import ftctl.main as ctl, ftctl.verbs.status, ftctl.verbs.events, ftctl.verbs.report
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.argv = ["ftctl", *sys.argv[2:]]
ctl.main()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_run_dir_of_another_user_is_one_line() -> None:
    path = ":".join(str(HOUSE / part) for part in ("supervisor", "hooks"))
    # Not below the folders of pytest, which each pytest that starts closes to other users.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        run_dir = Path(folder, "mine")
        run_dir.mkdir(0o700)
        (run_dir / "events.jsonl").touch(0o600)
        for verb in ("status", "events", "report"):
            words = [sys.executable, "-c", AS_NOBODY, path, verb, "--run-dir", str(run_dir)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == f"ftctl: {run_dir}: not permitted: it belongs to user 0\n"


OTHER_USER = 54321
# The modules are loaded before, since that user may not be able to read them.
AS_OTHER_USER = f"""
import os, sys
sys.path[:0] = {[str(HOUSE / "supervisor"), str(HOUSE / "hooks")]!r}
from ftrun.records.files import rundir
os.setgroups([]); os.setgid({OTHER_USER}); os.setuid({OTHER_USER})
try:
    print(rundir.find(None))
except rundir.NoRunDir as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("own", ["an old run", "its ftrun is not PID 1"])
def test_another_user_is_told_whose_ftrun_runs_in_the_container(runs: Runs, own: str) -> None:
    need_pid1()
    inside = ("sh", "-c", '"$@"; exit', "sh") if own.startswith("its") else ()
    run = runs.spawned("sleep", "600", prefix=(*PID1, *inside))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        if own == "an old run":
            old = Path(folder, f"ftrun-{OTHER_USER}-9-old")
            old.mkdir()
            (old / "events.jsonl").touch()
            for path in (old, old / "events.jsonl"):
                os.chown(path, OTHER_USER, OTHER_USER)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FTRUN_")} | {"TMPDIR": folder}
        within = ("nsenter", "--target", str(children(run.pid)[0]), "--pid", "--mount")
        looked = subprocess.run(
            [*within, sys.executable, "-c", AS_OTHER_USER], capture_output=True, text=True, env=environment, timeout=60
        )
    number = 2 if inside else 1
    assert looked.stdout.startswith(
        f"no ftrun of yours is running, but process {number} is ftrun of user 0: run ftctl as that user or as root, "
        "or name a run dir with --run-dir"
    ), looked
    assert ("ftrun-54321-9-old" in looked.stdout) == (own == "an old run")
    if inside:
        (shell,) = children(run.pid)
        (ftrun,) = children(shell)
        os.kill(ftrun, signal.SIGTERM)
        run.wait()
    else:
        stop_inside(run)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("verb", ["status", "pause"])
def test_root_without_sys_ptrace_is_told_whose_ftrun_runs_in_the_container(verb: str, tmp_path: Path) -> None:
    """As `docker exec -u 0` into a container with a user: root has not the capability to see whose run dir it is."""
    need_pid1()
    named = ("setpriv", f"--reuid={OTHER_USER}", "--clear-groups", "bash", "-c", "exec -a ftrun sleep 600")
    with subprocess.Popen([*PID1, *named]) as above:
        try:
            (first,) = wait_for(lambda: children(above.pid), "PID 1")
            wait_for(lambda: Path(f"/proc/{first}/cmdline").read_bytes().startswith(b"ftrun\0"), "that it is an ftrun")
            within = ("nsenter", "--target", str(first), "--pid", "--mount", "setpriv", "--bounding-set=-sys_ptrace")
            environment = {k: v for k, v in os.environ.items() if not k.startswith("FTRUN_")}
            environment |= {"TMPDIR": str(tmp_path)}
            words = [*within, *FTCTL, verb]
            done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)
        finally:
            for pid in (*children(above.pid), above.pid):  # the end of its PID 1 ends the namespace
                os.kill(pid, signal.SIGKILL)
    assert done.returncode == 1
    assert done.stderr == (
        f"ftctl: no ftrun of yours is running, but process 1 is ftrun of user {OTHER_USER}: run ftctl as that user, or "
        "name a run dir with --run-dir\n"
    )


def test_an_ftrun_that_a_signal_has_stopped_is_not_called_healthy(runs: Runs) -> None:
    run = runs.start(*python("import time; ft.beat(1); time.sleep(3600)"))
    run.until("first_beat")
    wait_for((run.run_dir / "ftctl.sock").exists, "the control channel")
    os.kill(run.pid, signal.SIGSTOP)
    wait_for(lambda: state_of(run.pid) == "T", "it is stopped")
    done = run.ftctl("status", "--exit-code")
    assert done.returncode == 3
    assert done.stdout.startswith(f"FTRUN ITSELF IS STOPPED (process {run.pid}) AND WATCHES NOTHING: running")
    assert f"continue ftrun: `kill -CONT {run.pid}`" in done.stdout
    os.kill(run.pid, signal.SIGCONT)
    wait_for(lambda: state_of(run.pid) != "T", "it goes on")
    assert run.ftctl("status", "--exit-code").returncode == 0
    run.process.terminate()
    run.wait()
