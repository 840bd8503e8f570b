"""If the kernel kills a whole control group for memory, ftrun is exempt, and only ftrun.

The kernel's own kill is not tested: not every machine has a memory controller of version 2.  A file with the group's
setting replaces it; the rest is real.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.host import cgroup, oom
from support.runs import Run, Runs, need_mounts, python, wait_for

WITHOUT = ("setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource", "--")


def group() -> str:
    """The folder of our control group of version 2."""
    texts = (Path(f"/proc/self/{name}").read_text() for name in ("cgroup", "mountinfo"))
    found = [path for path in cgroup.files(*texts) if path.endswith("/memory.events")]
    if not found:
        pytest.skip("no control groups of version 2 are mounted")
    return os.path.dirname(found[0])


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def below(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def started(runs: Runs, setting: int, *prefix: str, given: int = 100) -> Run:
    need_mounts()
    folder = group()
    script = f"mount -t tmpfs none {folder}; echo {setting} >{folder}/memory.oom.group"
    script += f"; echo {given} >/proc/self/oom_score_adj"
    code = "import signal, time, sys; print('up', flush=True); time.sleep(1000)"
    return runs.start(*python(code), prefix=[*runs.mounted(script), *prefix])


@pytest.mark.skipif(not oom.can_be_exempted(), reason="without CAP_SYS_RESOURCE")
def test_ftrun_is_exempt_and_its_children_are_not(runs: Runs) -> None:
    run = started(runs, 1)
    wait_for(lambda: score(run.pid) == -1000, "ftrun to be spared")
    run.until("spawned")
    first = run.state["pid"]
    assert score(first) == 100
    wait_for(lambda: len(below(run.pid)) > 1, "a helper")
    assert {score(pid) for pid in below(run.pid)} == {100}
    os.kill(first, signal.SIGKILL)  # the command that is started again has its value from a spared ftrun
    run.until("spawned", 2)
    again = wait_for(lambda: (pid := run.state["pid"]) != first and pid, "the command in the state")
    assert (score(again), score(run.pid)) == (100, -1000)
    run.process.send_signal(signal.SIGTERM)
    run.wait()


@pytest.mark.parametrize(("setting", "prefix"), [(0, ()), (1, WITHOUT)], ids=["no group kill", "no capability"])
def test_where_it_is_not_needed_or_not_allowed_nothing_changes(
    runs: Runs, setting: int, prefix: tuple[str, ...]
) -> None:
    run = started(runs, setting, *prefix)
    run.until("spawned")
    wait_for(lambda: len(below(run.pid)) > 1, "a helper")
    assert {score(pid) for pid in (run.pid, *below(run.pid))} == {100}
    run.process.send_signal(signal.SIGTERM)
    run.wait()
    assert "oom" not in run.stderr


def test_the_setting_of_a_group_above_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "memory.oom.group").write_text("0\n")
    assert not cgroup.killed_together(str(inner))
    (tmp_path / "a" / "memory.oom.group").write_text("1\n")
    assert cgroup.killed_together(str(inner))


# Without the capability a process may go down to 0, the lowest that it ever had, but not to -1000.
FORKED = """
import os, time
from ftrun.host import cgroup, oom, signals, spawn
write = lambda text: open(oom.PATH, "w").write(text)
score = lambda pid: int(open(f"/proc/{pid}/oom_score_adj").read())
write("100")
cgroup.killed_together, oom.EXEMPT = lambda: True, b"0"
oom.exempt_from_group_kill()
helper = spawn.spawn_helper(["/bin/sleep", "100"], 2).pid
command = spawn.spawn(["sleep", "100"], os.environ, signals.Inherited(frozenset(), frozenset())).pid
print(score(os.getpid()), score(helper), score(command))
oom._write = lambda value: False
try:
    spawn.spawn(["sleep", "100"], os.environ, signals.Inherited(frozenset(), frozenset()))
except OSError:
    print("refused")
"""


def test_forked_processes_have_the_original_value() -> None:
    """Where that cannot be given back, nothing is started that the kernel would spare."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["0 100 100", "refused"]
