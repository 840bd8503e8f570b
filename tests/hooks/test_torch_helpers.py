"""Checkpoints under SIGKILL, torn files, and what a killed attempt left in the container."""

import json
import os
import random
import signal
import subprocess
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ftrun_hooks.torch as helpers
from ftrun_hooks.torch import fresh_shared_memory, latest, once
from support.beat_file import MAGIC, BeatDir
from support.pythons import NEW
from support.runs import alive, wait_for

LONG = 600  # s; never waited for unless something is broken
IMPORTS = "import json, os, signal, sys, time\nfrom ftrun_hooks.torch import *\n"


def command(code: str, *words: str, python: Path = NEW[0]) -> list[str]:
    return [str(python), "-c", IMPORTS + code, *words]


def output(beats: BeatDir, code: str, *words: str, python: Path = NEW[0], **env: str) -> Any:
    """What a program prints, as JSON; it must write nothing else and end well."""
    program = command(code, *words, python=python)
    ran = subprocess.run(program, env=beats.environment(**env), capture_output=True, text=True, timeout=LONG)
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout or "null")


# save and latest: importing torch takes seconds, so one program makes everything

BEGIN = """
import io, random, resource, threading, torch, warnings
from support import beat_file
torch.set_num_threads(1)  # a forked child has no other threads
os.chdir(sys.argv[1])
results = {}
"""
FILES = """
os.mkdir("files")
os.chdir("files")
content = {"data": torch.arange(1000.0), "more": torch.zeros(300), "name": "x" * 40}
torch.save(content, "path.pt")
torch.save(content, "legacy.pt", _use_new_zipfile_serialization=False)
inner = io.BytesIO()
torch.save([1], inner)
torch.save({"inner": torch.frombuffer(bytearray(inner.getvalue()), dtype=torch.uint8)}, "nested.pt")
open("inner.pt", "wb").write(inner.getvalue())
warnings.simplefilter("ignore")
torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "script.pt")
os.chdir("..")
"""
KILLS = """
os.mkdir("killed")
path, chance = os.path.abspath("killed/a.pt"), random.Random(int(sys.argv[2]))
folder = os.path.dirname(path)

def begun(number):
    (reader, writer), content = os.pipe(), {"number": number, "data": torch.full((1 << 20,), float(number))}
    child = os.fork()
    if child == 0:
        os.write(writer, b"!")
        save(content, path)
        os._exit(0)
    os.read(reader, 1)
    os.close(reader), os.close(writer)
    return child

took = []
for number in range(-5, 0):
    child, since = begun(number), time.monotonic()
    os.waitpid(child, 0)
    took.append(time.monotonic() - since)
median = sorted(took)[2]

kept, outcomes = -1, []
for number in range(1000):  # on a busy machine a save may take another time than before
    if number >= 50 and min(map(outcomes.count, ("killed, old", "left a file"))) > 5:
        break
    child, since = begun(number), time.monotonic()
    instant = since + 1.1 * median * (number % 50 + chance.random()) / 50
    while time.monotonic() < instant:
        pass
    os.kill(child, signal.SIGKILL)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert str(latest(folder)) == path
    loaded = torch.load(path)
    assert loaded["number"] in (kept, number), (kept, number, loaded["number"])
    assert (loaded["data"] == loaded["number"]).all()
    outcomes.append(f"{'killed' if killed else 'ended'}, {'old' if loaded['number'] == kept else 'new'}")
    outcomes += ["left a file"] * (len(os.listdir(folder)) - 1)
    kept = loaded["number"]
save({"number": 9999}, path)
results["killed"] = [outcomes, os.listdir(folder), median]
"""
SAVES = """
seen = []

class Spy:
    def __reduce__(self):
        seen.append([name for name, *_ in beat_file.sections()])
        return str, ()

def loaded(path): return torch.load(path, weights_only=False)["x"]

def failed(x):
    try:
        save({"x": x}, "a.pt")
    except Exception as error:
        return [type(error).__name__, loaded("a.pt"), sorted(os.listdir("."))]

os.mkdir("saved")
os.chdir("saved")
save({"x": 1, "spy": Spy()}, "a.pt")
unclaimed = beat_file.slot()["magic"]
save({"x": 2}, "a.pt", step=40)
path, slot = open(os.environ["FTRUN_BEAT_DIR"] + "/checkpoint-0").read(), beat_file.slot()
save({"x": 3, "spy": Spy()}, "a.pt")
unpicklable = failed(lambda: 0)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
full = failed(torch.zeros(1 << 20))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

os.mkdir("elsewhere")
os.symlink("elsewhere/b.pt", "link.pt")
save({"x": 4}, "link.pt")
save({"x": 5}, "n" * 250 + ".pt")
linked = [os.path.islink("link.pt"), loaded("elsewhere/b.pt"), loaded("n" * 250 + ".pt")]

def many(number):
    for _ in range(20):
        save({"x": number, "data": torch.full((1000,), number)}, "shared.pt")

many(0)
threads = [threading.Thread(target=many, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
torn = 0
while any(thread.is_alive() for thread in threads):
    content = torch.load("shared.pt")
    torn += not bool((content["data"] == content["x"]).all())
for thread in threads:
    thread.join()
together = [torn, sorted(name[:4] for name in os.listdir("."))]
results["saved"] = [seen, unclaimed, path, slot["checkpoint_step"], unpicklable, full, linked, together]
print(json.dumps(results))
"""


class Saved(NamedTuple):
    """What the program made in `folder`: its files, and what happened at kills and saves."""

    folder: Path
    files: dict[str, bytes]
    killed: Any
    saved: Any


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("saved")
    beats = BeatDir(folder / "beats")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    results = output(beats, BEGIN + FILES + KILLS + SAVES, str(folder), str(seed))
    beats.close()
    return Saved(folder, {path.stem: path.read_bytes() for path in (folder / "files").iterdir()}, **results)


@pytest.fixture
def files(saved: Saved) -> dict[str, bytes]:
    return saved.files


@pytest.mark.slow
@pytest.mark.torch
def test_a_kill_at_any_instant_leaves_the_old_checkpoint_or_the_new_one(saved: Saved) -> None:
    outcomes, names, took = saved.killed
    counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    print(f"a save takes {took * 1000:.0f} ms; {counts}")
    assert counts["killed, old"] > 5
    assert counts["left a file"] > 5  # of those that were killed in the middle; each is overwritten by the next
    assert names == ["a.pt"]


@pytest.mark.slow
@pytest.mark.torch
def test_save_is_atomic_and_reports_a_checkpoint_with_a_step(saved: Saved) -> None:
    sections, unclaimed, path, step, unpicklable, full, linked, together = saved.saved
    assert unclaimed == 0  # without a step nothing is reported
    assert (path, step) == (str(saved.folder / "saved" / "a.pt"), 41)
    assert sections == [[], ["checkpoint"]]  # only where there are heartbeats
    assert unpicklable[0] in ("PicklingError", "AttributeError")
    assert full[0] in ("OSError", "RuntimeError")
    assert unpicklable[1:] == full[1:] == [3, ["a.pt"]]
    assert linked == [True, 4, 5]
    assert together == [0, ["a.pt", "else", "link", "nnnn", "shar"]]


def put(folder: Path, name: str, content: bytes, age: int = 0) -> Path:
    """A file that was modified `age` seconds before now-ish."""
    path = folder / name
    path.write_bytes(content)
    os.utime(path, (2_000_000_000 - age,) * 2)
    return path


@pytest.mark.slow
@pytest.mark.torch
class TestLatest:
    @pytest.mark.parametrize("name", ["path", "nested"])
    def test_a_file_torn_at_any_byte_is_skipped(self, files: dict[str, bytes], tmp_path: Path, name: str) -> None:
        content = files[name]
        older = put(tmp_path, "older.pt", files["path"], age=1)
        newer = put(tmp_path, "newer.pt", content)
        assert latest(tmp_path) == newer
        for end in (*range(0, len(content), 101), *range(len(content) - 100, len(content))):
            put(tmp_path, "newer.pt", content[:end])
            assert latest(tmp_path) == older, end
            zeroed = content[:end].ljust(len(content), b"\0")
            put(tmp_path, "newer.pt", zeroed)
            assert latest(tmp_path) == (newer if zeroed == content else older), end
        for more in (b"\0", b"\xff" * 22):
            put(tmp_path, "newer.pt", content + more)
            assert latest(tmp_path) == older

    def test_a_torn_file_that_ends_with_a_whole_one_inside_it_is_skipped(
        self, files: dict[str, bytes], tmp_path: Path
    ) -> None:
        inner = files["inner"]
        put(tmp_path, "a.pt", files["nested"][: files["nested"].index(inner) + len(inner)])
        assert latest(tmp_path) is None
        complete = put(tmp_path, "b.pt", inner, age=9)
        assert latest(tmp_path) == complete

    def test_files_other_than_complete_checkpoints_are_skipped(self, files: dict[str, bytes], tmp_path: Path) -> None:
        for name in (".a.pt", "a.pt.tmp", "a.tmp.123", "a.pt.part", "a.pt~", ".a.pt-0123456789abcdef.tmp"):
            put(tmp_path, name, files["path"])
        for name in ("legacy", "script"):
            put(tmp_path, f"{name}.pt", files[name])
        put(tmp_path, "empty.pt", b"")
        put(tmp_path, "text.pt", b"PK\5\6" * 50)
        for names in (["a/data.pkl"], ["a/version", "a/data/0"]):
            with zipfile.ZipFile(tmp_path / f"zip-{len(names)}.pt", "w") as archive:
                for name in names:
                    archive.writestr(name, b"")
        (tmp_path / "folder.pt").mkdir()
        os.mkfifo(tmp_path / "fifo.pt")
        (tmp_path / "dangling.pt").symlink_to("nowhere")
        assert latest(tmp_path) is None
        complete = put(tmp_path, "a.pt", files["path"], age=100)
        assert latest(str(tmp_path)) == complete

    def test_the_newest_and_of_one_time_the_highest_number_is_found(
        self, files: dict[str, bytes], tmp_path: Path
    ) -> None:
        for name in ("step-10.pt", "step-9.pt", "step-009.pt", "9", "x"):
            put(tmp_path, name, files["path"], age=5)
        assert latest(tmp_path) == tmp_path / "x"
        (tmp_path / "x").unlink()
        assert latest(tmp_path) == tmp_path / "step-10.pt"
        newest = put(tmp_path, "a.pt", files["path"], age=4)
        assert latest(tmp_path) == newest

    @settings(deadline=None, max_examples=50)
    @given(content=st.binary())
    def test_garbage_never_raises(self, content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("garbage")
        put(folder, "a.pt", content)
        put(folder, "b.pt", b"PK\3\4" + content + b"PK\5\6".ljust(22, b"\0"))
        assert latest(folder) is None

    def test_under_every_python(self, files: dict[str, bytes], beats: BeatDir, tmp_path: Path) -> None:
        complete = put(tmp_path, "a.pt", files["path"], age=1)
        put(tmp_path, "b.pt", files["path"][:-1])
        entry = files["path"].rindex(b"path/data/0") - 46  # in the central directory
        beyond = (1 << 20).to_bytes(4, "little") * 2  # the sizes
        put(tmp_path, "c.pt", files["path"][: entry + 20] + beyond + files["path"][entry + 28 :])
        for python in NEW:
            assert output(beats, f"print(json.dumps(str(latest({str(tmp_path)!r}))))", python=python) == str(complete)


def test_latest_is_none_without_a_folder_or_a_file(tmp_path: Path) -> None:
    assert latest(tmp_path / "none") is None
    assert latest(tmp_path) is None


# fresh_shared_memory


@pytest.fixture
def segment() -> Iterator[str]:
    name = f"ftrun-test-{uuid.uuid4().hex}"
    yield name
    Path("/dev/shm", name).unlink(missing_ok=True)


HELD = """
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(sys.argv[1], create=True, size=5000)
memory.buf[:3] = b"old"
print(resource_tracker._resource_tracker._pid, flush=True)
input()
"""
FRESH = """
memory = fresh_shared_memory(sys.argv[1], 9000)
print(json.dumps([bytes(memory.buf[:3]).hex(), len(memory.buf), once(sys.version, int), once(sys.version, int)]))
memory.close()
memory.unlink()
"""


def kill_one_that_holds(beats: BeatDir, segment: str, python: Path) -> None:
    """As ftrun does: all processes, so that none is left to remove the segment."""
    child = subprocess.Popen(
        command(HELD, segment, python=python),
        env=beats.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with child:
        assert child.stdout is not None
        tracker = int(child.stdout.readline())
        os.killpg(child.pid, signal.SIGKILL)
    wait_for(lambda: not alive(tracker), "the end of the resource tracker")
    assert Path("/dev/shm", segment).read_bytes()[:3] == b"old"


def test_shared_memory_of_a_killed_attempt_is_created_anew_and_once_works_under_every_python(
    beats: BeatDir, segment: str, tmp_path: Path
) -> None:
    for python in NEW:
        kill_one_that_holds(beats, segment, python)
        start, _, *ran = output(beats, FRESH, segment, python=python, FTRUN_RUN_DIR=str(tmp_path))
        assert start == "000000"
        assert not Path("/dev/shm", segment).exists()
        # The same version may be there twice.
        assert ran in ([True, False], [False, False])


@pytest.mark.parametrize("left", [None, b"", b"old" * 9000], ids=["nothing", "half made", "a larger one"])
def test_shared_memory_is_created_whatever_was_left(beats: BeatDir, segment: str, left: bytes | None) -> None:
    if left is not None:
        Path("/dev/shm", segment).write_bytes(left)
    start, size, *_ = output(beats, FRESH, segment)
    assert start == "000000"
    assert 9000 <= size < 27000


@pytest.mark.parametrize(
    ("name", "size"), [("", 1), ("/", 1), (".", 1), ("..", 1), ("a/b", 1), ("../shm/x", 1), ("x", 0), ("x", -1)]
)
def test_a_bad_name_or_size_removes_nothing(segment: str, name: str, size: int) -> None:
    kept = Path("/dev/shm", segment)
    kept.write_bytes(b"kept")
    with pytest.raises(ValueError, match="not a name and a size"):
        fresh_shared_memory(name.replace("x", segment), size)
    assert kept.read_bytes() == b"kept"


# once


class Container:
    """Starts in one run dir; `work` lists which of them did the work."""

    def __init__(self, folder: Path, beats: BeatDir) -> None:
        self.beats, self.run_dir, self.work = beats, folder / "run", folder / "work"
        self.run_dir.mkdir()
        self.work.touch()

    def start(self, who: str, code: str = "", start: int = 1, **env: str) -> "subprocess.Popen[str]":
        """It prints what `once` returned; `code` runs in the middle of the work."""
        program = (
            "def work():\n with open(sys.argv[1], 'a') as file: file.write(sys.argv[2])\n "
            + (code or "pass")
            + "\nprint('ready', flush=True)\nprint(once('data', work), flush=True)"
        )
        variables = {"FTRUN_RUN_DIR": str(self.run_dir), "MA_PROC_START_CNT": str(start), **env}
        return subprocess.Popen(
            command(program, str(self.work), who),
            env=self.beats.environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until_in_the_middle(process: "subprocess.Popen[str]") -> None:
    assert line(process) == "ready"
    assert line(process) == "in the middle"


def waiting_for_a_lock() -> set[int]:
    """Processes, as proc_locks(5) shows those that are blocked."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(words[5]) for words in lines if words[1] == "->"}


IN_THE_MIDDLE = "print('in the middle', flush=True); input()"


@pytest.fixture
def container(tmp_path: Path, beats: BeatDir) -> Container:
    return Container(tmp_path, beats)


class Here:
    """Starts in one run dir, in this process; `work` lists those that ran it."""

    def __init__(self, patch: pytest.MonkeyPatch, run_dir: Path) -> None:
        self._patch, self.run_dir, self.work = patch, run_dir, list[str]()
        run_dir.mkdir()
        self.set(FTRUN_RUN_DIR=str(run_dir), FTRUN_BEAT_DIR="/beats")

    def set(self, **env: str) -> None:
        for name, value in env.items():
            self._patch.setenv(name, value)

    def start(self, who: str, number: int = 1, **env: str) -> bool:
        """What `once` returns in the start of this number."""
        self.set(MA_PROC_START_CNT=str(number), **env)
        return once("data", lambda: self.work.append(who))

    @property
    def marker(self) -> Path:
        (path,) = (path for path in (self.run_dir / "once").iterdir() if path.suffix != ".lock")
        return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Here:
    return Here(monkeypatch, tmp_path / "run")


class TestOnce:
    def test_it_runs_once_in_a_container(self, here: Here) -> None:
        """Also for another rank, a restart, and another ftrun."""
        assert here.start("a", RANK="0")
        assert not here.start("b", RANK="1")
        assert not here.start("c", 2)
        assert not here.start("d", 3, FTRUN_BEAT_DIR="/another/ftrun/in/this/container")
        assert here.work == ["a"]

    def test_it_runs_again_in_a_new_container_with_an_old_run_dir(
        self, here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert here.start("a")
        assert here.start("b", FTRUN_BEAT_DIR="/new")
        assert not here.start("c")
        monkeypatch.setattr(helpers, "BOOT", str(tmp_path / "none"))  # restarted in its pod
        assert here.start("d", 2)
        assert not here.start("e", 2)
        assert here.work == ["a", "b", "d"]

    def test_it_always_runs_outside_ftrun_and_without_a_writable_run_dir(self, here: Here) -> None:
        assert here.start("a", FTRUN_BEAT_DIR="")
        assert here.start("b", 2, FTRUN_BEAT_DIR="/beats", FTRUN_RUN_DIR="")
        assert list(here.run_dir.iterdir()) == []
        here.run_dir.rmdir()
        here.run_dir.touch()
        assert [here.start("c", number, FTRUN_RUN_DIR=str(here.run_dir)) for number in (1, 2)] == [True, True]

    def test_it_runs_again_after_a_damaged_marker(self, here: Here) -> None:
        here.start("a")
        for content in (b"", b"{", b"[]", b"null", b"\xff", b"{}"):
            here.marker.write_bytes(content)
            assert here.start("b", 2), content

    def test_one_rank_runs_it_while_the_others_wait(self, container: Container) -> None:
        first = container.start("0", IN_THE_MIDDLE)
        until_in_the_middle(first)
        others = [container.start(str(rank), RANK=str(rank)) for rank in range(1, 4)]
        assert [line(other) for other in others] == ["ready"] * 3
        wait_for(lambda: {other.pid for other in others} <= waiting_for_a_lock(), "all the others to wait")
        assert first.communicate("\n", timeout=60)[0] == "True\n"
        assert [other.communicate(timeout=60)[0] for other in others] == ["False\n"] * 3
        assert container.work.read_text() == "0"

    def test_the_rank_that_waits_or_the_next_start_runs_it_after_a_kill(self, container: Container) -> None:
        with container.start("0", IN_THE_MIDDLE) as first:
            until_in_the_middle(first)
            second = container.start("1", IN_THE_MIDDLE)
            assert line(second) == "ready"
            first.kill()
        with second:
            assert line(second) == "in the middle"
            second.kill()
        assert container.start("2", start=2).communicate(timeout=60)[0] == "ready\nTrue\n"
        assert container.start("3", start=2).communicate(timeout=60)[0] == "ready\nFalse\n"
        assert container.work.read_text() == "012"

    def test_an_error_propagates_and_another_rank_may_try(self, here: Here) -> None:
        with pytest.raises(ZeroDivisionError):
            once("data", lambda: 1 / 0)
        assert here.start("1")

    def test_a_child_that_the_work_left_does_not_block_others(self, container: Container) -> None:
        first = container.start("0", "os.fork() or (print(os.getpid(), flush=True), time.sleep(600), os._exit(0))")
        assert line(first) == "ready"
        lines = {line(first), line(first)}  # of either process
        child = int((lines - {"True"}).pop())
        try:
            assert "True" in lines
            assert container.start("1").communicate(timeout=60)[0] == "ready\nFalse\n"
        finally:
            os.kill(child, signal.SIGKILL)
            first.communicate(timeout=60)

    @settings(deadline=None, max_examples=20)
    @given(names=st.sets(st.text(), min_size=1))
    def test_any_name_is_safe_and_distinct(self, names: set[str], tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("names")
        names |= {"../../x", "/x", "..", "", "x" * 5000, "a\0b", "\ud800", "Ünï"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FTRUN_RUN_DIR", str(folder))
            patch.setenv("FTRUN_BEAT_DIR", "/beats")
            assert [once(name, lambda: None) for name in names] == [True] * len(names)
            assert [once(name, lambda: None) for name in names] == [False] * len(names)
        assert [path.name for path in folder.iterdir()] == ["once"]
        assert len(list((folder / "once").iterdir())) == 2 * len(names)


def test_once_is_a_section_of_a_rank_with_heartbeats(container: Container) -> None:
    code = "from support import beat_file; import ftrun_hooks as ft; ft.beat()\n"
    code += "once('x', lambda: print(json.dumps(beat_file.sections())))"
    assert output(container.beats, code, FTRUN_RUN_DIR=str(container.run_dir))[0][0] == "once"
    assert container.beats.slot()["magic"] == MAGIC
