"""A command that changes its user under root, as setpriv and gosu do, can import the hooks and give heartbeats; no
other user can."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun_hooks import layout
from support.hostile import NOBODY, needs_root
from support.runs import HOUSE, Runs, need_mounts, wait_for
from support.runs import runs as runs

pytestmark = needs_root
SETPRIV = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
READING = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
BEATING = "import ftrun_hooks as ft, time\nfor step in range({}): ft.beat(step); time.sleep(0.02)\n"


def public_python() -> str:
    """A Python that another user may execute."""
    for python in (sys.executable, "/usr/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 8))"
        try:
            if not subprocess.run([python, "-c", code], user=NOBODY, extra_groups=[], capture_output=True).returncode:
                return python
        except OSError:
            pass
    pytest.skip("no Python here may be executed by all users")


def test_a_hang_of_a_rank_of_another_user_is_found(runs: Runs) -> None:
    """It imports the hooks from ftrun's own folder on PYTHONPATH, in each attempt."""
    code = BEATING.format(10) + "ft.checkpoint(3, '/some/where'); time.sleep(600)"
    run = runs.ends(
        195, "--hang-timeout", "2s", "--max-restarts", "1", *SETPRIV, public_python(), "-c", code, PYTHONPATH=""
    )
    assert [hang["step"] for hang in run.named("hang")] == [9, 9], run.log()
    assert run.named("progress")[-1]["checkpoint"] == "/some/where"
    assert run.named("problem") == []


def test_an_exception_of_a_rank_of_another_user_is_the_cause(runs: Runs) -> None:
    code = BEATING.format(20) + "raise RuntimeError('no such luck')"
    run = runs.run(*SETPRIV, public_python(), "-c", code, PYTHONPATH="")
    assert run.process.returncode == 1
    assert "no such luck" in run.named("exited")[0]["why"], run.log()


def test_a_program_that_changes_its_own_user_gets_access_at_its_next_heartbeat(runs: Runs) -> None:
    code = f"import os, ftrun_hooks._beat as s, ftrun_hooks as ft, time\nos.setuid({NOBODY})\n"
    code += "while s.own_slot.words is None: ft.beat(1); time.sleep(0.01)\nprint('beats')"
    words = ["--no-auto-beat", "--start-timeout", "60s", public_python(), "-c", code]
    run = runs.run(*words, PYTHONPATH=str(HOUSE / "hooks"))
    assert (run.process.returncode, run.stdout) == (0, "beats\n"), run.log()
    run.until("first_beat")


def test_a_shell_gets_access_without_a_request(runs: Runs) -> None:
    code = "until touch $FTRUN_BEAT_DIR/touch; do sleep 0.1; done 2>/dev/null; sleep 600"
    run = runs.start(*SETPRIV, "sh", "-c", code)
    assert run.until("first_beat")["rank"] == -1
    run.process.terminate()
    run.wait()


@pytest.mark.slow  # in the gate the tests above have programs that call the hooks themselves
@pytest.mark.torch
def test_unmodified_torch_gives_heartbeats(runs: Runs) -> None:
    cache = runs.folder / "inductor"  # otherwise torch creates one in /tmp
    cache.mkdir()
    cache.chmod(0o777)
    code = (
        "import torch, time\nm = torch.nn.Linear(2, 1); o = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "while True: m(torch.ones(2)).sum().backward(); o.step(); time.sleep(0.02)"
    )
    # It may read files of root, such as the Python with torch, and write none of them.
    command = (*SETPRIV, *READING, sys.executable, "-c", code)
    run = runs.start(*command, PYTHONPATH="", TORCHINDUCTOR_CACHE_DIR=str(cache))
    run.until("first_beat")
    run.process.terminate()
    run.wait()


def test_hooks_that_only_root_may_read_are_copied(runs: Runs, tmp_path: Path) -> None:
    """For example those that are installed below a home folder."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in ("bin", "supervisor", "hooks"):
        shutil.copytree(HOUSE / name, closed / name, ignore=shutil.ignore_patterns("__pycache__"))
    program = (sys.executable, str(closed / "bin" / "ftrun"))
    code = BEATING.format(5) + "print(ft.__file__)"
    run = runs.ends(0, "--start-timeout", "60s", *SETPRIV, public_python(), "-c", code, program=program, PYTHONPATH="")
    assert run.stdout.startswith("/dev/shm/"), run.stdout
    run.until("first_beat")


def test_only_users_of_the_tree_get_access(runs: Runs) -> None:
    """A third user can neither read, write, fill nor replace anything; the admitted user cannot replace files of root,
    which Pythons of root would load."""
    code = BEATING.format(10) + "import os; print(os.environ['FTRUN_BEAT_DIR'], flush=True); time.sleep(600)"
    run = runs.start(*SETPRIV, public_python(), "-c", code, PYTHONPATH="")
    run.until("first_beat")
    folder = wait_for(lambda: run.stdout.strip(), "the beat folder")

    def error_of(user: int, code: str) -> str:
        head = f"import os; os.setgroups([]); os.setgid({user}); os.setuid({user}); os.chdir({folder!r})\n"
        ran = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True)
        return ran.stderr.strip().rpartition("\n")[2].partition(":")[0]

    writing = [f"os.open('{name}', os.O_RDWR | os.O_NONBLOCK)" for name in ("beats", "bell", "touch", "request")]
    making = ["os.listdir('.')", "os.mkdir('theirs')", "open('raised-1', 'w')", "os.symlink('/etc/passwd', 'fail-0')"]
    replacing = [f"os.rename('{name}', 'x')" for name in ("beats", "bell", "touch", "request", "python")]
    replacing += ["os.unlink('beats')", "os.rmdir('python/__pycache__')", "open('python/x', 'w')"]
    replacing += ["open('python/__pycache__/x', 'w')", "os.chmod('.', 0o777)"]
    assert {code: error_of(1234, code) for code in writing + making + replacing} == dict.fromkeys(
        writing + making + replacing, "PermissionError"
    )
    assert {code: error_of(NOBODY, code) for code in replacing} == dict.fromkeys(replacing, "PermissionError")
    run.process.terminate()
    run.wait()


def test_no_link_of_an_admitted_user_is_followed(runs: Runs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret of root")
    code = BEATING.format(30) + (
        f"import os; os.symlink({str(secret)!r}, os.environ['FTRUN_BEAT_DIR'] + '/fail-0')\n"
        "from ftrun_hooks._beat import own_slot; own_slot.words[9] |= 2; time.sleep(1); raise SystemExit(1)"
    )
    run = runs.run(*SETPRIV, public_python(), "-c", code, PYTHONPATH="")
    assert "secret of root" not in run.log() + (run.run_dir / "events.jsonl").read_text()


@pytest.mark.parametrize("rank", ["python", "another program"])
def test_without_access_control_lists_missing_heartbeats_do_not_count(runs: Runs, rank: str) -> None:
    """One line says so, and a given start timeout does not end the job."""
    need_mounts()
    python = (public_python(), "-c", BEATING.format(100))
    words = [*SETPRIV, *(python if rank == "python" else ("sleep", "3"))]
    run = runs.ends(
        0,
        *("--start-timeout", "500ms", "--max-restarts", "0", *words),
        prefix=runs.mounted("mount -t ramfs none /dev/shm; chmod 1777 /dev/shm"),
        PYTHONPATH="",
    )
    assert run.named("suspect", "hang") == []
    (problem,) = run.named("problem")
    assert f"run as user {NOBODY} cannot give heartbeats" in problem["what"]
    assert run.stderr.count(problem["what"]) == 1


def test_requests_of_a_third_user_have_little_effect(runs: Runs) -> None:
    run = runs.start("sh", "-c", "echo $FTRUN_BEAT_DIR; exec sleep 60")
    folder = wait_for(lambda: run.stdout.strip(), "the beat folder")
    wait_for(lambda: run.named("spawned"), "the start")
    code = (
        f"import os, sys, time; os.setuid({NOBODY}); until = time.monotonic() + 2\n"
        f"while time.monotonic() < until: os.close(os.open({folder + '/' + layout.REQUEST!r}, os.O_RDONLY))\n"
        f"os.open({folder + '/' + layout.BEATS!r}, os.O_RDWR)"
    )
    before = cpu_time(run.pid)
    requests = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "PermissionError" in requests.stderr
    assert cpu_time(run.pid) - before < 1.0, "seconds, for hundreds of thousands of requests"
    run.process.terminate()
    run.wait()


def cpu_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
