"""What the kernel refuses is named in one line: the real cause, and nothing is started."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ftctl.doctor import system
from ftrun.host import oom
from support.runs import DEADLINE, FTRUN, Runs

# Seccomp filters (seccomp(2)) that answer system calls with an errno, and then ftrun.
FILTER = """
import ctypes, os, platform, struct, sys
names = "waitid", "fallocate", "setpgid", "setsid", "getpgid"
numbers = {"x86_64": (247, 285, 109, 112, 121), "aarch64": (95, 47, 154, 157, 155)}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
for name in sys.argv[1].split(","):
    denied = dict(zip(names, numbers))[name]
    rules = struct.pack("HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, denied, 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(rules)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer)))
    if libc.prctl(22, 2, program, 0, 0):
        sys.exit(77)
os.execv(sys.argv[2], sys.argv[2:])
"""


def refused(calls: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    words = [FTRUN[0], "-c", FILTER, calls, *FTRUN, "--quiet", "--run-dir", f"{folder}/run", *options]
    done = subprocess.run([*words, "--", "echo", "started"], capture_output=True, text=True, timeout=90)
    if done.returncode == 77:
        pytest.skip("no seccomp filter can be set here")
    return done


def test_refused_waitid_is_one_line(tmp_path: Path) -> None:
    done = refused("waitid", tmp_path)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("ftrun: the kernel refuses waitid (Operation not permitted)")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("call", ["fallocate", "getpgid"])
def test_refused_call_is_no_obstacle(tmp_path: Path, call: str) -> None:
    done = refused(call, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@pytest.mark.parametrize(
    ("options", "shown"),
    [((), "started\n"), (("--nproc-per-node", "2", "--prefix-ranks", "--local-ranks-filter", "1"), "[1] started\n")],
    ids=["alone", "ranks"],
)
def test_refused_process_groups_are_named_and_no_obstacle(tmp_path: Path, options: tuple[str, ...], shown: str) -> None:
    done = refused("setpgid,setsid", tmp_path, *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")
    assert (tmp_path / "run" / "run.log").read_text().count("setpgid is refused here") == 1


def test_low_limit_on_open_files_loses_no_output(tmp_path: Path) -> None:
    ranks = "--nproc-per-node", "6", "--prefix-ranks"
    script = "import os, sys; print('out'); print('error', file=sys.stderr)"
    command = shlex.join([*FTRUN, "--quiet", *ranks, "--run-dir", f"{tmp_path}/run", "--", "python", "-c", script])
    done = subprocess.run(["sh", "-c", f"ulimit -n 48; exec {command}"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0
    for text, shown in (("out", done.stdout), ("error", done.stderr)):
        assert sorted(shown.splitlines()) == [f"[{rank}] {text}" for rank in range(6)]


def test_limit_on_the_size_of_files_is_named(tmp_path: Path) -> None:
    command = shlex.join([*FTRUN, "--run-dir", f"{tmp_path}/run", "--", "true"])
    done = subprocess.run(["sh", "-c", f"ulimit -f 8; exec {command}"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 125
    assert "File too large" in done.stderr
    assert "ulimit -f" in done.stderr
    assert "shm-size" not in done.stderr


def test_restart_reason_after_a_success_is_first(runs: Runs) -> None:
    """The next start in its run dir says `first`; one after a failure says `failure`."""
    says = ("sh", "-c", "echo $FTRUN_RESTART_REASON; test ! -e fail")
    assert [runs.run(*says).stdout for _ in range(2)] == ["first\n", "first\n"]
    (runs.folder / "fail").touch()
    assert [runs.run(*says).stdout for _ in range(2)] == ["first\n", "failure\n"]


CAPABLE = [[], ["setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource", "--"]]


@pytest.mark.parametrize("prefix", CAPABLE, ids=["as we are", "no capability"])
def test_doctor_reports_memory_oom_group(tmp_path: Path, prefix: list[str]) -> None:
    """No machine here has a memory controller of version 2 with that setting: its file is made by hand."""
    (tmp_path / "memory.oom.group").write_text("0\n")
    assert list(system.oom_group(str(tmp_path))) == []
    (tmp_path / "memory.oom.group").write_text("1\n")
    state = "ok" if oom.can_be_exempted() and not prefix else "warning"
    code = "from ftctl.doctor import system; f, = system.oom_group({!r}); print(f.state, f.remedy)"
    code += "; print(open('/proc/self/oom_score_adj').read())"
    words = [*prefix, sys.executable, "-c", code.format(str(tmp_path))]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=DEADLINE).stdout
    found, score = said.splitlines()[:2]
    assert found.split()[0] == state
    assert ("singleProcessOOMKill" in found) == (state == "warning")
    assert score == Path("/proc/self/oom_score_adj").read_text().strip(), "it was only tried"
