"""The mirror helper: what it fetches, what it copies, and what a kill at any moment leaves."""

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.mirror.synchronization import RECORDS
from ftrun.messages.output import MIRROR_EVENTS, MirrorDone
from support.helper_process import HelperProcess
from support.network_disk import Disk
from support.network_disk import disk as disk
from support.runs import wait_for

SOON = "from ftrun.helpers.mirror import synchronization; synchronization.PERIOD = synchronization.PAUSE = 0.01"


def done(**fields: Any) -> dict[str, Any]:
    """The helper's last message."""
    found: dict[str, Any] = json.loads(MIRROR_EVENTS.dump(MirrorDone(**fields)))
    return found


class Folders:
    def __init__(self, path: Path) -> None:
        self.local, self.remote = path / "local", path / "remote"
        self.local.mkdir(0o700)

    def keep(self, read: str = "none", before: str = SOON) -> HelperProcess:
        return HelperProcess("mirror", "keep", str(self.local), str(self.remote), read, before=before)

    def ask(self, *words: str) -> dict[str, Any]:
        with HelperProcess("mirror", *words) as helper:
            assert helper.ended() == 0
            return helper.lines[-1]

    def fetch(self) -> dict[str, Any]:
        return self.ask("fetch", str(self.local), str(self.remote))

    def write(self, name: str, text: str) -> None:
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if name in RECORDS else "w") as stream:
            stream.write(text)

    def has(self, name: str, text: str) -> None:
        path = self.remote / name
        wait_for(lambda: path.exists() and path.read_text() == text, f"{name} there")

    def note(self, folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((folder / "mirror.json").read_text())
        return found


@pytest.fixture
def both(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_new_records_and_replaced_files_are_copied(both: Folders) -> None:
    both.write("events.jsonl", "one\n")
    both.write("state.json", "1")
    with both.keep() as mirror:
        both.has("events.jsonl", "one\n")
        both.write("events.jsonl", "two\nhal")
        both.write("state.json", "2")
        both.write("reports/attempt-1/report.md", "why")
        both.has("state.json", "2")
        both.has("reports/attempt-1/report.md", "why")
        both.has("events.jsonl", "one\ntwo\n")  # complete lines
        both.write("events.jsonl", "f\n")
        both.has("events.jsonl", "one\ntwo\nhalf\n")
        both.write("run.log", "no end")
        assert mirror.end() == 0
        both.has("run.log", "no end")
        assert mirror.problems == []
    assert {path.stat().st_mode & 0o777 for path in both.remote.iterdir() if path.is_file()} == {0o600}
    assert both.remote.stat().st_mode & 0o777 == 0o700


def test_only_complete_regular_files_are_copied(both: Folders, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (both.local / "link.json").symlink_to(tmp_path / "secret")
    (both.local / "away").symlink_to(tmp_path)
    os.mkfifo(both.local / "pipe")
    both.write("state.json.new", "half")
    both.write("once.lock", "")
    both.write("large", "12345")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(both.local / "s"))
        with both.keep(before=f"{SOON}; synchronization.MAX_SIZE = 4") as mirror:
            both.write("state.json", "1")
            both.has("state.json", "1")
            assert mirror.end() == 0
            assert [what.split(": ")[1] for what in mirror.problems] == ["it is larger than 0 MiB"]
    assert sorted(path.name for path in both.remote.iterdir()) == ["mirror.json", "mirror.lock", "state.json"]


def test_copying_resumes_at_the_right_position_after_a_kill(both: Folders) -> None:
    text = ""
    for number in range(4):
        for line in range(500):
            text += f"{number} {line}\n"
        (both.local / "events.jsonl").write_text(text)
        with both.keep(before=f"{SOON}; from ftrun.helpers.mirror import files; files.CHUNK = 64"):
            wait_for(lambda: (both.remote / "events.jsonl").exists(), "it copies")
    with both.keep() as mirror:
        assert mirror.end() == 0
    both.has("events.jsonl", text)
    assert both.note(both.local) == both.note(both.remote)


def test_a_kill_while_taking_over_loses_nothing(both: Folders) -> None:
    """Between any two of its steps."""
    both.remote.mkdir()
    (both.remote / "state.json").write_text("theirs")
    (both.remote / "events.jsonl").write_text("theirs\nhal")
    both.write("state.json", "ours")
    both.write("events.jsonl", "ours\n")
    exits = (
        f"{SOON}; import os; from ftrun.helpers.mirror import files; save, left = files.save, [STEP]\n"
        "def counted(*words):\n left[0] -= 1\n if not left[0]: os._exit(9)\n save(*words)\n"
        "files.save = counted\n"
    )
    for step in (1, 2):
        with both.keep("-", before=exits.replace("STEP", str(step))) as mirror:
            assert mirror.ended() == 9
    with both.keep("-") as mirror:
        assert mirror.end() == 0
    both.has("events.jsonl", "theirs\nhal\nours\n")
    both.has("state.json", "ours")
    assert [path.read_text() for path in both.remote.glob("state.json.unread-*")] == ["theirs"]


def test_remote_files_of_others_are_left_unchanged(both: Folders) -> None:
    """Also those with the name of a record that end with an incomplete line."""
    both.remote.mkdir()
    theirs = {"output.log": "loss 1", "train.log": "half", "data.jsonl": "{", "run.log": "earlier"}
    for name, text in theirs.items():
        (both.remote / name).write_text(text)
    both.write("run.log", "ours\n")
    with both.keep("-") as mirror:
        assert mirror.end() == 0
    both.has("run.log", "earlier\nours\n")
    assert {name: (both.remote / name).read_text() for name in theirs} == theirs | {"run.log": "earlier\nours\n"}


def test_a_file_that_is_started_anew_is_copied_anew(both: Folders) -> None:
    both.write("train.log", "a long line\n")
    both.write("deep/events.jsonl", "one\n")
    both.write("steps.jsonl", "1\n2\n")
    both.write("output.log", "of the command\n")
    both.remote.mkdir()
    (both.remote / "output.log").write_text("earlier\n")
    with both.keep() as mirror:
        both.has("train.log", "a long line\n")
        both.has("deep/events.jsonl", "one\n")
        both.has("steps.jsonl", "1\n2\n")
        both.write("train.log", "another line, and a longer one\n")
        both.write("deep/events.jsonl", "two\n")
        (both.local / "steps.jsonl").write_text("3\n")
        both.has("train.log", "another line, and a longer one\n")
        both.has("deep/events.jsonl", "two\n")
        both.has("steps.jsonl", "3\n")
        both.has("output.log", "of the command\n")
        assert mirror.end() == 0


def test_the_local_state_continues_after_a_kill_while_taking_over(both: Folders) -> None:
    """It does not after the remote folder was removed."""
    both.write("state.json", "ours")
    dies = "from ftrun.helpers.mirror import files; save, files.save = files.save, lambda where, note: DIES"
    only_here = f"{dies.replace('DIES', 'save(where, note) if where.endswith(chr(108)) else os._exit(9)')}; import os"
    with both.keep(before=f"{SOON}; {only_here}") as mirror:
        assert mirror.ended() == 9
    assert both.fetch() == done(read="none", replace=False)
    with both.keep() as mirror:
        assert mirror.end() == 0
    both.has("state.json", "ours")
    os.rename(both.remote, both.remote.with_name("gone"))
    assert both.fetch() == done(read="none", replace=True)


@pytest.mark.parametrize("name", ["state.json", "run.log"])
def test_a_file_that_cannot_be_read_is_a_problem(both: Folders, name: str) -> None:
    """The start is not refused, and an unreadable state does not count as a missing one."""
    both.remote.mkdir()
    for each in ("state.json", "events.jsonl", "run.log"):
        (both.remote / each).write_text(each)
    code = (
        "import errno; from ftrun.helpers.mirror import files; replace = files.replace\n"
        f"def denied(source, target):\n if source.endswith({name!r}): raise PermissionError(errno.EACCES, 'No')\n"
        " replace(source, target)\nfiles.replace = denied"
    )
    with HelperProcess("mirror", "fetch", str(both.local), str(both.remote), before=code) as helper:
        assert helper.ended() == 0
        assert helper.problems == [f"{both.remote}/{name}: No"]
        found = helper.lines[-1]
    if name == "state.json":
        assert found == done(read="-", replace=False)
    else:
        assert found == done(read="none", replace=True)
        assert sorted(os.listdir(both.local / ".fetched")) == ["events.jsonl", "state.json"]


def test_only_files_of_ftrun_are_fetched(both: Folders) -> None:
    both.remote.mkdir()
    for name in ("state.json", "events.jsonl", "steps.jsonl", "run.log", "output.log", "mirror.lock", "mine"):
        (both.remote / name).write_text(name)
    for name in ("config.json", "data.jsonl", "train.log"):  # of an experiment in the same folder
        (both.remote / name).write_text(name)
    (both.remote / "link.json").symlink_to("/etc/hostname")
    brought = both.local / ".fetched"
    assert both.fetch() == done(read="none", replace=True)
    assert {path.name for path in brought.iterdir()} == {"state.json", "events.jsonl", "steps.jsonl", "run.log"}
    brought.rename(both.local.parent / "brought")
    both.local.rmdir()
    (both.local.parent / "brought").rename(both.local)
    with both.keep() as mirror:
        both.write("events.jsonl", "\nmore\n")
        assert mirror.end() == 0
        assert mirror.problems == []
    both.has("events.jsonl", "events.jsonl\nmore\n")
    token = both.note(both.remote)["token"]
    assert both.fetch() == done(read=token, replace=False)  # no one has written there since
    another = "0123456789abcdef"
    other = json.dumps(both.note(both.remote) | {"token": another})
    (both.remote / "mirror.json").write_text(other)
    assert both.fetch() == done(read=another, replace=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to give files away")
def test_a_file_of_another_user_is_not_brought(both: Folders) -> None:
    both.remote.mkdir()
    for name in ("state.json", "events.jsonl"):
        (both.remote / name).write_text("{}\n")
    os.chown(both.remote / "state.json", 65534, 65534)
    both.fetch()
    assert os.listdir(both.local / ".fetched") == ["events.jsonl"]
    os.chown(both.remote, 65534, 65534)  # an NFS server with root squashing
    both.fetch()
    assert sorted(os.listdir(both.local / ".fetched")) == ["events.jsonl", "state.json"]


@pytest.mark.parametrize("name", ["reports", "reports/attempt-1"])
def test_nothing_is_written_through_a_link(both: Folders, name: str) -> None:
    theirs = both.remote.parent / "theirs"
    (theirs / "attempt-1").mkdir(parents=True)
    (both.remote / name).parent.mkdir(parents=True)
    (both.remote / name).symlink_to(theirs)
    with both.keep() as mirror:
        both.write("reports/attempt-1/report.md", "ours")
        both.write("events.jsonl", "{}\n")
        both.has("events.jsonl", "{}\n")
        assert f"{both.remote}/reports/attempt-1/report.md" in mirror.event("problem")["what"]
    assert os.listdir(theirs) == ["attempt-1"]
    assert os.listdir(theirs / "attempt-1") == []


def test_a_disk_that_is_mounted_again_gets_all_files(both: Folders, disk: Disk) -> None:
    """Files written while nothing is mounted there would be hidden by it, and count as copied."""
    both.remote = disk.view / "run"
    with both.keep() as mirror:
        both.write("state.json", "1")
        both.has("state.json", "1")
        disk.unmount()
        both.write("state.json", "2")
        mirror.event("problem", lambda line: "no network disk is mounted" in line["what"])
        assert list(disk.view.iterdir()) == []
        disk.mount()
        both.has("state.json", "2")
        both.write("state.json", "3")
        assert mirror.end() == 0
    both.has("state.json", "3")


def test_a_state_that_was_never_copied_is_not_replaced(both: Folders) -> None:
    both.write("state.json", "ours")
    both.remote.mkdir()
    (both.remote / "state.json").write_text("theirs")
    assert both.fetch() == done(read="-", replace=False)


def test_a_removed_remote_folder_is_copied_again(both: Folders) -> None:
    both.write("events.jsonl", "one\n")
    with both.keep() as mirror:
        both.has("events.jsonl", "one\n")
        os.rename(both.remote, both.remote.with_name("gone"))
        both.write("events.jsonl", "two\n")
        both.has("events.jsonl", "one\ntwo\n")
        both.local.rename(both.local.with_name("away"))
        assert "has been removed" in mirror.event("problem", lambda line: "removed" in line["what"])["what"]
        both.local.with_name("away").rename(both.local)
        assert mirror.end() == 0


@pytest.mark.parametrize(("known", "then"), [("theirs", "ours"), ("an older one", "theirs"), ("", "theirs")])
def test_an_unsaved_file_replaces_only_the_remote_file_it_was_for(both: Folders, known: str, then: str) -> None:
    here, there, unsaved = both.local / "phases.json", both.remote / "phases.json", both.local / "phases.json.unsaved"
    both.remote.mkdir()
    for path, text in ((here, "ours"), (there, "theirs"), (unsaved, known)):
        path.write_text(text)
    assert both.ask("get", str(there), str(here), str(unsaved)) == done()
    assert here.read_text() == there.read_text() == then


@pytest.mark.parametrize("note", ['{"token": 1, "base": {}}', "\0" * 70_000, None])
def test_a_mirror_json_of_someone_else_is_ignored(both: Folders, note: str | None) -> None:
    both.remote.mkdir()
    for folder in (both.local, both.remote):
        if note is None:
            (folder / "mirror.json").symlink_to("/etc/hostname")
        else:
            (folder / "mirror.json").write_text(note)
    (both.remote / "state.json").write_text("theirs")
    assert both.fetch() == done(read="none", replace=True)
    both.write("state.json", "ours")
    with both.keep() as mirror:
        assert mirror.end() == 0
    both.has("state.json", "ours")


def test_a_remote_file_that_was_not_read_is_set_aside(both: Folders) -> None:
    here, there, aside = both.local / "phases.json", both.remote / "phases.json", both.remote / "phases.json.unread"
    both.remote.mkdir()
    here.write_text("ours")
    there.write_text("theirs")
    for _ in range(2):  # as after a kill
        assert both.ask("put", str(here), str(there), str(aside)) == done()
        assert (aside.read_text(), there.read_text()) == ("theirs", "ours")


def test_a_run_dir_that_cannot_be_made_is_refused(both: Folders) -> None:
    both.remote.write_text("a file")
    assert both.fetch() == {"event": "mirror_refused", "why": f"run dir {both.remote}: File exists"}


def test_another_ftrun_in_the_folder_is_not_disturbed(both: Folders) -> None:
    both.write("state.json", "ours")
    both.remote.mkdir()
    with (both.remote / "mirror.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        with both.keep() as mirror:
            assert "another ftrun writes to" in mirror.event("problem")["what"]
            assert not (both.remote / "state.json").exists()
            fcntl.lockf(lock, fcntl.LOCK_UN)
            both.has("state.json", "ours")
            theirs = both.note(both.remote) | {"token": "0123456789abcdef"}  # another node, where the disk has no locks
            (both.remote / "mirror.json").write_text(json.dumps(theirs))
            both.write("state.json", "ours again")
            assert mirror.process.poll() is None
            mirror.process.kill()
    assert both.note(both.remote) == theirs
