"""The reader of the beat file, and the memory file system that contains the file."""

import mmap
import os
import shlex
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.host import beats
from ftrun.host.beat_file import LOST
from ftrun_hooks import layout as at
from support.runs import FTRUN, HOUSE, Runs, need_mounts, python, wait_for


class Writer:
    """Writes slots as the layout defines them, without the hooks."""

    def __init__(self, folder: str) -> None:
        with open(f"{folder}/{at.BEATS}", "r+b") as file:
            self.map = mmap.mmap(file.fileno(), at.FILE_BYTES)
        self.start = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])

    def put(self, rank: int, word: int, value: int) -> None:
        struct.pack_into("=Q", self.map, (at.slot_of(rank) + word) * at.WORD, value)

    def claim(self, rank: int, step: int | None = None, now: float | None = None, pid: int = 0) -> None:
        stamp = int((time.monotonic() if now is None else now) * 1e9)
        words = {at.PID: pid or os.getpid(), at.START_TICKS: self.start, at.RANK: rank, at.CLAIMED_AT: stamp}
        if step is not None:
            words |= {at.ALIVE_AT: stamp, at.MOVED_AT: stamp, at.STEP: step + 1}
        for word, value in (words | {at.MAGIC_WORD: at.MAGIC}).items():
            self.put(rank, word, value)

    def section(self, rank: int, name: bytes, started: float, timeout: float) -> None:
        entry = struct.pack("=QQ48s", int(started * 1e9), int(timeout * 1e9), name)
        first = (at.slot_of(rank) + at.SECTION_TABLE) * at.WORD
        self.map[first : first + len(entry)] = entry
        self.put(rank, at.DEPTH, 1)


@pytest.fixture
def reader() -> Iterator[beats.Beats]:
    made = beats.create()
    yield made
    made.close()
    assert not os.path.exists(made.path)


@pytest.fixture
def writer(reader: beats.Beats) -> Writer:
    return Writer(reader.path)


def test_all_slots_are_read(reader: beats.Beats, writer: Writer) -> None:
    now = time.monotonic()
    for rank in range(at.SLOTS):
        writer.claim(rank, step=rank * 2, now=now - 1)
    ranks = reader.read(now)
    assert [r.rank for r in ranks] == list(range(at.SLOTS))
    assert [r.step for r in ranks] == [rank * 2 for rank in range(at.SLOTS)]
    assert all(r.present and r.moved_at == pytest.approx(now - 1) for r in ranks)
    assert all(r.present for r in reader.read(now + 1)), "their process is running"
    reader.reset()
    assert reader.read(now) == ()
    writer.claim(3)
    (claimed,) = reader.read(now)
    assert (claimed.rank, claimed.alive_at, claimed.moved_at, claimed.step) == (3, None, None, None)
    assert not reader.problems


def test_an_incomplete_write_leaves_the_sections_unchanged(reader: beats.Beats, writer: Writer) -> None:
    now = time.monotonic()
    writer.claim(0, step=1)
    writer.section(0, b"evaluate", now, 5)
    (before,) = reader.read(now)
    writer.put(0, at.SEQUENCE, 7)  # its writer was killed in the middle
    writer.section(0, b"torn", now, 1)
    (torn,) = reader.read(now)
    assert [(s.name, s.timeout) for s in before.sections] == [("evaluate", 5.0)]
    assert before.sections == torn.sections
    writer.put(0, at.SEQUENCE, 8)
    (after,) = reader.read(now)
    assert [s.name for s in after.sections] == ["torn"]
    writer.claim(1, step=1)
    writer.section(1, b"torn", 1, 1)
    writer.put(1, at.SEQUENCE, 1)
    assert reader.read(now)[1].sections == (), "nothing was read of it before"


SPOILED = {  # words of the slot of rank 2, the problem, and the ranks that are read
    "layout": ({at.MAGIC_WORD: at.MAGIC + 1}, "beat slot 2 has another layout version; ftrun ignores it", [3]),
    "time": ({at.MOVED_AT: 1 << 63}, "beat slot of rank 2 contains a time in the future; ftrun ignores it", [3]),
    "rank": (
        {at.FLAGS: at.NO_RANK},
        f"RANK or LOCAL_RANK of process {os.getpid()} is not a number: ftrun uses rank 2",
        [2, 3],
    ),
}


@pytest.mark.parametrize(("words", "problem", "ranks"), SPOILED.values(), ids=SPOILED.keys())
def test_an_invalid_slot_is_reported_once(
    reader: beats.Beats, writer: Writer, words: dict[int, int], problem: str, ranks: list[int]
) -> None:
    writer.claim(2, step=1)
    writer.claim(3, step=1)
    for word, value in words.items():
        writer.put(2, word, value)
    for _ in range(3):
        assert [r.rank for r in reader.read(time.monotonic()) if not (r.done or r.fatal)] == ranks
    assert reader.problems == [problem]


def test_of_two_processes_that_claim_one_rank_the_moving_one_counts(reader: beats.Beats, writer: Writer) -> None:
    other = subprocess.Popen(["sleep", "3600"])
    start = int(Path(f"/proc/{other.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    now = time.monotonic()
    writer.claim(1, now=now - 5, pid=other.pid)  # a launcher that once called a hook
    writer.put(1, at.START_TICKS, start)
    writer.claim(2, step=7, now=now)
    writer.put(2, at.RANK, 1)
    for _ in range(3):
        (rank,) = reader.read(now)
        assert (rank.rank, rank.pid, rank.step) == (1, os.getpid(), 7)
    assert reader.problems == [f"process {os.getpid()} also claims rank 1 of process {other.pid}"]
    writer.put(2, at.START_TICKS, writer.start + 1)  # the one that stepped is gone: the other one counts
    assert reader.read(now + 1)[0].pid == other.pid
    other.kill()
    other.wait()
    assert not reader.read(now + 1)[0].present


def test_learned_intervals_and_the_broken_section_are_read(reader: beats.Beats, writer: Writer) -> None:
    now = time.monotonic()
    writer.claim(0, step=1, now=now - 1)
    learned = {at.INTERVALS: 100, at.USUAL: 2, at.LONGEST: 9, at.SLOWEST_START: 300}
    for word, value in learned.items():
        writer.put(0, word, value if word == at.INTERVALS else value * 10**9)
    first = (at.slot_of(0) + at.BROKEN_NAME) * at.WORD
    writer.map[first : first + 10] = b"validation"
    writer.put(0, at.BROKEN_AT, int(now * 1e9))
    (rank,) = reader.read(now)
    assert (rank.intervals, rank.usual, rank.longest, rank.slowest_start) == (100, 2.0, 9.0, 300.0)
    assert rank.broken == "validation"
    writer.put(0, at.MOVED_AT, int((now + 1) * 1e9))
    assert reader.read(now)[0].broken is None, "it has moved since"


def test_sections_of_side_threads_and_automatic_ones_are_marked(reader: beats.Beats, writer: Writer) -> None:
    writer.claim(0, step=1)
    writer.section(0, b"save", 1, 5)
    for flags, expected in ((at.SIDE, (5.0, True, False)), (at.AUTOMATIC, (5.0, False, True))):
        writer.put(0, at.SECTION_TABLE + at.S_TIMEOUT, 5 * 10**9 | flags)
        (section,) = reader.read(time.monotonic())[0].sections
        assert (section.timeout, section.side, section.automatic) == expected


def test_a_process_that_ended_is_not_present(reader: beats.Beats, writer: Writer) -> None:
    child = subprocess.Popen(["sleep", "3600"])
    start = int(Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    writer.claim(0, step=1, pid=child.pid)
    writer.put(0, at.START_TICKS, start)
    writer.claim(1, step=1)
    writer.put(1, at.START_TICKS, writer.start + 1)  # the pid was used again
    now = time.monotonic()
    reader.read(now)
    assert [r.present for r in reader.read(now)] == [True, False]
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [r.present for r in reader.read(now)] == [False, False], "a zombie is gone too"
    child.wait()
    assert [r.present for r in reader.read(now)] == [False, False]


def test_a_touch_is_a_heartbeat_and_rings_once(reader: beats.Beats) -> None:
    watch = reader.start_watching(time.monotonic())
    assert watch is not None
    touch = Path(reader.path, at.TOUCH)
    now = time.monotonic()
    assert reader.read(now) == ()
    os.utime(touch, (1, 1))  # its own time decides nothing
    assert os.read(watch, 4096)
    assert reader.is_touched
    (rank,) = reader.read(now + 1)
    assert not reader.is_touched
    assert (rank.rank, rank.moved_at) == (-1, now + 1)
    assert reader.read(now + 2) == (rank,), "older, as it was not touched again"
    touch.write_text("x")
    assert reader.read(now + 3)[0].moved_at == now + 3
    with pytest.raises(BlockingIOError):
        os.read(watch, 4096)
    touch.unlink()
    reader.read(now + 4)
    reader.reset()
    assert reader.read(now + 5) == ()


def test_a_touch_before_the_touch_file_is_watched_is_seen(runs: Runs) -> None:
    """The command may be faster than PID 1.  Failed before on a busy machine: such a hang was never found."""
    slow = "import time, ftrun.host.beats as beats; watch = beats.Beats.start_watching\n"
    slow += "def start_watching(*given): time.sleep(1); return watch(*given)\n"
    slow += "beats.Beats.start_watching = start_watching; from ftrun.cli.run import main; main()"
    paths = f"import sys; sys.path[:0] = {[str(HOUSE / 'supervisor'), str(HOUSE / 'hooks')]!r}\n"
    options = ("--hang-timeout", "300ms", "--max-restarts", "0", "sh", "-c", "touch $FTRUN_BEAT_DIR/touch; sleep 600")
    run = runs.start(*options, program=(sys.executable, "-c", paths + slow))
    assert run.until("hang")
    assert run.wait() == 195


def test_texts_are_read_again_when_replaced(reader: beats.Beats, writer: Writer) -> None:
    writer.claim(0, step=1)
    writer.put(0, at.CHECKPOINT_STEP, 6)
    path = Path(reader.path, f"{at.CHECKPOINT}0")
    assert reader.read(time.monotonic())[0].checkpoint_path is None
    for text in ("/c/5", "/c/" + "x" * 9000, "\udcff"):
        path.with_name(".fresh").write_bytes(text.encode("utf-8", "surrogateescape"))
        path.with_name(".fresh").replace(path)
        assert reader.read(time.monotonic())[0].checkpoint_path == text[: beats.TEXT_LIMIT]
    path.unlink()
    os.mkfifo(path)
    assert reader.read(time.monotonic())[0].checkpoint_path is None


def test_a_path_that_is_replaced_while_it_is_read_is_still_a_path(
    reader: beats.Beats, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that saves two files for one step reports the second path while ftrun reads the first."""
    folder = Path(reader.path)
    (folder / f"{at.CHECKPOINT}4").write_text("/c/first")
    (folder / "second").write_text("/c/second")
    writer.claim(4, step=4)
    writer.put(4, at.CHECKPOINT_STEP, 5)
    fstat = os.fstat

    def replaced(fd: int) -> os.stat_result:
        if (folder / "second").exists():
            (folder / "second").rename(folder / f"{at.CHECKPOINT}4")
        return fstat(fd)

    monkeypatch.setattr(beats.Beats, "publish_next_read", lambda *_: None)  # it uses fstat as well
    monkeypatch.setattr(os, "fstat", replaced)
    assert reader.read(time.monotonic())[0].checkpoint_path == "/c/first"
    assert reader.read(time.monotonic())[0].checkpoint_path == "/c/second"


@pytest.mark.parametrize(
    "spoil",
    [
        *("emptied", "removed", "folder inside", "beats anew", "beats cut", "bell is a file", "touch is a link"),
        "other sitecustomize",
    ],
)
def test_what_the_command_damaged_is_recreated(reader: beats.Beats, spoil: str) -> None:
    folder, bell = Path(reader.path), reader.bell
    if spoil in ("emptied", "removed"):
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if spoil == "removed":
        folder.rmdir()
    elif spoil == "folder inside":
        (folder / "folder" / "deep").mkdir(parents=True)
    elif spoil == "bell is a file":
        (folder / at.BELL).unlink()
        (folder / at.BELL).write_text("x")
    elif spoil == "touch is a link":
        (folder / at.TOUCH).unlink()
        (folder / at.TOUCH).symlink_to("/dev/zero")
    elif spoil == "other sitecustomize":
        (folder / at.PYTHON / "sitecustomize.py").unlink()
        (folder / at.PYTHON / "sitecustomize.py").write_text("print('mine')")
    elif spoil.startswith("beats"):
        if spoil == "beats anew":
            (folder / at.BEATS).unlink()
        (folder / at.BEATS).write_text("")
    reader.read(time.monotonic())
    reader.reset()
    assert reader.bell == bell
    assert len([problem for problem in reader.problems if LOST not in problem]) == (spoil != "folder inside")
    env = os.environ | {"FTRUN_BEAT_DIR": reader.path}
    subprocess.run(python("ft.beat(4)"), env=env, check=True, timeout=60)
    assert [rank.step for rank in reader.read(time.monotonic())] == [4]
    assert os.read(bell, 100)


def test_hooks_and_reader_agree(reader: beats.Beats) -> None:
    code = "ft.beat(4); ft.checkpoint(4, '/c/4')\n"
    code += "with ft.section('eval', timeout='2s'):\n    print('in', flush=True)\n    input()"
    env = os.environ | {"FTRUN_BEAT_DIR": reader.path, "RANK": "9"}
    child = subprocess.Popen(python(code), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    (rank,) = reader.read(time.monotonic())
    assert (rank.rank, rank.pid, rank.step, rank.checkpoint_step, rank.checkpoint_path) == (9, child.pid, 4, 4, "/c/4")
    assert [(s.name, s.timeout) for s in rank.sections] == [("eval", 2.0)]
    child.communicate(b"\n", 60)
    (rank,) = wait_for(lambda: [r for r in reader.read(time.monotonic()) if r.done], "the end of the rank")
    assert not rank.sections
    assert os.read(reader.bell, 100)


# --- the memory file system -------------------------------------------------------------------------------------------

ONLY_SHM = """
for folder in /dev/shm /run/shm /run $XDG_RUNTIME_DIR; do
    while mountpoint -q $folder; do umount -l $folder; done
done
"""

# Of this mount alone: without `bind` it would be the file system's, for every mount namespace.
READ_ONLY = "mount -o remount,bind,ro /\n"


@pytest.mark.parametrize("room", ["size=64k", "nr_inodes=3"])
def test_where_the_memory_file_system_has_no_room_the_heartbeats_are_elsewhere(runs: Runs, room: str) -> None:
    need_mounts()
    prefix = runs.mounted(ONLY_SHM + f"mount -t tmpfs -o {room} tmpfs /dev/shm")
    code = "import os; ft.beat(1); print(os.environ['FTRUN_BEAT_DIR'])"
    run = runs.ends(0, *python(code), prefix=prefix)
    assert not run.stdout.startswith("/dev/shm")
    assert run.stderr.startswith("[ftrun] the heartbeats are in ")
    assert "(/dev/shm: No space left on device); 644 KiB are needed" in run.stderr
    assert run.state["last_step"] == 1
    assert not os.path.exists(run.stdout.strip())


def test_no_room_anywhere_is_one_line_and_nothing_starts(runs: Runs) -> None:
    need_mounts()
    small = "".join(f"mount -t tmpfs -o size=64k tmpfs {folder}\n" for folder in ("/dev/shm", "/run"))
    prefix = runs.mounted(f"{small}mount -t tmpfs tmpfs /mnt\n{READ_ONLY}")
    started = subprocess.run(
        [*prefix, *FTRUN, "--run-dir", "/mnt/run", "touch", "/mnt/started"],
        env={name: value for name, value in os.environ.items() if not name.startswith(("FTRUN_", "TMPDIR", "XDG_"))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert started.returncode == 125, started.stderr
    cause = "/dev/shm: No space left on device; /run: No space left on device"
    assert started.stderr.startswith(f"ftrun: no space for the heartbeats ({cause}); 644 KiB are needed")
    assert started.stderr.count("\n") == 1


def test_a_root_that_is_read_only_needs_no_folder_but_dev_shm(runs: Runs) -> None:
    need_mounts()
    started = subprocess.run(
        [*runs.mounted(f"mount -t tmpfs tmpfs /dev/shm\n{READ_ONLY}"), *FTRUN, "sh", "-c", "echo $FTRUN_RUN_DIR"],
        env={name: value for name, value in os.environ.items() if not name.startswith(("FTRUN_", "TMPDIR", "XDG_"))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert started.returncode == 0, started.stderr
    assert started.stdout.startswith("/dev/shm/ftrun-")


def test_without_dev_shm_another_memory_file_system_is_used(runs: Runs) -> None:
    need_mounts()
    prefix = runs.mounted(ONLY_SHM + "mount -t tmpfs tmpfs /run")
    run = runs.ends(0, "sh", "-c", "echo $FTRUN_BEAT_DIR", prefix=prefix)
    assert run.stdout.startswith("/run/ftrun-beats-")


def test_without_any_memory_file_system_the_heartbeats_are_on_a_disk(runs: Runs) -> None:
    need_mounts()
    prefix = runs.mounted(ONLY_SHM + "if mountpoint -q /tmp; then exit 77; fi")
    run = runs.run(*python("ft.beat(1)"), prefix=prefix)
    if run.wait() == 77:
        pytest.skip("/tmp is a memory file system here")
    assert run.wait() == 0, run.log()
    assert "(no memory file system is mounted at /dev/shm, /run or /tmp); 644 KiB are needed" in run.stderr
    assert run.state["last_step"] == 1


def test_a_memory_file_system_that_fills_up_later_affects_no_heartbeat(runs: Runs) -> None:
    need_mounts()
    prefix = runs.mounted("mount -t tmpfs -o size=2m tmpfs /dev/shm")
    code = (
        "import os\nwith open('/dev/shm/filler', 'wb', 0) as f:\n    try:\n        while True: f.write(bytes(4096))\n"
        "    except OSError: pass\n"
        "os.environ['RANK'] = '1023'\nfor step in range(1000): ft.beat(step)\nft.checkpoint(1000, '/c')\n"
        "with ft.section('x'): pass"
    )
    run = runs.ends(0, sys.executable, "-c", python(code)[2], prefix=prefix)
    assert run.state["best_checkpoint"] == 1000


def test_a_start_after_one_that_damaged_its_beat_file_is_watched(runs: Runs) -> None:
    """Training scripts empty /dev/shm, where killed data loaders leave their memory."""
    need_mounts()
    watched = shlex.join(python("import time; ft.beat(ft.attempt().start_cnt); time.sleep(3600)"))
    code = f"case $MA_PROC_START_CNT in 1) rm -rf /dev/shm/*; exit 1;; 2) exec {watched};; esac"
    options = ("--restart-on", "hang,failure", "--backoff", "1ms", "--hang-timeout", "500ms", "--grace", "off")
    run = runs.ends(0, *options, "sh", "-c", code, prefix=runs.mounted("mount -t tmpfs -o size=4m tmpfs /dev/shm"))
    assert [r["reason"] for r in run.named("restart")] == ["failure", "hang"]


def test_a_file_that_is_truncated_all_the_time_is_read_and_written(reader: beats.Beats) -> None:
    """A mapped file would end this process by SIGBUS."""
    path = f"{reader.path}/{at.BEATS}"
    sizes = (0, 8, 5000, 100000, at.FILE_BYTES - 8)
    text = f"import os\nwhile True:\n    for size in {sizes}: os.truncate({path!r}, size)"
    with subprocess.Popen([sys.executable, "-c", text]) as command:
        try:
            wait_for(lambda: [reader.read(1.0), *reader.problems][1:], "a truncated file")
            for number in range(3000):
                assert reader.read(number, number % 2 == 0) == ()
                reader.publish_next_read(number, [(number, number + 1.0)])
        finally:
            command.kill()
    assert len(reader.problems) == 1
    reader.reset()
    writer = Writer(reader.path)
    writer.claim(7, step=3)
    assert [(rank.rank, rank.step) for rank in reader.read(time.monotonic())] == [(7, 3)]
