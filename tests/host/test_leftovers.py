"""The next start on a run dir ends the processes that a killed ftrun left running, and no others."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

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


def test_a_process_with_a_cleared_environment_is_found_by_its_group(runs: Runs, killed: tuple[Run, int]) -> None:
    """Unless the state names no group, as that of an earlier version."""
    run, pid = killed
    path = run.run_dir / "state.json"
    content = path.read_bytes()
    path.write_text(json.dumps({k: v for k, v in json.loads(content).items() if k != "group"}))
    again = runs.run("true", run_dir=run.run_dir)
    assert (again.wait(), again.stderr, alive(pid)) == (0, "", True)
    path.write_bytes(content)
    again = runs.run("true", run_dir=run.run_dir)
    assert (again.wait(), again.stderr, alive(pid)) == (0, "", False)


def test_a_group_of_another_boot_or_namespace_is_not_loaded() -> None:
    here = leftovers.current_namespace()
    assert here is not None
    group: dict[str, object] = {"number": 1 << 20, "start": 5, "session": 6, "place": list(here), "forks": 7}
    assert leftovers.load_group({"group": group}) == leftovers.CommandGroup(1 << 20, 5, 6, here, 7)
    elsewhere = [here._replace(boot="x"), here._replace(namespace=1), here._replace(first=here.first + 1)]
    changes: list[dict[str, object]] = [{"place": list(other)} for other in elsewhere]
    changes += [{"start": "x"}, {"number": 1}, {"more": 1}]
    for changed in changes:
        assert leftovers.load_group({"group": group | changed}) is None
    assert leftovers.load_group({"group": group, "ended": True}) is None, "that ftrun was not killed"
    assert leftovers.load_group({}) is None


def test_a_group_whose_number_was_reused_is_not_found() -> None:
    with subprocess.Popen(["sleep", "1000"], process_group=0) as process:
        try:
            found = wait_for(lambda: (s := procfs.stat(process.pid)) and s.name == "sleep" and s, "sleep")
            here = leftovers.current_namespace()
            assert here is not None
            dead = leftovers.CommandGroup(found.pid, found.start, found.session, here, 0)
            assert [s.pid for s in leftovers.find_processes(b"NONE=1", (0, 0), dead)] == [process.pid]
            for other in (dead._replace(start=found.start - 1, forks=1 << 62), dead._replace(session=1)):
                assert leftovers.find_processes(b"NONE=1", (0, 0), other) == []
        finally:
            process.kill()


def test_a_member_with_the_marker_identifies_its_whole_group() -> None:
    """However many processes have been started since."""
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
        dead = leftovers.CommandGroup(process.pid, began.start, began.session, here, 0)
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
    assert recorder.follow(None, now + leftovers.REFRESH) == first, "the number is not in use any more"
    later = recorder.follow(leader, now + leftovers.REFRESH)
    assert later is not None
    assert int(str(later["forks"])) > int(str(first["forks"]))
    assert leftovers.load_group({"group": first}) is not None
