"""A run dir on a network disk, a FUSE file system whose server is stopped: before the start, during the run, at the
end.  In each case the job starts, restarts and ends, and no record is lost."""

import fcntl
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from ftrun.host.work_dir import local_folder as folder
from support.network_disk import Disk
from support.network_disk import disk as disk
from support.runs import PID1, Run, Runs, ftctl, need_pid1, patched, state_of, wait_for

HANGS_ONCE = ("--start-timeout", "1s", "sh", "-c", "test $MA_PROC_START_CNT -ge 2 || sleep 1000")
WAITS = ("sh", "-c", "until test -e go; do sleep 0.02; done; exit 7")


@pytest.fixture
def net(runs: Runs, disk: Disk) -> Iterator[Disk]:
    runs.run_dir = disk.view / "run"
    yield disk
    shutil.rmtree(local(runs), ignore_errors=True)


def local(runs: Runs) -> Path:
    return Path(folder(str(runs.run_dir)))


def program(first: float = 60, last: float = 60) -> tuple[str, ...]:
    """ftrun with these timeouts in s, for the disk at the start and for the last copy, and with its helpers at once."""
    return patched(
        "from ftrun.host import work_dir; from ftrun.pid1.clients import base, output; base.SETTLED = 0; "
        f"work_dir.PATIENCE = {first}; work_dir.SAVING = output.COPYING = {last}"
    )


DEAD: Final = 0.5  # s, where the disk does not answer


def start(runs: Runs, *words: str, first: float = 60, last: float = 60, prefix: Sequence[str] = ()) -> Run:
    """Its records are those of the local folder, which can be read while the disk does not answer."""
    run = runs.start(*words, program=program(first, last), prefix=prefix)
    run.run_dir = local(runs)
    return run


def go(runs: Runs) -> None:
    (runs.folder / "go").touch()


def told(runs: Runs, verb: str, *words: str, run_dir: Path | None = None) -> str:
    done = ftctl(verb, "--run-dir", str(run_dir or runs.run_dir), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def same(runs: Runs, net: Disk) -> None:
    """Assert that the server has what was written here."""
    real = net.real / "run"
    ours = {p.relative_to(local(runs)) for p in local(runs).rglob("*") if p.is_file()}
    assert {p.relative_to(real) for p in real.rglob("*") if p.is_file()} == ours | {Path("mirror.lock")}
    for name in ours:
        assert (real / name).read_bytes() == (local(runs) / name).read_bytes(), name


def test_complete_run_is_on_the_disk_at_the_end(runs: Runs, net: Disk) -> None:
    run = start(runs, *HANGS_ONCE)
    assert run.wait() == 0, run.log()
    same(runs, net)
    assert (net.real / "run" / "reports" / "attempt-1" / "report.md").is_file()
    assert f"{runs.run_dir} is on a network disk (fuse" in run.stderr
    assert runs.verdict["run_dir"] == str(runs.run_dir)
    assert run.named("hang")[0]["report"].startswith(str(runs.run_dir))


def test_counts_and_records_continue_without_the_local_folder(runs: Runs, net: Disk) -> None:
    assert start(runs, "false").wait() == 1
    shutil.rmtree(local(runs))
    run = start(runs, "sh", "-c", "exit $MA_PROC_START_CNT")
    assert run.wait() == 2, run.log()
    same(runs, net)
    assert names(net.real / "run" / "events.jsonl").count("started") == 2
    assert start(runs, "sh", "-c", "exit $MA_PROC_START_CNT").wait() == 3  # with the folder that is there
    same(runs, net)
    shutil.rmtree(net.real / "run")  # its removal begins a new run
    assert start(runs, "sh", "-c", "exit $MA_PROC_START_CNT").wait() == 1
    same(runs, net)
    for path in local(runs).parent.glob(f"{local(runs).name}.*"):  # what was there is kept
        assert (path / "state.json").is_file()
        shutil.rmtree(path)


def test_disk_that_answers_only_later_gets_the_complete_run(runs: Runs, net: Disk) -> None:
    assert start(runs, "false").wait() == 1
    earlier = (net.real / "run" / "events.jsonl").read_text(), (net.real / "run" / "state.json").read_bytes()
    shutil.rmtree(local(runs))
    net.die()
    # Heartbeats for as long as it waits, or the second start would be a hang, too, where this test is slow.
    waits = 'until test -e go; do touch "$FTRUN_BEAT_DIR/touch"; sleep 0.1; done; exit 7'
    run = start(runs, *HANGS_ONCE[:-1], f"{HANGS_ONCE[-1]}; {waits}", first=DEAD)
    run.until("first_beat")
    assert "it did not answer in time, so the job starts without" in run.stderr
    assert "no verdicts" in told(runs, "pause")
    assert told(runs, "resume")
    wait_for(lambda: state_of(run.pid) == "S", "PID 1 to wait for events, and not for that disk")
    net.come_back()
    real = net.real / "run"
    wait_for(lambda: list(real.glob("state.json.unread-*")) and (real / "state.json").exists(), "its state is copied")
    go(runs)
    assert run.wait() == 7, run.log()
    assert (real / "events.jsonl").read_text() == earlier[0] + (local(runs) / "events.jsonl").read_text()
    assert (real / "state.json").read_bytes() == (local(runs) / "state.json").read_bytes()
    assert [p.read_bytes() for p in real.glob("state.json.unread-*")] == [earlier[1]]


def test_another_node_sees_that_the_job_runs(runs: Runs, net: Disk) -> None:
    """From the copy alone, by the lock on it; the clocks of the nodes differ."""
    run = start(runs, *WAITS)
    real = net.real / "run"
    wait_for(lambda: (real / "state.json").exists() and b'"starting"' in (real / "state.json").read_bytes(), "it runs")
    seen = runs.folder / "seen"
    shutil.copytree(real, seen)
    state = (seen / "state.json").read_text()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (seen / "state.json").write_text(state.replace(boot, "another"))
    with (seen / "mirror.lock").open("r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        found = json.loads(told(runs, "status", "--json", run_dir=seen))
        assert (found["alive"], found["phase"]) == (True, "starting")
        assert 0 <= found["up"] < 3600
    assert json.loads(told(runs, "status", "--json", run_dir=seen))["phase"] == "cut off"
    go(runs)
    assert run.wait() == 7


def test_disk_that_stops_answering_gets_the_rest_at_the_next_run(runs: Runs, net: Disk) -> None:
    run = start(runs, *WAITS, last=DEAD)
    wait_for((net.real / "run" / "state.json").exists, "the first copy")
    net.die()
    assert told(runs, "restart")
    run.until("spawned", 2)
    go(runs)
    assert run.wait() == 7, run.log()
    assert f"not all of this run is in {runs.run_dir}: the complete run is in {local(runs)}" in run.stderr
    net.come_back()
    assert start(runs, "true").wait() == 0
    same(runs, net)
    assert names(net.real / "run" / "events.jsonl").count("ended") == 2


def test_pid1_of_a_container_ends_without_the_disk(runs: Runs, net: Disk) -> None:
    need_pid1()
    net.die()
    run = start(runs, "sh", "-c", "exit 7", prefix=PID1, first=DEAD, last=DEAD)
    assert run.wait() == 7, run.log()


def test_stop_before_the_state_is_read_leaves_it_unchanged(runs: Runs, net: Disk) -> None:
    """On a new node: the next run continues with the state on the disk."""
    temp = runs.folder / "temp"
    temp.mkdir()
    assert start(runs, "false").wait() == 1
    real = net.real / "run"
    before = {path.name: path.read_bytes() for path in real.iterdir()}
    shutil.rmtree(local(runs))
    net.die()
    run = runs.start("touch", "started", program=program(1000, 60), TMPDIR=str(temp))
    wait_for(lambda: list(temp.glob("*/run.log")), "it waits")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.log()
    assert "stopped before it read it" in run.stderr
    assert not (runs.folder / "started").exists()
    net.come_back()
    assert {path.name: path.read_bytes() for path in real.iterdir()} == before
    run = runs.ends(
        2, "sh", "-c", "exit $MA_PROC_START_CNT", program=program(), TMPDIR=str(temp)
    )  # on the node of the stop
    assert not list(real.glob("*.unread-*"))


def test_folders_that_somebody_else_might_have_made_are_refused_in_one_line(runs: Runs, net: Disk) -> None:
    taken = local(runs)
    others = [taken, *(taken.with_name(f"{taken.name}-{number}") for number in range(1, 10))]
    for path in others:
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    run = runs.run("touch", "started")
    for path in others:
        shutil.rmtree(path)
    assert run.wait() == 2
    assert (
        run.stderr
        == f"ftrun: {taken} already exists and is not a private folder of this user; nor are its alternatives\n"
    )
    assert not (runs.folder / "started").exists()


def test_second_ftrun_is_refused_on_this_node(runs: Runs, net: Disk) -> None:
    """Also with another local folder, and so another lock there, and by another path."""
    first = start(runs, *WAITS)
    wait_for((net.real / "run" / "mirror.json").exists, "the first one copies")
    temp, link = runs.folder / "tmp", runs.folder / "link"
    temp.mkdir()
    link.symlink_to(net.view)
    for run_dir, environment in ((runs.run_dir, {}), (runs.run_dir, {"TMPDIR": str(temp)}), (link / "run", {})):
        second = runs.ends(2, "true", run_dir=run_dir, **environment)
        assert "another ftrun works in it" in second.stderr
    shutil.rmtree(folder(str(link / "run")), ignore_errors=True)
    go(runs)
    assert first.wait() == 7, first.log()


@pytest.mark.parametrize("dead", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_log_dir_on_the_disk_has_a_folder_for_each_run(runs: Runs, net: Disk, dead: bool) -> None:
    """A folder of its own for each run, with what the command printed, also where several begin in one second."""
    logs, waits = net.view / "logs", (DEAD, DEAD) if dead else (60, 60)
    words = [*program(*waits), "--log-dir", str(logs), "--termination-log", str(runs.folder / "log"), "echo", "hello"]
    if dead:
        net.die()
    temp = runs.folder / "temp"
    temp.mkdir()
    started = [
        subprocess.Popen(words, env=runs.environment | {"TMPDIR": str(temp)}, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=90)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    net.come_back()
    made = sorted(temp.iterdir() if dead else (net.real / "logs").glob("*_restartable"))
    assert len(made) == 2
    for path in made:
        assert path.joinpath("output.log").read_text().endswith("hello\n")
        assert "ended" in names(path / "events.jsonl")
    known = [str(path) if dead else str(logs / path.name) for path in made]
    assert json.loads((runs.folder / "log").read_text())["run_dir"] in known


def test_stderr_on_a_dead_disk_does_not_block_pid_1(runs: Runs, disk: Disk) -> None:
    """Its lines are written by a helper, once the disk answers."""
    file = disk.view / "stderr"
    script = f"trap '' TERM; {WAITS[-1]}"
    run = runs.spawned("--stop-grace", "1s", "sh", "-c", script, prefix=("sh", "-c", f'exec "$@" 2> {file}', "sh"))
    lines = wait_for(lambda: (disk.real / "stderr").read_text(), "the first line")
    assert lines.startswith("[ftrun] attempt 1 started;")
    disk.die()
    try:
        assert told(runs, "restart")
        run.until("spawned", 2)
        wait_for(lambda: state_of(run.pid) == "S", "PID 1 to wait for events, and not for that disk")
    finally:
        disk.come_back()
    go(runs)
    assert run.wait() == 7, run.log()
    first, *between, last = (disk.real / "stderr").read_text().splitlines()
    assert first in lines
    assert any("restart requested" in line for line in between), between
    assert last.startswith("[ftrun] ended with 7 ")


PHASES: Final = (
    '[[phase]]\nname = "one"\ncommand = ["sh", "-c", "echo >> one"]\n'
    '[[phase]]\nname = "two"\ncommand = ["sh", "-c", "echo >> two; test -e go"]\n'
)


def test_finished_phases_do_not_run_again(runs: Runs, net: Disk) -> None:
    config = runs.folder / "ftrun.toml"
    config.write_text(PHASES)
    temp = runs.folder / "temp"
    for attempt in (1, 2):
        temp.mkdir()
        run = runs.start("--config", str(config), program=program(), TMPDIR=str(temp))
        assert run.wait() == (1 if attempt == 1 else 0), run.log()
        shutil.rmtree(temp)  # with the container
        assert (net.real / "run" / "phases.json").exists() == (attempt == 1)
        go(runs)
    assert (runs.folder / "one").read_text() == "\n"
    assert (runs.folder / "two").read_text() == "\n\n"
    second = sorted((net.real / "run").glob("*_restartable"))[1]
    assert names(second / "events.jsonl").count("started") == 2


def test_stop_before_the_phases_file_is_read_leaves_it_unchanged(runs: Runs, net: Disk) -> None:
    config, temp = runs.folder / "ftrun.toml", runs.folder / "temp"
    config.write_text(PHASES)
    temp.mkdir()
    real = net.real / "run"
    assert runs.start("--config", str(config), program=program(), TMPDIR=str(temp)).wait() == 1
    shutil.rmtree(temp)  # a new node
    temp.mkdir()
    before = (real / "phases.json").read_bytes()
    net.die()
    run = runs.start("--config", str(config), program=program(1000, 60), TMPDIR=str(temp))
    wait_for(lambda: list(temp.iterdir()), "it waits")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.log()
    net.come_back()
    assert (real / "phases.json").read_bytes() == before
    assert not list(real.glob("*.unread-*"))
    go(runs)
    assert runs.start("--config", str(config), program=program(), TMPDIR=str(temp)).wait() == 0
    assert (runs.folder / "one").read_text() == "\n"


def test_temp_folder_on_the_disk_is_replaced_by_tmp(runs: Runs, net: Disk) -> None:
    run = runs.ends(0, "sh", "-c", "echo $FTRUN_RUN_DIR", program=program(), TMPDIR=str(net.view))
    path = Path(run.stdout.strip())
    assert path.parent == Path("/tmp")
    shutil.rmtree(path)
