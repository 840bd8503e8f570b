"""The count of out-of-memory kills; and if the kernel kills a whole control group for memory, only ftrun is exempt.

The kernel's own kill is not tested: not every machine has a memory controller of version 2.  A file with the group's
setting replaces it; the rest is real.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.host import mounts, oom
from support.runs import Run, Runs, children, need_mounts, python, wait_for

V2 = "31 23 0:28 {root} /sys/fs/cgroup rw,relatime - cgroup2 cgroup rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "34 31 0:31 {root} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw shared:3 master:1 - cgroup cgroup rw,memory\n"
)
HYBRID = V1 + "41 31 0:38 {root} /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
EVENTS, CONTROL = "/memory.events", "/memory.oom_control"
CASES = {
    "2, in a namespace": ("0::/\n", V2, "/", ["/sys/fs/cgroup" + EVENTS]),
    "2, a group below": ("0::/job/1\n", V2, "/", ["/sys/fs/cgroup/job/1" + EVENTS]),
    "2, the host's path": ("0::/pods/a\n", V2, "/pods/a", ["/sys/fs/cgroup" + EVENTS]),
    "2, below the host's path": ("0::/pods/a/b\n", V2, "/pods/a", ["/sys/fs/cgroup/b" + EVENTS]),
    "2, beside the host's path": ("0::/pods/ab\n", V2, "/pods/a", ["/sys/fs/cgroup" + EVENTS]),
    "2, outside of the namespace": ("0::/../other\n", V2, "/", ["/sys/fs/cgroup" + EVENTS]),
    "1": ("5:cpu:/x\n4:memory:/x\n", V1, "/", ["/sys/fs/cgroup/memory/x" + CONTROL]),
    "1, the host's path": ("4:cpu,memory:/docker/a\n", V1, "/docker/a", ["/sys/fs/cgroup/memory" + CONTROL]),
    "both": (
        "0::/\n4:memory:/x\n",
        HYBRID,
        "/",
        ["/sys/fs/cgroup/memory/x" + CONTROL, "/sys/fs/cgroup/unified" + EVENTS],
    ),
    "none": ("", "", "/", []),
    "mad": ("0\n::\nx:y\n", "a - b\n - \n-\n", "/", []),
}


WITHOUT = ("setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource", "--")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_files_yields_the_paths_of_the_oom_counter(case: tuple[str, str, str, list[str]]) -> None:
    groups, mountinfo, root, expected = case
    assert list(oom.files(groups, mounts.parse(mountinfo.replace("{root}", root)))) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", 7),
        ("oom_kill_disable 0\nunder_oom 0\n", None),  # before Linux 4.13
        ("oom_kill many\n", None),
        (None, None),
    ],
)
def test_oom_kills_reads_the_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, expected: int | None
) -> None:
    file = tmp_path / "events"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(oom, "files", lambda *_: [str(file)])
    assert oom.oom_kills() == expected


def group() -> str:
    """The folder of our control group of version 2."""
    paths = oom.files(Path("/proc/self/cgroup").read_text(), mounts.listed())
    found = [path for path in paths if path.endswith("/memory.events")]
    if not found:
        pytest.skip("no control groups of version 2 are mounted")
    return os.path.dirname(found[0])


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


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
    first = run.until("spawned")["pid"]
    assert score(first) == 100
    wait_for(lambda: len(children(run.pid)) > 1, "a helper")
    # A child has the value of ftrun until it is executed.
    wait_for(lambda: {score(pid) for pid in children(run.pid)} == {100}, "the values of the children")
    os.kill(first, signal.SIGKILL)  # the command that is started again has its value from a spared ftrun
    again = run.until("spawned", 2)["pid"]
    assert (score(again), score(run.pid)) == (100, -1000)
    run.process.send_signal(signal.SIGTERM)
    run.wait()


@pytest.mark.parametrize(("setting", "prefix"), [(0, ()), (1, WITHOUT)], ids=["no group kill", "no capability"])
def test_where_it_is_not_needed_or_not_allowed_nothing_changes(
    runs: Runs, setting: int, prefix: tuple[str, ...]
) -> None:
    run = started(runs, setting, *prefix)
    run.until("spawned")
    wait_for(lambda: len(children(run.pid)) > 1, "a helper")
    assert {score(pid) for pid in (run.pid, *children(run.pid))} == {100}
    run.process.send_signal(signal.SIGTERM)
    run.wait()
    assert "oom" not in run.stderr


def test_the_setting_of_a_group_above_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "memory.oom.group").write_text("0\n")
    assert not oom.killed_together(str(inner))
    (tmp_path / "a" / "memory.oom.group").write_text("1\n")
    assert oom.killed_together(str(inner))


# Without the capability a process may go down to 0, the lowest that it ever had, but not to -1000.
FORKED = """
import os, time
from ftrun.host import oom, signals, spawn
write = lambda text: open(oom.PATH, "w").write(text)
score = lambda pid: int(open(f"/proc/{pid}/oom_score_adj").read())
write("100")
oom.killed_together, oom.EXEMPT = lambda: True, b"0"
oom.exempt_from_group_kill()
helper = spawn.spawn_helper(["/bin/sleep", "100"], 2).pid
command = spawn.spawn(spawn.Start(["sleep", "100"], os.environ), signals.Inherited(frozenset(), frozenset())).pid
print(score(os.getpid()), score(helper), score(command))
oom.write = lambda value: False
try:
    spawn.spawn(spawn.Start(["sleep", "100"], os.environ), signals.Inherited(frozenset(), frozenset()))
except OSError:
    print("refused")
"""


def test_forked_processes_have_the_original_value() -> None:
    """Where that cannot be given back, nothing is started that the kernel would spare."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["0 100 100", "refused"]
