"""The state store: no request is lost, even if others write, it is killed, or the disk is full."""

import fcntl
import json
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.rules.fault_history import Occurrence
from ftrun.helpers.shared_folder import ForeignContent
from ftrun.helpers.state_store import contents
from support.helper_process import HelperProcess
from support.runs import MOUNTS, need_mounts

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
DAY = 24 * 3600.0
Entry = dict[str, Any]


def fault(number: int = 0, **other: Any) -> Entry:
    at = {"wall": time.time(), "boot": BOOT, "mono": float(number)}
    at |= {name: other.pop(name) for name in tuple(at) if name in other}
    return {"node": "n1", "device": "npu-0", "code": f"C{number}", "severity": "major", "at": at, "job": ""} | other


def schedule(key: str = "job/1", **other: Any) -> Entry:
    made = {"key": key, "number": 1, "node": "n1", "wall": 1.5, "best_step": None, "best_checkpoint": None}
    made |= {"progressed": False, "faulted": False, "failed": False, "phase": "", "job": ""}
    return made | {"last_step": None, "last_checkpoint": "", "member": 0} | other


def verdict(schedule_cnt: int = 1, **other: Any) -> Entry:
    made = {"schema": 1, "verdict": "node-fault", "exit_code": 197, "node": "n1", "device": None, "why": "it is broken"}
    return made | {"schedule_cnt": schedule_cnt, "time": datetime.now(UTC).isoformat()} | other


def put(folder: Path, *faults: object, schedules: object = (), **other: Any) -> Path:
    path = folder / "history.json"
    path.write_text(json.dumps({"schema": 1, "faults": faults, "schedules": schedules} | other))
    return path


def kept(folder: Path) -> Entry:
    found: Entry = json.loads((folder / "history.json").read_bytes())
    return found


def codes(entries: Entry) -> list[str]:
    return [entry["code"] for entry in entries["faults"]]


def _history(state_store: HelperProcess) -> Entry:
    line = state_store.event("stored_history")
    return {name: line[name] for name in ("faults", "schedules")}


def keep(state_store: HelperProcess, *faults: object, schedule: object = None) -> Entry:
    state_store.ask(ask="keep", faults=faults, schedule=schedule)
    return _history(state_store)


def start(folder: Path, **more: Any) -> tuple[HelperProcess, Entry]:
    state_store = HelperProcess("state_store", str(folder), **more)
    return state_store, _history(state_store)


NONE: Entry = {"faults": [], "schedules": []}


def test_it_creates_a_folder_that_the_scheduler_can_read_and_sends_the_history(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    state_store, known = start(folder)
    with state_store:
        assert known == NONE
        assert not (folder / "history.json").exists()
        assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o755, 0o755]
        assert keep(state_store, fault(1), schedule=schedule()) == {"faults": [kept(folder)["faults"][0]]} | {
            "schedules": [schedule()]
        }
        assert (folder / "history.json").stat().st_mode & 0o777 == 0o644
        assert state_store.end() == 0
        assert state_store.problems == []
    assert sorted(os.listdir(folder)) == ["history.json", "history.lock"]
    again, known = start(folder)
    with again:
        assert codes(known) == ["C1"]
        assert known["schedules"] == [schedule()]


def test_a_fault_is_stored_once_and_a_schedule_is_merged(tmp_path: Path) -> None:
    state_store, _ = start(tmp_path)
    with state_store:
        seen = fault(1)
        keep(state_store, seen, schedule=schedule(best_step=7, faulted=True))
        keep(state_store, seen, fault(2), seen, schedule=schedule("job/2", number=2))
        known = keep(state_store, schedule=schedule(best_step=3, best_checkpoint=2, progressed=True, node="n2"))
    assert codes(known) == ["C1", "C2"]
    joined = schedule(best_step=7, best_checkpoint=2, progressed=True, faulted=True, node="n2")
    assert known["schedules"] == [joined, schedule("job/2", number=2)]


def test_entries_of_other_state_stores_are_preserved(tmp_path: Path) -> None:
    other = fault(9, node="n2", boot="another boot")
    put(tmp_path, other | {"note": {"by": "a later version"}}, schedules=[schedule("else/1", colour="red")], later=[1])
    state_store, known = start(tmp_path)
    with state_store:
        assert known == {"faults": [other], "schedules": [schedule("else/1")]}
        keep(state_store, fault(1), schedule=schedule("else/1"))
        assert state_store.problems == []
    assert kept(tmp_path)["faults"][0] == other
    assert kept(tmp_path)["schedules"] == [schedule("else/1")]


def test_faults_of_two_days_or_this_boot_are_sent_and_older_ones_stored(tmp_path: Path) -> None:
    """A wall clock that is wrong for an hour hides no fault of this boot."""
    now = time.time()
    ages = {"old": fault(boot="b", wall=now - 3 * DAY), "old here": fault(wall=now - 300 * DAY), "new": fault(boot="b")}
    ages |= {"ahead": fault(boot="b", wall=now + 9 * DAY)}
    put(tmp_path, *[entry | {"code": code} for code, entry in ages.items()])
    state_store, known = start(tmp_path)
    with state_store:
        assert codes(known) == ["old here", "new", "ahead"]
        keep(state_store, fault(1))
    assert codes(kept(tmp_path)) == [*ages, "C1"]


def test_a_reply_has_at_most_the_size_that_pid_1_accepts_and_the_latest_entries(tmp_path: Path) -> None:
    put(tmp_path, *[fault(n) for n in range(1500)], schedules=[schedule(f"job/{n}") for n in range(90)])
    state_store, known = start(tmp_path)
    with state_store:
        assert codes(known) == [f"C{n}" for n in range(1244, 1500)]
        assert [one["key"] for one in known["schedules"]] == [f"job/{n}" for n in range(26, 90)]
        long = [fault(n, device="x" * 1500) for n in range(100)]
        for at in range(0, 100, 20):
            known = keep(state_store, *long[at : at + 20])
        assert 10 < len(known["faults"]) < 40
        assert known["faults"][-1]["code"] == "C99"
        assert max(len(json.dumps(line)) for line in state_store.lines) < 65536


def test_many_faults_of_one_device_do_not_displace_those_of_others(tmp_path: Path) -> None:
    state_store, _ = start(tmp_path)
    with state_store:
        keep(state_store, fault(1, node="n7"))
        for at in range(0, 2000, 100):
            known = keep(state_store, *[fault(n, code="S") for n in range(at, at + 100)])
    assert [entry["node"] for entry in known["faults"]].count("n7") == 1
    assert [entry["at"]["mono"] for entry in known["faults"][1:]] == [float(n) for n in range(1992, 2000)]


def test_two_state_stores_at_once_lose_nothing(tmp_path: Path) -> None:
    def many(name: str) -> None:
        state_store, _ = start(tmp_path)
        with state_store:
            for number in range(30):
                keep(
                    state_store, fault(number, node=name), schedule=schedule(f"{name}/{number % 10}", best_step=number)
                )
            assert state_store.problems == []
            assert state_store.end() == 0

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(many, name) for name in ("a", "b")]:
            done.result()
    found = kept(tmp_path)
    assert {(f["node"], f["code"]) for f in found["faults"]} == {(n, f"C{i}") for n in "ab" for i in range(30)}
    steps = {one["key"]: one["best_step"] for one in found["schedules"]}
    assert steps == {f"{name}/{number}": 20 + number for name in "ab" for number in range(10)}
    assert sorted(os.listdir(tmp_path)) == ["history.json", "history.lock"]


# Killed before the `left`th call to the system; and a disk that takes only part of what is written at a time.
DIES = """
import os, signal
left = {left}
def mortal(call):
    def counted(*given, **more):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*given, **more)
    return counted
write = os.write
os.write = lambda fd, content: write(fd, content[: len(content) // 3 + 99] if fd > 2 else content)
for name in ("open", "write", "fsync", "rename", "unlink"):
    setattr(os, name, mortal(getattr(os, name)))
"""


def test_a_kill_before_any_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    put(tmp_path, fault(0))
    added = set[int]()
    for left in range(1, 200):
        before = codes(kept(tmp_path))
        with HelperProcess("state_store", str(tmp_path), before=DIES.format(left=left)) as state_store:
            state_store.ask(ask="keep", faults=[fault(left)], schedule=None)
            code = state_store.end()
            assert state_store.problems == [], "of what the one before has left"
        after = codes(kept(tmp_path))
        assert after in (before, [*before, f"C{left}"])
        added.add(len(after) - len(before))
        if code == 0:
            break
    assert code == 0
    assert added == {0, 1}
    assert sorted(os.listdir(tmp_path)) == ["history.json", "history.lock"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"schema": 1, "faults": [',
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"schema": true, "faults": [], "schedules": []}',
        b'{"schema": 2, "faults": [], "schedules": []}',
        b'{"schema": 1, "faults": {}, "schedules": []}',
        b'{"schema": 1, "faults": []}',
    ],
)
def test_a_foreign_history_is_rejected(content: bytes) -> None:
    with pytest.raises(ForeignContent):
        contents.parse(content)


def test_a_foreign_file_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "history.json.corrupt-1").write_text("an earlier one")
    for number, content in ((2, b"null"), (3, b" " * (9 << 20))):
        (tmp_path / "history.json").write_bytes(content)
        state_store, known = start(tmp_path)
        with state_store:
            assert known == NONE
            assert len(state_store.problems) == 1
            assert f"history.json.corrupt-{number}" in state_store.problems[0]
            keep(state_store, fault(1))
        assert (tmp_path / f"history.json.corrupt-{number}").read_bytes() == content
        assert codes(kept(tmp_path)) == ["C1"]
    assert (tmp_path / "history.json.corrupt-1").read_text() == "an earlier one"


def test_the_history_survives_a_damaged_file(tmp_path: Path) -> None:
    state_store, _ = start(tmp_path)
    with state_store:
        keep(state_store, fault(1))
        (tmp_path / "history.json").write_text("broken")
        assert codes(keep(state_store, fault(2))) == ["C1", "C2"]
        os.unlink(tmp_path / "history.json")
        keep(state_store)
    assert codes(kept(tmp_path)) == ["C1", "C2"]


def lacking(entry: Entry, name: str) -> Entry:
    return {key: value for key, value in entry.items() if key != name}


NAMES = [name for name in Occurrence._fields if name not in Occurrence._field_defaults]
BAD_FAULTS: list[object] = [
    *(lacking(fault(7), name) for name in NAMES),
    *(fault(7) | {name: True} for name in NAMES),
    *(fault(7, **{name: [1]}) for name in ("wall", "mono", "boot")),
    fault(7, wall=1e13),
    fault(7, job="x" * 5000),
    3,
]
BAD_SCHEDULES: list[Entry] = [
    *({"number": 1.5}, {"best_step": "7"}, {"progressed": 1}, {"wall": float("nan")}, {"number": True}, {"key": None})
]


def test_a_bad_entry_is_dropped_and_the_others_stay() -> None:
    faults = [fault(1), *BAD_FAULTS, fault(2)]
    schedules = [schedule("a"), *(schedule("b") | wrong for wrong in BAD_SCHEDULES), schedule("c")]
    found, dropped = contents.parse(json.dumps({"schema": 1, "faults": faults, "schedules": schedules}).encode())
    assert [entry.code for entry in found.faults] == ["C1", "C2"]
    assert [entry.key for entry in found.schedules] == ["a", "c"]
    expected = [f"faults[{n + 1}]" for n in range(len(BAD_FAULTS))]
    expected += [f"schedules[{n + 1}]" for n in range(len(BAD_SCHEDULES))]
    assert [reason.partition(":")[0] for reason in dropped] == expected


def test_a_pipe_a_link_or_a_folder_in_its_place_is_set_aside_and_never_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(tmp_path, fault(8)).rename(elsewhere)
    folder = tmp_path / "kept"
    folder.mkdir()
    makes: list[Callable[[Path], None]] = [os.mkfifo, lambda path: path.symlink_to(elsewhere), os.mkdir]
    for number, make in enumerate(makes, 1):
        make(folder / "history.json")
        state_store, known = start(folder)
        with state_store:
            assert known == NONE
            assert codes(keep(state_store, fault(number))) == [f"C{number}"]
            assert f"history.json.corrupt-{number}" in state_store.problems[0]
        assert codes(kept(folder)) == [f"C{number}"]
        (folder / "history.json").unlink()
    assert codes(json.loads(elsewhere.read_bytes())) == ["C8"]


def test_a_write_error_is_reported_once_and_replies_come_from_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state_store, known = start(tmp_path / "file" / "state")
    with state_store:
        assert known == NONE
        keep(state_store, fault(1), schedule=schedule(best_step=1))
        assert codes(keep(state_store, fault(2))) == ["C1", "C2"]
        assert told(state_store, verdict())["exit_code"] == 197
        assert shared(state_store) is None
        assert sum("history.json cannot be written" in what for what in state_store.problems) == 1
        (tmp_path / "file").unlink()  # the disk is back: what could not be written then is now
        keep(state_store, fault(3))
    assert codes(kept(tmp_path / "file" / "state")) == ["C1", "C2", "C3"]
    assert kept(tmp_path / "file" / "state")["schedules"] == [schedule(best_step=1)]


def test_a_read_only_folder_can_be_read(tmp_path: Path) -> None:
    need_mounts()
    put(tmp_path, fault(1))
    read_only = f"mount --bind {tmp_path} {tmp_path}; mount -o remount,ro,bind {tmp_path}"
    state_store, known = start(tmp_path, prefix=[*MOUNTS, "sh", "-ec", f'{read_only}\nexec "$@"', "sh"])
    with state_store:
        assert codes(known) == ["C1"]
        assert codes(keep(state_store, fault(2))) == ["C1", "C2"]
        assert codes(keep(state_store)) == ["C1", "C2"]
        assert len(state_store.problems) == 2  # of the lock, and of the file
        assert all("Read-only" in what for what in state_store.problems)
    assert codes(kept(tmp_path)) == ["C1"]


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        deque(iter(lambda: file.write(b"x" * 4096), 0))


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    need_mounts()
    fill = f"mount -t tmpfs -o size=64k x {tmp_path}; echo hello > {tmp_path}/full"
    prefix = [*MOUNTS, "sh", "-ec", f'{fill}\nexec "$@"', "sh"]
    state_store, _ = start(tmp_path, prefix=prefix)
    with state_store:
        keep(state_store, fault(1))
        root = Path(f"/proc/{state_store.process.pid}/root{tmp_path}")
        fill_up(root / "full")
        assert codes(keep(state_store, *[fault(n) for n in range(2, 60)]))[:2] == ["C1", "C2"]
        assert "No space left" in state_store.problems[0]
        assert codes(kept(root)) == ["C1"]
        assert not [name for name in os.listdir(root) if name.endswith(".new")]
        (root / "full").unlink()
        keep(state_store)
        assert len(codes(kept(root))) == 59


def test_the_wait_for_a_lock_is_bounded(tmp_path: Path) -> None:
    with open(tmp_path / "history.lock", "wb") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        patience = "import ftrun.helpers.shared_folder as folder; folder.PATIENCE = 0.2"
        state_store, _ = start(tmp_path, before=patience)
        with state_store:
            keep(state_store, fault(1))
            assert len(state_store.problems) == 1
            assert "without a lock" in state_store.problems[0]
    assert codes(kept(tmp_path)) == ["C1"]
    assert sorted(os.listdir(tmp_path)) == ["history.json", "history.lock"]


def test_pending_requests_are_completed_when_stdin_ends(tmp_path: Path) -> None:
    state_store, _ = start(tmp_path)
    with state_store:
        for number in range(30):
            state_store.ask(ask="keep", faults=[fault(number)], schedule=None)
        assert state_store.end() == 0
        assert sum(line["event"] == "stored_history" for line in state_store.lines) == 31
    assert len(kept(tmp_path)["faults"]) == 30


def told(state_store: HelperProcess, made: Entry, **more: Any) -> Entry:
    """The verdict that stands, after this one was stored."""
    state_store.ask(ask="store_verdict", verdict=made, **more)
    found: Entry = state_store.event("verdict_stored")["verdict"]
    return found


def shared(state_store: HelperProcess, schedule_cnt: int = 1, since: float = 0) -> object:
    state_store.ask(ask="get_verdict", schedule_cnt=schedule_cnt, since=since)
    return state_store.event("shared")["verdict"]


def test_the_first_verdict_of_a_schedule_stands_unless_it_is_of_an_earlier_job(tmp_path: Path) -> None:
    state_store, _ = start(tmp_path)
    other, _ = start(tmp_path)
    with state_store, other:
        first, began = verdict(), time.time() - 60
        assert told(state_store, first) == first
        assert told(other, verdict(exit_code=195)) == first
        assert shared(other, since=began) == first
        assert json.loads((tmp_path / "verdict.json").read_bytes()) == first
        second = verdict(2, exit_code=93, time="2020-01-01T00:00:00Z")
        assert told(other, second) == second
        assert (shared(state_store, 1), shared(state_store, 2)) == (None, second)
        assert shared(state_store, 2, began) is None
        mine = verdict(2, exit_code=94)
        assert told(state_store, mine, since=began) == mine


def test_the_verdict_about_one_member_is_not_that_of_the_job(tmp_path: Path) -> None:
    """Each has a file of its own, with the newest."""
    state_store, _ = start(tmp_path)
    first, other, second = verdict(), verdict(node="n2"), verdict(2)
    with state_store:
        for member, made in ((1, first), (2, other), (1, second)):
            assert told(state_store, made, member=member) == made
        assert shared(state_store) is None
    assert not (tmp_path / "verdict.json").exists()
    assert json.loads((tmp_path / "verdict-member-1.json").read_bytes()) == second
    assert json.loads((tmp_path / "verdict-member-2.json").read_bytes()) == other


@pytest.mark.parametrize("name", ["schema", "verdict", "exit_code", "node", "why", "schedule_cnt", "time"])
def test_an_incomplete_verdict_is_rejected(name: str) -> None:
    contents.parse_verdict(json.dumps(lacking(verdict(), "device")).encode())
    with pytest.raises(ForeignContent):
        contents.parse_verdict(json.dumps(lacking(verdict(), name)).encode())
