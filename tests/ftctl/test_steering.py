"""`ftctl restart`, `stop`, `pause`, `resume` with a real ftrun, and one line where they are not possible."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from ftrun.messages import operator
from support.runs import (
    FTCTL,
    HOUSE,
    PID1,
    Run,
    Runs,
    alive,
    children,
    helpers,
    need_pid1,
    permitted,
    python,
    state_of,
    wait_for,
)

TRAIN = "import time\nfor step in range(10**6):\n ft.beat(step); time.sleep(0.01)"
# It trains until a pause is on record, however late, and then hangs.
PAUSED = """
import os, time
step = 0
while '"event": "paused"' not in open(os.environ["FTRUN_RUN_DIR"] + "/events.jsonl").read():
    ft.beat(step := step + 1)
    time.sleep(0.01)
time.sleep(3600)
"""


def reply_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout.strip()


def training(runs: Runs) -> Run:
    """A run whose command trains for ever."""
    run = runs.start(*python(TRAIN))
    run.until("first_beat")
    return run


def stop(run: Run) -> None:
    reply_of(run.ftctl("stop"))
    run.wait()


def written(pid: int, steps: Path) -> int:
    """How many bytes the messenger has written, without the lines of steps, of which one may follow a command's end."""
    found = int(Path(f"/proc/{pid}/io").read_text().split("wchar: ")[1].split()[0])
    return found - (steps.stat().st_size if steps.exists() else 0)


def test_the_end_of_an_attempt_that_is_restarted_at_once_is_not_that_of_the_next(runs: Runs) -> None:
    """ftrun finds both at the same time: the command has been killed, and an operator asks for a restart."""
    run = runs.start("--restart-on", "hang,failure", "--max-restarts", "1", "--grace", "off", *python(TRAIN))
    run.until("first_beat")
    wait_for((run.run_dir / operator.SOCKET).exists, "the messenger listens")
    command, messenger = run.named("spawned")[0]["pid"], helpers(run.pid)["messenger"]
    os.kill(run.pid, signal.SIGSTOP)
    wait_for(lambda: state_of(run.pid) == "T", "it is stopped")
    os.kill(command, signal.SIGABRT)
    wait_for(lambda: state_of(command) == "Z", "the end of the command")
    steps = run.run_dir / "steps.jsonl"
    before = written(messenger, steps)
    with subprocess.Popen([*FTCTL, "restart", "--run-dir", str(run.run_dir)], stdout=subprocess.PIPE) as asking:
        # A request is a line of JSON; what the messenger writes to wake its own threads is a few bytes.
        wait_for(lambda: written(messenger, steps) > before + 60, "the request is passed on to ftrun")
        os.kill(run.pid, signal.SIGCONT)
        asking.communicate(timeout=90)
    run.until("first_beat", 2)
    assert [record["attempt"] for record in run.named("exited")] == [1]
    assert len(run.named("restart")) == 1
    stop(run)


def test_restart_uses_no_budget_and_is_recorded(runs: Runs) -> None:
    run = runs.start("--max-restarts", "1", *python(TRAIN))
    first = run.until("spawned")["pid"]
    assert "started again" in reply_of(run.ftctl("restart"))
    record = run.until("restart")
    assert (record["reason"], record["start_cnt"], record["consecutive"]) == ("manual", 2, 0)
    run.until("first_beat", 2)
    assert not alive(first)
    order = run.named("order")[0]
    assert (order["what"], order["ok"]) == ("restart", True)
    assert order["by"]
    assert "restart requested by" in run.stderr
    run.ftctl("stop")
    run.wait()


def test_stop_ends_with_the_code_of_the_command(runs: Runs) -> None:
    code = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nft.beat(1)\ntime.sleep(3600)"
    run = runs.start(*python(code))
    run.until("first_beat")
    reply_of(run.ftctl("stop"))
    assert run.wait() == 7
    assert run.named("ended")[0]["verdict"] == "stopped"


def test_pause_suspends_verdicts_until_resume(runs: Runs) -> None:
    run = runs.start("--hang-timeout", "2s", "--max-restarts", "0", *python(PAUSED))
    run.until("first_beat")
    assert reply_of(run.ftctl("pause")) == "no verdicts until it is resumed"
    run.until("paused")
    before = len(run.named("hang"))
    paused_at = run.named("paused")[0]["mono"]
    assert reply_of(run.ftctl("pause")).startswith("no verdicts")  # time passes, more than the limit
    wait_for(lambda: time.monotonic() > paused_at + 3, "more than the limit")
    assert len(run.named("hang")) == before == 0
    assert run.process.poll() is None
    assert reply_of(run.ftctl("resume")) == "verdicts are on again"
    assert run.wait() == 195
    assert run.named("hang")[0]["mono"] > run.named("resumed")[0]["mono"]


def test_replies_to_ftctl_to_the_client_of_the_docs_and_to_another_version(runs: Runs) -> None:
    run = training(runs)
    reply = {"ok": True, "why": "no verdicts until it is resumed", "run_dir": str(run.run_dir)}
    assert json.loads(reply_of(run.ftctl("pause", "--json"))) == reply
    client = (sys.executable, str(HOUSE / "docs" / "examples" / "steer.py"), str(run.run_dir))
    done = subprocess.run([*client, "resume"], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "verdicts are on again\n"), done.stderr
    done = subprocess.run([*client, "reboot"], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (1, "`verb`: none of restart, stop, pause, resume, ping, read\n")
    assert run.named("order")[-1]["by"] == "steer.py"
    with zmq.Context() as context, context.socket(zmq.REQ) as client_of_schema_2:
        client_of_schema_2.linger = 0
        client_of_schema_2.connect(f"ipc://{run.run_dir}/{operator.SOCKET}")
        client_of_schema_2.send(b'{"schema": 2, "id": "x", "verb": "stop"}')
        assert client_of_schema_2.poll(60_000)
        found = json.loads(client_of_schema_2.recv())
    assert found["ok"] is False
    assert "schema 2" in found["why"]
    assert run.process.poll() is None
    stop(run)


def test_requests_to_pid_1_of_a_container(runs: Runs) -> None:
    need_pid1()
    run = runs.start(*python(TRAIN), prefix=PID1)
    run.until("first_beat")
    (inside,) = wait_for(lambda: children(run.pid), "ftrun inside")
    enter = ("nsenter", "--target", str(inside), "--pid", "--mount")
    assert "started again" in reply_of(run.ftctl("restart", prefix=enter))
    run.until("restart")
    stopped = run.ftctl("stop", prefix=enter)
    if stopped.returncode != -signal.SIGKILL:  # it is a process of the container that ends, and may end with it
        assert reply_of(stopped) == "the command is being stopped"
    assert run.wait() == 143


def test_messenger_that_dies_with_unread_messages_is_restarted_and_answers(runs: Runs) -> None:
    """A socket pair with unread data ends with an error, where a pipe would just end."""
    run = runs.start("--restart-on", "failure", "--backoff", "off", *python(TRAIN))
    messenger = int(wait_for(lambda: run.helper("messenger"), "a messenger"))
    run.until("first_beat")
    reply_of(run.ftctl("pause"))
    os.kill(messenger, signal.SIGSTOP)
    os.kill(run.until("spawned")["pid"], signal.SIGKILL)  # the next attempt is sent to it
    run.until("restart")
    os.kill(messenger, signal.SIGKILL)
    again = "messenger: it exited; ftrun restarts it; the command is not affected"
    wait_for(lambda: again in run.stderr, "that the messenger ended")
    assert {problem["helper"] for problem in run.named("problem")} == {"messenger"}
    assert reply_of(run.ftctl("restart")) == "the command is being stopped and will be started again"
    run.until("restart", 2)
    reply_of(run.ftctl("stop"))
    assert run.wait() == 143


def test_a_request_of_another_time_namespace_is_refused_with_the_reason(runs: Runs) -> None:
    elsewhere = ("unshare", "--time", "--monotonic=-60")
    if not permitted(*elsewhere):
        pytest.skip("unshare --time is not permitted here")
    run = training(runs)
    done = run.ftctl("stop", prefix=elsewhere)
    why = "the request expired before it was read, because the clock of ftrun differs (a time namespace)"
    assert (done.returncode, done.stderr) == (1, f"ftctl: stop refused: {why}; run ftctl in its container\n")
    reply_of(run.ftctl("stop"))
    run.wait()


def test_a_request_that_arrives_too_late_is_refused(runs: Runs) -> None:
    """First PID 1 is stopped for longer than the request is valid, then the messenger."""
    run = training(runs)
    reply_of(run.ftctl("pause"))
    messenger = int(wait_for(lambda: run.helper("messenger"), "a messenger"))
    expired = f"ftctl: {run.run_dir}: ftrun does not answer; the command has expired and will not be carried out"
    stopped = f"ftrun itself is stopped: `kill -CONT {run.pid}` continues it\n"

    def impatient(verb: str) -> tuple[int, str]:
        code = "import ftctl.orders as s; s.PATIENCE = 0.5; from ftctl.main import main; main()"
        command = [sys.executable, "-c", code, verb, "--run-dir", str(run.run_dir)]
        paths = os.environ | {"PYTHONPATH": f"{HOUSE}/supervisor:{HOUSE}/hooks"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=paths, check=False)
        return done.returncode, done.stderr

    os.kill(run.pid, signal.SIGSTOP)
    try:
        why = f"ftctl: restart refused: ftrun has not replied in time; {stopped}"
        assert impatient("restart") == (1, why)
    finally:
        os.kill(run.pid, signal.SIGCONT)
    refused = [r for r in wait_for(lambda: run.named("order")[1:], "the refusal") if r["what"] == "restart"]
    assert [(r["ok"], r["why"]) for r in refused] == [(False, "the request arrived too late")]
    assert not run.named("restart")
    os.kill(run.pid, signal.SIGSTOP)  # or it would continue the messenger at once
    os.kill(messenger, signal.SIGSTOP)
    try:
        assert impatient("resume") == (1, f"{expired}; {stopped}")
    finally:
        os.kill(run.pid, signal.SIGCONT)
        os.kill(messenger, signal.SIGCONT)
    assert reply_of(run.ftctl("pause"))  # it is answered again, after the other
    assert not run.named("resumed")
    stop(run)


def test_request_during_the_exit_hooks_is_answered(runs: Runs) -> None:
    run = runs.start("--on-exit", "until test -e go; do sleep 0.1; done", *python("import time; time.sleep(1.5)"))
    run.until("ended")
    assert reply_of(run.ftctl("stop")) == "the job is already ending"
    assert run.named("order")[0]["ok"]
    (runs.folder / "go").touch()
    assert run.wait() == 0


def test_missing_socket_is_one_problem(runs: Runs) -> None:
    (runs.run_dir / operator.SOCKET).mkdir(parents=True)
    run = training(runs)
    problem = run.until("problem")
    assert problem["helper"] == "messenger"
    wait_for(lambda: "ftctl.sock" in run.stderr, "the line on the terminal")
    done = run.ftctl("restart")
    assert done.returncode == 1
    assert "ftctl.sock is not a socket" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert len(run.named("spawned")) == 1
    os.kill(run.pid, signal.SIGTERM)
    run.wait()


def test_verb_without_a_running_ftrun_is_one_line(runs: Runs, tmp_path: Path) -> None:
    run = runs.run("true")
    done = run.ftctl("stop")
    assert (done.returncode, done.stderr) == (1, f"ftctl: no ftrun runs in {run.run_dir}\n")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(run.run_dir / operator.SOCKET))
    done = run.ftctl("stop")
    assert (done.returncode, done.stderr) == (1, f"ftctl: no ftrun runs in {run.run_dir}\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run([*FTCTL, "stop", "--run-dir", empty], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_another_user_is_refused(runs: Runs) -> None:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user")
    run = training(runs)
    reply_of(run.ftctl("pause"))
    for folder in (run.run_dir, *run.run_dir.parents):  # all may look into the folder, nobody else may use the socket
        if folder.is_dir() and str(folder).startswith("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    for name in ("events.jsonl", "state.json"):
        (run.run_dir / name).chmod(0o644)
    done = run.ftctl("resume", prefix=("setpriv", "--reuid", "65534", "--clear-groups"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not run.named("resumed")
    stop(run)
