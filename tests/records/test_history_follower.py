"""The history that a helper follows: as one that is read at once, and of a bounded size."""

import gc
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from ftrun.core.rules.fault_history import Schedule
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.shared_folder import Folder
from ftrun.helpers.state_store.life_file import TAIL, LifeFile
from ftrun.messages import state_store as messages
from ftrun.messages.run_state import RunFacts, RunState
from ftrun.records.files.record_files import GrowingFile
from ftrun.records.files.state import SavedState
from ftrun.records.past import history, schedules
from ftrun.records.past.history import HistoryReader
from ftrun.records.past.schedules import RunLife
from support.scripted import BEGAN, Script

LIFE = RunLife(1, "n-1-2", 3, 0, "n", "", "", "/run", "", BEGAN - 1)
PAGES, PAGE = 6, 150  # attempts


def write(script: Script, run_dir: Path) -> None:
    """Append what the script has become since, and forget it but for the last record."""
    run_dir.mkdir(exist_ok=True)
    for name, lines, kept in (("events.jsonl", script.records, 1), ("steps.jsonl", script.steps, 0)):
        with (run_dir / name).open("a") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines if "written" not in line)
        del lines[: len(lines) - kept]
        lines[:] = [line | {"written": True} for line in lines]


def attempt(script: Script, chance: random.Random, number: int) -> None:
    """One more attempt of any kind, with steps and checkpoints or without, and its end."""
    reason, step = chance.choice(("hang", "failure", "fault", "peer")), chance.choice((None, 5 * number))
    script.starts("" if number == 0 else reason, startup=chance.choice((0, 2)), step=step)
    for high in range(5 * number, 5 * number + chance.randint(0, 9)):
        script.stepped(high, high).after(chance.choice((0.5, 8)))
        if chance.random() < 0.2:
            script.saves(high)
        if chance.random() < 0.1:
            script.record("paused").after(9).record("resumed", stood=chance.choice((None, 5.0)))
    match chance.randrange(4):
        case 0:
            script.hangs(int(script.at))
        case 1:
            script.record("exited", code=1).record("stopping", by="SIGTERM").after(4)
        case 2:
            script.record("fault", device="GPU-1", code="Xid94", severity="major").record("stopping", by="SIGKILL")
            script.after(2).record("healing", device="GPU-1", code="Xid94", severity="major").after(3)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_history_that_is_read_at_once(tmp_path: Path, seed: int) -> None:
    chance, script, run_dir = random.Random(seed), Script(), tmp_path / "run"
    attempt(script, chance, 0)
    write(script, run_dir)
    follower = HistoryReader(str(run_dir), TAIL, TAIL, 6)
    for number in range(1, 40):
        followed, whole = (
            schedules.with_history(LIFE, found) for found in (follower.read(), history.read(str(run_dir)))
        )
        assert followed == whole._replace(attempts=whole.attempts[-6:])
        attempt(script, chance, number)
        write(script, run_dir)


class Store:
    """A life file of a run whose attempts fail, one after another."""

    def __init__(self, tmp_path: Path) -> None:
        self.script, self.run_dir, self.state, self.number = Script(), tmp_path / "run", tmp_path / "state", 0
        lines, run_dir = ProtocolLines(messages.EVENTS), str(self.run_dir)
        self.life = LifeFile(Folder(str(self.state), pytest.fail), run_dir, run_dir, lines)
        self.run_dir.mkdir()

    def fail(self, times: int) -> None:
        for _ in range(times):
            self.script.starts("failure" if self.number else "", startup=1, step=self.number)
            self.script.stepped(self.number, self.number)
            self.script.after(1).record("exited", code=3, why="x" * 2000).record("stopping", by="SIGTERM")
            self.number += 1
        write(self.script, self.run_dir)
        with (self.run_dir / "output.log").open("a") as file:
            file.writelines(f"--- attempt {self.number - i} ---\n{'boom' * 75}\n" for i in reversed(range(times)))
        schedule = Schedule("k", 1, "n", BEGAN - 1, None, None, False, False, False)
        self.life.follow(messages.Keep((), schedule, self.number, False))

    def peak(self) -> int:
        """Bytes that are in use for a moment when one more has failed."""
        gc.collect()
        tracemalloc.start()
        try:
            self.fail(1)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("ftrun.helpers.state_store.life_file.REPORTS", 3)
    return Store(tmp_path)


def test_what_is_kept_and_read_does_not_grow_with_the_attempts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the state store of a run with thousands of attempts that fail."""
    sizes, read, next_lines = list[int](), 0, GrowingFile.next_lines

    def counted(file: GrowingFile) -> list[bytes]:
        nonlocal read
        found = next_lines(file)
        read += sum(len(line) + 1 for line in found)
        return found

    monkeypatch.setattr(GrowingFile, "next_lines", counted)
    tracemalloc.start()
    try:
        for _ in range(PAGES):
            store.fail(PAGE)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    total = sum((store.run_dir / name).stat().st_size for name in ("events.jsonl", "steps.jsonl"))
    assert read == total, "each byte once"
    assert max(sizes[2:]) - sizes[1] < 300_000, sizes
    (found,) = schedules.read(str(store.state))
    assert [one.number for one in found.attempts] == list(range(PAGES * PAGE - schedules.MOST + 1, PAGES * PAGE + 1))


def test_one_more_attempt_takes_no_more_memory_however_long_the_records_are(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = SavedState(
        rest=RunState(run=RunFacts(command=("train",)))
    )  # without it the command is looked for in all records
    monkeypatch.setattr("ftrun.records.files.state.load", lambda _: known)
    store.fail(schedules.MOST + 50)
    before = store.peak()
    store.fail(800)
    assert (store.run_dir / "events.jsonl").stat().st_size > 2 << 20
    assert store.peak() < before + 300_000


def test_only_the_last_copies_of_reports_are_kept(store: Store) -> None:
    for _ in range(12):
        store.fail(1)
    copies = [schedules.report_copy(str(store.state), "k", number) for number in (9, 10, 11)]
    assert sorted(map(str, Path(copies[0]).parent.iterdir())) == sorted(copies), "the 12th is not known to be over yet"
