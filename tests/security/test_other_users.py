"""A hostile process of another user in the same container has no effect on ftrun."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.messages import operator
from support.hostile import needs_root, nobody
from support.hostile import shared as shared
from support.ports import free_port
from support.runs import HOUSE, PID1, Runs, descendants, need_pid1, python, wait_for
from support.runs import runs as runs

pytestmark = needs_root
ATTEMPTS = """
pids, folder, beats = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
def tried(what, call):
    try:
        call()
    except OSError:
        return
    print(what)
for pid in pids:
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        tried(f"signal {number}", lambda: os.kill(pid, number))
    for name in ("environ", "mem", "maps", "fd/0", "cwd/.", "root/.", "stack", "io", "syscall"):
        tried(name, lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
    tried("fd", lambda: os.listdir(f"/proc/{pid}/fd"))
    if libc.ptrace(16, pid, 0, 0) == 0: print("ptrace")
    tried("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    tried("affinity", lambda: os.sched_setaffinity(pid, {0}))
for path in (folder, beats):
    tried("list", lambda: os.listdir(path))
    tried("make", lambda: os.open(f"{path}/theirs", os.O_WRONLY | os.O_CREAT))
    for name in ("beats", "touch", "bell", "events.jsonl", "state.json", "run.log", "ftctl.sock", "records.sock"):
        for flags in (os.O_RDONLY, os.O_WRONLY):
            tried(name, lambda: os.open(f"{path}/{name}", flags | os.O_NONBLOCK))
        if path != beats: tried(f"stat {name}", lambda: os.stat(f"{path}/{name}"))
        tried(f"remove {name}", lambda: os.unlink(f"{path}/{name}"))
    for name in ("ftctl.sock", "records.sock"):
        tried(f"connect {name}", lambda: socket.socket(socket.AF_UNIX).connect(f"{path}/{name}"))
    tried("move", lambda: os.rename(path, path + ".theirs"))
    tried("remove", lambda: os.rmdir(path))
print("done")
"""


def test_another_user_reaches_neither_processes_nor_files(runs: Runs) -> None:
    """The run dir is in a temp folder that all may write to, as by default."""
    run_dir = Path("/tmp") / f"ftrun-{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        run = runs.start(
            *python(
                "import os, time\nft.beat(1); print(os.environ['FTRUN_BEAT_DIR'], flush=True)\n"
                "while True: time.sleep(0.05); ft.beat()"
            ),
            run_dir=run_dir,
        )
        run.until("first_beat")
        wait_for((run_dir / "ftctl.sock").exists, "the control channel")
        beats = wait_for(lambda: run.stdout.strip(), "the beat folder")
        pids = [run.pid, *descendants(run.pid)]
        assert len(pids) >= 3  # itself, the command, a helper
        assert nobody(ATTEMPTS, json.dumps(pids), run_dir, beats) == "done\n"
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait() == 143
    finally:
        runs.end()
        for name in run_dir.glob("*"):
            name.unlink()
        run_dir.rmdir()


def test_a_socket_in_an_open_folder_is_only_for_its_user(runs: Runs, shared: Path) -> None:
    run = runs.start("sleep", "60", run_dir=shared)
    wait_for((shared / operator.SOCKET).exists, "the control channel")
    output = nobody(
        "try:\n    socket.socket(socket.AF_UNIX).connect(sys.argv[1])\nexcept PermissionError:\n    print('refused')",
        shared / operator.SOCKET,
    )
    assert output == "refused\n"
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143


def test_a_foreign_process_with_the_marker_in_its_environment_is_not_ended(runs: Runs) -> None:
    """It is not a descendant of ftrun."""
    run = runs.start("sh", "-c", "echo $FTRUN_BEAT_DIR; exec sleep 60")
    beats = wait_for(lambda: run.stdout.strip(), "the beat folder")
    with subprocess.Popen(["sleep", "60"], env={"FTRUN_BEAT_DIR": beats, "PATH": "/usr/bin:/bin"}, user=65534) as other:
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait() == 143
        assert other.poll() is None
        other.kill()


def test_as_pid_1_it_ends_a_tree_with_another_users_processes(runs: Runs) -> None:
    need_pid1()
    code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.setuid(65534); print('up', flush=True)\n"
    run = runs.start("--stop-grace", "100ms", *python(code + "time.sleep(600)"), prefix=PID1)
    wait_for(lambda: "up" in run.stdout, "the command")
    (within,) = descendants(run.pid)[:1]
    os.kill(within, signal.SIGTERM)
    assert run.wait() == 137
    assert runs.living() == []


def test_a_secret_is_in_no_command_line_and_no_environment(runs: Runs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    options = ["--group-size", "2", "--group-rank", "0", "--group-endpoint", f"127.0.0.1:{free_port()}"]
    run = runs.start(*options, "--group-secret-file", str(secret), "true")
    wait_for((runs.run_dir / operator.SOCKET).exists, "the messenger")
    for pid in (run.pid, *descendants(run.pid)):
        for name in ("cmdline", "environ"):
            assert secret.read_bytes() not in Path(f"/proc/{pid}/{name}").read_bytes()
    os.kill(run.pid, signal.SIGTERM)
    run.wait()
    files = [path for path in runs.run_dir.rglob("*") if path.is_file()]
    assert [path for path in files if secret.read_bytes() in path.read_bytes()] == []


SHADOWS = ("json", "select", "struct", "zmq", "traceback", "ftrun", "ftrun_hooks", "sitecustomize")


@pytest.mark.parametrize("by", ["working directory", "PYTHONPATH"])
def test_a_helper_loads_no_module_of_the_user(runs: Runs, tmp_path: Path, by: str) -> None:
    """Nor does PID 1 from the working directory.  PYTHONPATH of PID 1 itself is trusted."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'a').write('{name}\\n')\n")
    script = (
        "import sys, os, select; import ftrun_hooks; from ftrun.host.helpers import Helpers\n"
        "os.environ['PYTHONPATH'] = sys.argv[1]\n"
        "helpers = Helpers(select.poll(), 2); helpers.add('messenger', sys.argv[2], '/nowhere', paired=True)\n"
        "helpers.supervise(0.0); pid = helpers.pids[0]\n"
        "import time\n"
        "while not os.path.exists(sys.argv[2] + '/ftctl.sock'): time.sleep(0.01)\n"
        "helpers.close()\n"
        "try: os.waitpid(pid, 0)\n"
        "except ChildProcessError: pass  # close() has reaped it already\n"
    )
    if by == "PYTHONPATH":
        (tmp_path / "run").mkdir()
        paths = {"PYTHONPATH": f"{HOUSE}/supervisor:{HOUSE}/hooks"}
        words = [sys.executable, "-c", script, str(tmp_path), str(tmp_path / "run")]
        subprocess.run(words, cwd="/", env=os.environ | paths, check=True, timeout=60)
    else:
        run = runs.start("sleep", "60")  # its working directory is tmp_path
        wait_for((runs.run_dir / operator.SOCKET).exists, "the messenger")
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait() == 143
    assert not (tmp_path / "loaded").exists()
