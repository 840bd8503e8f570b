"""Run dirs in folders that others may write to: ftrun does not write through, wait for or trust their files.

The hostile user is real (setuid), and the folder has no sticky bit, so that no setting of the kernel helps.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.helpers.evidence.report import ReportFolder
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.messenger import steps
from ftrun.host import beat_folders, beats, safe_files
from ftrun.host.journal import write_message
from ftrun.messages import messenger
from ftrun.records.files import rundir
from ftrun_hooks import layout as at
from support.hostile import file, link, needs_root, nobody, pipe
from support.hostile import precious as precious
from support.hostile import shared as shared
from support.runs import FTHANG, HOUSE, Runs, state_of
from support.runs import runs as runs

pytestmark = needs_root
FTCTL = (sys.executable, str(HOUSE / "bin" / "ftctl"))
PUT: dict[str, Callable[[Path, Path], None]] = {
    "a link": lambda place, target: link(place, target),
    "a pipe": lambda place, _: pipe(place),
    "a file of theirs": lambda place, _: file(place, "theirs"),
}


def is_unchanged(folder: Path) -> bool:
    """Whether `precious` is as it was made."""
    return [one.name for one in folder.iterdir()] == ["file"] and (folder / "file").read_text() == "precious"


@pytest.mark.parametrize("put", PUT)
def test_a_temporary_file_replaces_what_has_its_name(runs: Runs, shared: Path, precious: Path, put: str) -> None:
    """Of the state, and of the progress of the phases, whose run dirs are in the shared folder."""
    PUT[put](shared / "state.json.new", precious / "file")
    run = runs.run("true", run_dir=shared)
    assert run.process.returncode == 0
    assert run.state["ended"] is True
    assert (shared / "state.json").stat().st_uid == os.getuid()
    PUT[put](shared / "phases.json.new", precious / "file")
    config = runs.folder / "config.toml"
    config.write_text('[[phase]]\nname = "one"\ncommand = ["false"]\n')
    assert runs.run("--config", str(config), run_dir=shared).process.returncode == 1
    assert json.loads((shared / "phases.json").read_bytes())["phases"][0]["succeeded"] is False
    assert is_unchanged(precious)


@pytest.mark.parametrize("name", ["events.jsonl", "run.log"])
@pytest.mark.parametrize("put", PUT)
def test_records_are_not_written_to_a_foreign_file(
    runs: Runs, shared: Path, precious: Path, put: str, name: str
) -> None:
    PUT[put](shared / name, precious / "file")
    run = runs.run("true", run_dir=shared)
    assert run.process.returncode == 2
    assert run.stderr.startswith(f"ftrun: run dir {shared}: ")
    assert run.stderr.count("\n") == 1
    assert is_unchanged(precious)


def test_records_are_not_written_to_a_file_with_a_second_name(runs: Runs, shared: Path, precious: Path) -> None:
    os.link(precious / "file", shared / "events.jsonl")  # with fs.protected_hardlinks only root may do that
    run = runs.run("true", run_dir=shared)
    assert run.stderr == f"ftrun: run dir {shared}: events.jsonl has other names\n"
    assert is_unchanged(precious)


def test_a_link_of_another_user_is_not_a_run_dir(runs: Runs, shared: Path, precious: Path) -> None:
    link(shared / "run", precious)
    assert runs.run("true", run_dir=shared / "run").process.returncode == 2
    assert is_unchanged(precious)
    (shared / "own").symlink_to(runs.folder / "elsewhere")
    (runs.folder / "elsewhere").mkdir()
    assert runs.run("true", run_dir=shared / "own").process.returncode == 0  # an own link is followed


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def forged(runs: Runs, beat_dir: Path, victim: int) -> str:
    """A state in the format of ftrun, which asks the next ftrun for what its author may not do."""
    runs.run("true", run_dir=runs.folder / "model")
    state = json.loads((runs.folder / "model" / "state.json").read_bytes())
    start = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[19])
    state |= {"beat_dir": str(beat_dir), "pid": victim, "pid_start": start, "ended": False}
    state |= {"visible": ["LD_PRELOAD", "/tmp/evil.so"], "start_cnt": 7}
    return json.dumps(state)


def theirs(shared: Path, text: str) -> None:
    file(shared / "state.json", text)


def theirs_by_a_link(shared: Path, text: str) -> None:
    file(shared / "forged", text)
    link(shared / "state.json", shared / "forged")


def ours_that_all_may_write(shared: Path, text: str) -> None:
    (shared / "state.json").touch()
    (shared / "state.json").chmod(0o666)
    nobody("open(sys.argv[1], 'w').write(sys.argv[2])", shared / "state.json", text)


@pytest.mark.parametrize("how", [theirs, theirs_by_a_link, ours_that_all_may_write])
def test_a_state_of_another_user_is_not_trusted(
    runs: Runs, shared: Path, precious: Path, sleeper: "subprocess.Popen[bytes]", how: Callable[[Path, str], None]
) -> None:
    link(shared / "ftrun-beats-x", precious)
    how(shared, forged(runs, shared / "ftrun-beats-x", sleeper.pid))
    run = runs.run("sh", "-c", "echo start $MA_PROC_START_CNT preload $LD_PRELOAD", run_dir=shared)
    assert run.stdout == "start 1 preload\n"  # it sets nothing in the environment
    assert state_of(sleeper.pid) == "S"  # it ends no process
    assert is_unchanged(precious)  # it empties no folder
    assert "all counts start again from zero" in run.stderr
    assert len(list(shared.glob("state.json.corrupt-*"))) == 1


def test_a_run_dir_of_an_earlier_container_of_another_user_is_continued(runs: Runs) -> None:
    """No other user may write to it: a pod of another user had the volume, or a snapshot links to it."""
    first = runs.run("true")
    for name in ("events.jsonl", "run.log", "state.json"):
        os.chown(first.run_dir / name, 1000, 1000)
        os.link(first.run_dir / name, runs.folder / name)
    run = runs.run("sh", "-c", "echo start $MA_PROC_START_CNT", run_dir=first.run_dir)
    assert (run.wait(), run.stdout) == (0, "start 2\n"), run.log()


def test_only_own_beat_folders_are_removed(shared: Path, precious: Path) -> None:
    link(shared / "ftrun-beats-a", precious)
    beat_folders.remove(str(shared / "ftrun-beats-a"))
    assert is_unchanged(precious)
    nobody("os.mkdir(sys.argv[1]); os.symlink(sys.argv[2], sys.argv[1] + '/to')", shared / "ftrun-beats-b", precious)
    beat_folders.remove(str(shared / "ftrun-beats-b"))
    assert (shared / "ftrun-beats-b" / "to").is_symlink()
    (shared / "ftrun-beats-c").mkdir()
    (shared / "ftrun-beats-c" / "to").symlink_to(precious)
    (shared / "ftrun-beats-c" / "deep" / "er").mkdir(parents=True)
    beat_folders.remove(str(shared / "ftrun-beats-c"))
    assert not (shared / "ftrun-beats-c").exists()
    assert is_unchanged(precious)


def test_a_beat_folder_that_another_user_recreated_is_not_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftrun.host.mounts.memory_folders", lambda: [str(shared)])
    made = beats.create()
    try:
        beat_folders.remove(
            made.path
        )  # the command empties the memory file system, and another user is faster than ftrun
        nobody("os.mkdir(sys.argv[1])", made.path)
        made.reset()
        assert os.listdir(made.path) == []
        assert not made.is_own, "so it is not on PYTHONPATH"
        assert "cannot receive heartbeats" in made.problems[-1]
    finally:
        made.close()


@pytest.mark.parametrize("name", ["reports", "reports/attempt-1", "reports/attempt-1/stacks"])
def test_a_report_is_not_written_through_a_link(shared: Path, precious: Path, name: str) -> None:
    nobody("os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)", shared / name)
    link(shared / name, precious)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        ReportFolder(str(shared), 1).write("# report", {}, {1: "stack"})
    nobody(
        "os.unlink(sys.argv[1]); os.makedirs(sys.argv[2], exist_ok=True)", shared / name, shared / "reports/attempt-1"
    )
    link(shared / "reports" / "attempt-1" / "report.md.new", precious / "file")
    folder = ReportFolder(str(shared), 1)
    folder.write("# report", {}, {1: "stack"})
    assert Path(folder.report).read_text() == "# report"
    assert is_unchanged(precious)


@pytest.mark.parametrize("put", ["a link", "a pipe"])
def test_samples_of_steps_are_not_written_to_a_foreign_file(
    shared: Path, precious: Path, put: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PUT[put](shared / "steps.jsonl", precious / "file")
    monkeypatch.chdir(shared)
    monkeypatch.setattr(steps, "read_slots", lambda beat_dir: [[2] * at.SLOT_WORDS])
    problems: list[str] = []
    lines = ProtocolLines(messenger.EVENTS)
    monkeypatch.setattr(lines, "problem", problems.append)
    sampled = steps.Steps("/nowhere", lines)
    sampled.attempt = 1
    sampled.record(sampled.due)
    assert len(problems) == 1
    assert is_unchanged(precious)


@pytest.mark.parametrize("put", ["a link", "a pipe"])
def test_the_termination_message_follows_no_link_of_another_user(shared: Path, precious: Path, put: str) -> None:
    PUT[put](shared / "log", precious / "file")
    write_message(str(shared / "log"), b"text")
    assert is_unchanged(precious)
    (shared / "own").symlink_to(shared / "target")
    (shared / "target").touch()
    write_message(str(shared / "own"), b"text")
    assert (shared / "target").read_bytes() == b"text"


def found(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mode & 0o7777 for path in folder.rglob("*")}


HANG = (*FTHANG, "sleep", "--after", "2", "--steps", "9", "--step-time", "10ms")
BEATS = "stat -c %a-%n $FTRUN_BEAT_DIR $FTRUN_BEAT_DIR/*"


@pytest.mark.parametrize("umask", [0, 0o77])
def test_files_of_ftrun_are_only_for_its_user(runs: Runs, shared: Path, umask: int) -> None:
    work = f"{BEATS}; exec {' '.join(HANG)} --checkpoint-dir {runs.folder}"
    script = f'umask {umask:o}; exec "$@"'
    run = runs.ends(
        195,
        *("--hang-timeout", "300ms", "--max-restarts", "0", "sh", "-c", work),
        run_dir=shared / "run",
        prefix=["sh", "-c", script, "sh"],
    )
    modes = found(shared)
    assert "run/reports/attempt-1/report.md" in modes
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    in_memory = [
        line.split("-", 1) for line in run.stdout.splitlines() if line.partition("-")[2].startswith("/dev/shm")
    ]
    assert len(in_memory) >= 5
    folder = in_memory[0][1]
    # What a process that changed its user needs: to enter the folder, to ask for access, and to import the hooks.
    opened = {folder: 0o1711, f"{folder}/request": 0o444, f"{folder}/python": 0o755}
    assert {name: oct(int(mode, 8)) for mode, name in in_memory if int(mode, 8) & 0o077} == {
        name: oct(mode) for name, mode in opened.items()
    }
    log = (runs.folder / "termination-log").stat().st_mode & 0o777
    assert log == 0o644 & ~umask  # for the platform


def test_a_file_is_replaced_atomically_and_not_through_a_link(shared: Path, precious: Path) -> None:
    path = shared / "state"
    (shared / "state.new").symlink_to(precious / "file")
    safe_files.replace(str(path), b"new", 0o644)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o644)
    assert (precious / "file").read_text() == "precious"
    (shared / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        safe_files.replace(str(shared / "folder"), b"new")
    assert not (shared / "folder.new").exists()


def test_a_file_is_replaced_on_a_disk_that_refuses_to_change_modes(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(fd: int, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refused)
    umask = os.umask(0o022)
    try:
        safe_files.replace(str(shared / "state"), b"new", 0o644)
    finally:
        os.umask(umask)
    assert ((shared / "state").read_bytes(), (shared / "state").stat().st_mode & 0o777) == (b"new", 0o644)


def test_only_own_files_are_read(shared: Path) -> None:
    folder = os.open(shared, os.O_RDONLY)
    try:
        assert safe_files.read("none", 10, folder) is None
        (shared / "ours").write_text("ours")
        assert safe_files.read("ours", 10, folder) == b"ours"
        with pytest.raises(ValueError, match="larger"):
            safe_files.read("ours", 3, folder)
        os.chown(shared / "ours", 65534, -1)
        with pytest.raises(safe_files.ForeignFile, match="to user 65534"):
            safe_files.read("ours", 10, folder)
    finally:
        os.close(folder)


# --- reading run dirs -------------------------------------------------------------------------------------------------


def test_a_run_dir_belongs_to_the_user_in_its_name(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody("os.mkdir(sys.argv[1]); open(sys.argv[1] + '/events.jsonl', 'w')", shared / "ftrun-0-1-abc")
    monkeypatch.setenv("TMPDIR", str(shared))
    assert rundir.in_temp_folder() == []
    nobody("os.rename(sys.argv[1], sys.argv[2])", shared / "ftrun-0-1-abc", shared / "ftrun-65534-1-abc")
    assert rundir.in_temp_folder() == [str(shared / "ftrun-65534-1-abc")]  # root sees those of all


NASTY = "\x1b]0;owned\x07\x1b[2J\u202e\u2028"


@pytest.mark.parametrize("verb", ["status", "events", "report", "timeline", "stacks", "stop"])
def test_ftctl_reads_a_hostile_run_dir_without_harm(shared: Path, verb: str) -> None:
    """It has pipes, links, huge files and terminal control sequences."""
    nobody(
        "d = sys.argv[1]; os.mkdir(d); os.makedirs(d + '/reports/attempt-1'); os.mkfifo(d + '/state.json')\n"
        "bad = json.loads(sys.argv[2])\n"
        "with open(d + '/events.jsonl', 'w') as f:\n"
        "    for name in ('started', bad, 'hang'):\n"
        "        print(json.dumps({'time': bad, 'event': name, 'attempt': 1, 'command': [bad], 'why': bad}), file=f)\n"
        "    f.truncate(1 << 27)\n"
        "open(d + '/reports/attempt-1/report.md', 'w').write('# ' + bad)\n"
        "os.symlink('/dev/zero', d + '/steps.jsonl'); os.mkfifo(d + '/devices.json'); os.mkfifo(d + '/ftctl.sock')\n",
        shared / f"ftrun-65534-1-{NASTY[:12]}",
        json.dumps(NASTY),
    )
    words = [verb, "--run-dir", str(shared / f"ftrun-65534-1-{NASTY[:12]}")]
    more = ["-o", "-"] if verb == "timeline" else []
    done = subprocess.run([*FTCTL, *words, *more], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1)
    assert [c for c in done.stdout + done.stderr if not (c.isprintable() or c in "\n\t")] == []
    assert "Traceback" not in done.stderr
