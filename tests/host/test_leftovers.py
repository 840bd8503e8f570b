"""The next start on a run dir ends the processes that a killed ftrun left running, and no others."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.host import leftovers, procfs
from support.runs import Run, Runs, alive, end_process, wait_for

CLEARED = "env -i sleep 1000 & echo $! >$0.new; mv $0.new $0; wait"


@pytest.fixture
def killed(runs: Runs) -> Iterator[tuple[Run, int]]:
    """A killed ftrun, and a process of its command that cleared its environment and lives on."""
    note = runs.folder / "pid"
    run = runs.start("sh", "-c", CLEARED, str(note))
    pid = int(wait_for(lambda: note.exists() and note.read_text(), "the process"))
    wait_for(lambda: Path(f"/proc/{pid}/environ").read_bytes() == b"", "its cleared environment")
    run.until("spawned")
    wait_for(lambda: run.state.get("group"), "the group in the state")
    run.process.send_signal(signal.SIGKILL)
    run.wait()
    wait_for(lambda: not alive(run.state["pid"]), "the end of the shell, which dies with ftrun")
    assert alive(pid)
    yield run, pid
    end_process(pid)


def change(run: Run, **group: Any) -> None:
    path = run.run_dir / "state.json"
    state = json.loads(path.read_bytes())
    state["group"] |= group
    path.write_text(json.dumps(state))


def test_a_cleared_environment_hides_nobody_of_the_commands_group(runs: Runs, killed: tuple[Run, int]) -> None:
    run, pid = killed
    again = runs.run("true", run_dir=run.run_dir)
    assert (again.wait(), again.stderr) == (0, "")
    assert not alive(pid)


def test_a_state_without_a_group_is_read(runs: Runs, killed: tuple[Run, int]) -> None:
    run, pid = killed
    path = run.run_dir / "state.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_bytes()).items() if k != "group"}))
    again = runs.run("true", run_dir=run.run_dir)
    assert (again.wait(), again.stderr) == (0, "")
    assert alive(pid)


@pytest.mark.parametrize("what", ["boot", "namespace", "first", "session", "start", "damaged"])
def test_a_group_whose_number_may_be_reused_is_left_alone(runs: Runs, killed: tuple[Run, int], what: str) -> None:
    """Each proof by itself: another boot, PID namespace or session, members older than the command."""
    run, pid = killed
    group = run.state["group"]
    boot, namespace, first = group["place"]
    places = {"boot": ["x", namespace, first], "namespace": [boot, 1, first], "first": [boot, namespace, first + 1]}
    others: dict[str, dict[str, Any]] = {
        "session": {"session": 1},
        "start": {"start": 1 << 60},
        "damaged": {"start": "x"},
    }
    change(run, **others.get(what, {"place": places.get(what)}))
    again = runs.run("true", run_dir=run.run_dir)
    assert (again.wait(), again.stderr) == (0, "")
    assert alive(pid)


def test_a_leader_that_started_later_is_another_process() -> None:
    """The number of the group was given to a new process."""
    with subprocess.Popen(["sleep", "1000"], process_group=0) as process:
        try:
            found = wait_for(lambda: (s := procfs.stat(process.pid)) and s.name == "sleep" and s, "sleep")
            here = leftovers.current_namespace()
            assert here is not None
            dead = leftovers.Group(found.pid, found.start, found.session, here, 0)
            assert [s.pid for s in leftovers.find_processes(b"NONE=1", (0, 0), dead)] == [process.pid]
            earlier = dead._replace(start=found.start - 1, forks=1 << 62)
            assert leftovers.find_processes(b"NONE=1", (0, 0), earlier) == []
        finally:
            process.kill()


def test_a_member_with_the_marker_identifies_its_whole_group() -> None:
    """However many processes were started since."""
    script = "(exec env -i sleep 1000) & (exec sleep 1000) & exec true"
    process = subprocess.Popen(["sh", "-c", script], process_group=0, env=os.environ | {"LEFT": "here"})
    began = procfs.stat(process.pid)
    here = leftovers.current_namespace()
    assert began is not None
    assert here is not None
    process.wait()

    def members() -> list[procfs.Stat]:
        return [s for s in procfs.all_processes() if s.group == process.pid and s.name == "sleep"]

    try:
        both = wait_for(lambda: len(found := members()) == 2 and found, "two members")
        dead = leftovers.Group(process.pid, began.start, began.session, here, 0)
        assert {s.pid for s in leftovers.find_processes(b"LEFT=here", (0, 0), dead)} == {s.pid for s in both}
        assert leftovers.find_processes(b"LEFT=elsewhere", (0, 0), dead) == []
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_the_count_of_forks_is_read_again_once_a_minute() -> None:
    recorder, me = leftovers.Recorder(), procfs.stat(os.getpid())
    assert me is not None
    leader = me._replace(group=me.pid)
    now = time.monotonic()
    first = recorder.follow(leader, now)
    assert first is not None
    subprocess.run(["true"], check=True)
    assert recorder.follow(leader, now + 1) == first
    assert recorder.follow(None, now + leftovers.REFRESH) == first, "nobody holds the number any more"
    later = recorder.follow(leader, now + leftovers.REFRESH)
    assert later is not None
    assert int(str(later["forks"])) > int(str(first["forks"]))
    assert leftovers.load_group({"group": first}) is not None
    assert leftovers.load_group({"group": first, "ended": True}) is None, "it was not killed"
