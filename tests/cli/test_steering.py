"""`ftctl restart`, `stop`, `pause`, `resume`: a real ftrun is steered, and whoever cannot steer is told why."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from ftrun.messages import operator
from support.runs import HOUSE, Run, Runs, alive, need_pid1, python, wait_for

FTCTL = (sys.executable, str(HOUSE / "bin" / "ftctl"))
TRAIN = "import time\nfor step in range(10**6):\n ft.beat(step); time.sleep(0.01)"
SILENT = "import time\nft.beat(1)\ntime.sleep(3600)"


def ftctl(run: Run, *words: str, prefix: tuple[str, ...] = (), **more: object) -> subprocess.CompletedProcess[str]:
    command = [*prefix, *FTCTL, words[0], "--run-dir", str(run.run_dir), *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, **more)  # type: ignore[call-overload,no-any-return]


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout.strip()


def test_restart_costs_no_budget_and_is_written_down(runs: Runs) -> None:
    run = runs.start("--max-restarts", "1", *python(TRAIN))
    first = run.until("spawned")["pid"]
    for number in (2, 3):
        assert "started again" in said(ftctl(run, "restart"))
        record = run.until("restart", number - 1)
        assert (record["reason"], record["start_cnt"], record["consecutive"]) == ("manual", number, 0)
        run.until("first_beat", number)
    assert not alive(first)
    order = run.named("order")[0]
    assert (order["what"], order["ok"]) == ("restart", True)
    assert str(os.getuid()) in order["by"] or "root" in order["by"] or order["by"]
    assert "restart requested by" in run.stderr
    ftctl(run, "stop")
    run.wait()


def test_stop_ends_with_the_commands_own_code(runs: Runs) -> None:
    code = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nft.beat(1)\ntime.sleep(3600)"
    run = runs.start(*python(code))
    run.until("first_beat")
    said(ftctl(run, "stop"))
    assert run.wait() == 7
    assert run.named("ended")[0]["verdict"] == "stopped"


def test_stop_ends_what_ignores_sigterm_after_the_grace(runs: Runs) -> None:
    code = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nft.beat(1)\ntime.sleep(3600)"
    run = runs.start("--grace", "100ms", *python(code))
    run.until("first_beat")
    said(ftctl(run, "stop"))
    assert run.wait() == 137


def test_no_verdict_in_a_pause_and_one_after_it(runs: Runs) -> None:
    run = runs.start("--hang-timeout", "1s", "--max-restarts", "0", *python(SILENT))
    run.until("first_beat")
    assert said(ftctl(run, "pause")) == "no verdicts until it is resumed"
    run.until("paused")
    before = len(run.named("hang"))
    paused_at = run.named("paused")[0]["mono"]
    assert said(ftctl(run, "pause")).startswith("no verdicts")  # time passes, more than a second of it
    wait_for(lambda: _now() > paused_at + 2.5, "more than the limit")
    assert len(run.named("hang")) == before == 0
    assert run.process.poll() is None
    assert said(ftctl(run, "resume")) == "verdicts are on again"
    assert run.wait() == 195
    assert run.named("hang")[0]["mono"] > run.named("resumed")[0]["mono"]


def _now() -> float:
    import time

    return time.monotonic()


def test_a_pause_ends_by_itself(runs: Runs) -> None:
    run = runs.start("--hang-timeout", "1s", "--max-restarts", "0", *python(SILENT))
    run.until("first_beat")
    said(ftctl(run, "pause", "--for", "1500ms"))
    assert run.wait() == 195
    paused, resumed = run.named("paused")[-1], run.named("resumed")[-1]
    assert resumed["mono"] - paused["mono"] > 1.4  # a record is made a moment after what it tells


def test_the_client_of_the_docs(runs: Runs) -> None:
    run = runs.start(*python(TRAIN))
    run.until("first_beat")
    said(ftctl(run, "pause"))  # the channel is there
    client = (sys.executable, str(HOUSE / "docs" / "examples" / "steer.py"), str(run.run_dir))
    done = subprocess.run([*client, "resume"], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "verdicts are on again\n"), done.stderr
    done = subprocess.run([*client, "reboot"], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (1, "no such verb: 'reboot'\n"), done.stderr
    assert run.named("order")[-1]["by"] == "steer.py"
    said(ftctl(run, "stop"))
    run.wait()


def test_json(runs: Runs) -> None:
    run = runs.start(*python(TRAIN))
    run.until("first_beat")
    answer = {"ok": True, "why": "no verdicts until it is resumed", "run_dir": str(run.run_dir)}
    assert json.loads(said(ftctl(run, "pause", "--json"))) == answer
    said(ftctl(run, "stop"))
    run.wait()


def test_as_pid_1(runs: Runs) -> None:
    need_pid1()
    run = runs.start(*python(TRAIN), prefix=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
    run.until("first_beat")
    inside = wait_for(lambda: _child(run.pid), "ftrun inside")
    enter = ("nsenter", "--target", str(inside), "--pid", "--mount")
    assert "started again" in said(ftctl(run, "restart", prefix=enter))
    run.until("restart")
    stopped = ftctl(run, "stop", prefix=enter)
    assert stopped.stdout == "the command is being stopped\n", stopped.stderr
    assert stopped.returncode in (0, -signal.SIGKILL), "it is of the container that ends, and may end with it"
    assert run.wait() == 143


def _child(pid: int) -> int | None:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(words[0]) if words else None


def test_a_messenger_that_is_killed_comes_again_and_the_job_does_not_notice(runs: Runs) -> None:
    run = runs.start(*python(TRAIN))
    run.until("first_beat")
    said(ftctl(run, "pause"))
    os.kill(int(wait_for(lambda: run.helper("messenger"), "a messenger")), signal.SIGKILL)
    assert said(ftctl(run, "resume")) == "verdicts are on again"
    assert len(run.named("spawned")) == 1
    said(ftctl(run, "stop"))
    run.wait()


@pytest.mark.parametrize("how", ["at its birth", "with words that it never read"])
def test_a_messenger_that_dies_with_something_unread_is_no_matter(runs: Runs, how: str) -> None:
    """The other end of a pair of sockets says so by an error, where a pipe would just end."""
    run = runs.start("--restart-on", "failure", "--backoff", "off", *python(TRAIN))
    messenger = int(wait_for(lambda: run.helper("messenger"), "a messenger"))
    if how != "at its birth":
        run.until("first_beat")
        said(ftctl(run, "pause"))
        os.kill(messenger, signal.SIGSTOP)
        os.kill(run.until("spawned")["pid"], signal.SIGKILL)  # the next attempt is told to it
        run.until("restart")
    os.kill(messenger, signal.SIGKILL)
    again = "messenger: it exited; ftrun restarts it; the command is not affected"
    wait_for(lambda: again in run.stderr, "that the messenger ended")
    assert {problem["helper"] for problem in run.named("problem")} == {"messenger"}
    assert said(ftctl(run, "restart")) == "the command is being stopped and will be started again"
    run.until("restart", 1 if how == "at its birth" else 2)
    said(ftctl(run, "stop"))
    assert run.wait() == 143


def test_an_order_that_was_given_up_is_not_obeyed(runs: Runs) -> None:
    """PID 1 was stopped for longer than whoever asked would wait."""
    run = runs.start(*python(TRAIN))
    run.until("first_beat")
    said(ftctl(run, "pause"))
    os.kill(run.pid, signal.SIGSTOP)
    try:
        done = ftctl(run, "restart")
    finally:
        os.kill(run.pid, signal.SIGCONT)
    assert (done.returncode, done.stderr) == (1, "ftctl: restart refused: ftrun has not replied in time\n")
    refused = [r for r in wait_for(lambda: run.named("order")[1:], "the refusal") if r["what"] == "restart"]
    assert [(r["ok"], r["why"]) for r in refused] == [(False, "the request arrived too late")]
    assert not run.named("restart")
    said(ftctl(run, "stop"))
    run.wait()


def test_who_asks_while_the_end_is_worked_on_is_answered(runs: Runs) -> None:
    run = runs.start("--on-exit", "until test -e go; do sleep 0.1; done", *python("import time; time.sleep(1.5)"))
    run.until("ended")
    assert said(ftctl(run, "stop")) == "the job is already ending"
    assert run.named("order")[0]["ok"]
    (runs.folder / "go").touch()
    assert run.wait() == 0


def test_a_stopped_messenger_is_one_line(runs: Runs) -> None:
    run = runs.start(*python(TRAIN))
    run.until("first_beat")
    said(ftctl(run, "pause"))
    messenger = int(wait_for(lambda: run.helper("messenger"), "a messenger"))
    os.kill(run.pid, signal.SIGSTOP)  # or it would continue the messenger at once
    os.kill(messenger, signal.SIGSTOP)
    try:
        patience = "import ftrun.cli.steering as s; s.PATIENCE = 0.5; from ftrun.cli.ctl import main; main()"
        command = [sys.executable, "-c", patience, "resume", "--run-dir", str(run.run_dir)]
        paths = f"{HOUSE}/supervisor:{HOUSE}/hooks"
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=90, env=os.environ | {"PYTHONPATH": paths}, check=False
        )
        late = "ftrun does not answer; the command has expired and will not be carried out"
        assert (done.returncode, done.stderr) == (1, f"ftctl: {run.run_dir}: {late}\n")
    finally:
        os.kill(run.pid, signal.SIGCONT)
        os.kill(messenger, signal.SIGCONT)
    assert said(ftctl(run, "pause"))  # it is heard again, after the other
    assert not run.named("resumed")
    os.kill(run.pid, signal.SIGTERM)
    run.wait()


def test_without_a_socket_ftrun_runs_on_and_says_so(runs: Runs) -> None:
    (runs.run_dir / operator.SOCKET).mkdir(parents=True)
    run = runs.start(*python(TRAIN))
    run.until("first_beat")
    problem = run.until("problem")
    assert problem["helper"] == "messenger"
    wait_for(lambda: "ftctl.sock" in run.stderr, "the line on the terminal")
    done = ftctl(run, "restart")
    assert done.returncode == 1
    assert "ftctl.sock is not a socket" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert len(run.named("spawned")) == 1
    os.kill(run.pid, signal.SIGTERM)
    run.wait()


def test_nobody_to_steer(runs: Runs, tmp_path: Path) -> None:
    run = runs.run("true")
    done = ftctl(run, "stop")
    assert (done.returncode, done.stderr) == (1, f"ftctl: no ftrun runs in {run.run_dir}\n")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(run.run_dir / operator.SOCKET))
    done = ftctl(run, "stop")
    assert (done.returncode, done.stderr) == (1, f"ftctl: no ftrun runs in {run.run_dir}\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run([*FTCTL, "stop", "--run-dir", empty], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [("pause", "--for", "soon"), ("pause", "--for", "0s"), ("restart", "now")])
def test_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run([*FTCTL, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_another_user_is_refused(runs: Runs) -> None:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user")
    run = runs.start(*python(TRAIN))
    run.until("first_beat")
    said(ftctl(run, "pause"))
    for folder in (run.run_dir, *run.run_dir.parents):  # all may look into the folder, nobody else may use the socket
        if folder.is_dir() and str(folder).startswith("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    for name in ("events.jsonl", "state.json"):
        (run.run_dir / name).chmod(0o644)
    done = ftctl(run, "resume", prefix=("setpriv", "--reuid", "65534", "--clear-groups"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not run.named("resumed")
    said(ftctl(run, "stop"))
    run.wait()


def test_another_version_is_told_so(runs: Runs) -> None:
    run = runs.start(*python(TRAIN))
    run.until("first_beat")
    said(ftctl(run, "pause"))
    with zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.linger = 0
        client.connect(f"ipc://{run.run_dir}/{operator.SOCKET}")
        client.send(b'{"schema": 2, "id": "x", "verb": "stop"}')
        assert client.poll(60_000)
        found = json.loads(client.recv())
    assert found["ok"] is False
    assert "schema 2" in found["why"]
    assert run.process.poll() is None
    said(ftctl(run, "stop"))
    run.wait()
