"""A rank that ends with 0 while others work: what it has left ends with it, and without its neighbours."""

from pathlib import Path

from support.containers import Run, Starter
from support.runs import Mode, alive, number_in, outside, wait_for

# Rank 0 leaves a process and ends with 0; rank 1 has one too, and works until `end` exists.
LEAVES = """
import os, subprocess, sys, time
folder, rank = os.path.dirname(os.path.abspath(__file__)), os.environ["RANK"]
subprocess.Popen([sys.executable, "-S", "-E", "-c", WORKER, folder, rank], start_new_session=True)
while not os.path.exists(f"{folder}/worker-{rank}"):
    time.sleep(0.01)
while rank == "1" and not os.path.exists(f"{folder}/end"):
    time.sleep(0.01)
"""
HEAD = """
import os, signal, sys, time
folder, rank = sys.argv[1:]
def note(name, text):
    with open(f"{folder}/{name}-{rank}", "a") as stream:
        stream.write(text)
"""
READY = """
with open(f"{folder}/new-{rank}", "w") as stream:
    stream.write(str(os.getpid()))
os.rename(f"{folder}/new-{rank}", f"{folder}/worker-{rank}")
while True:
    time.sleep(60)
"""
FLUSHES = """
def flush(number, frame):
    note("terms", "x")
    while not os.path.exists(f"{folder}/flushed"):
        time.sleep(0.01)
    sys.exit()
signal.signal(signal.SIGTERM, flush)
"""
IGNORES = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
# Rank 0 exits without the end of Python's own: its worker and the resource tracker, which watches them, are left.
TRACKED = """
import os, time
folder, rank = os.path.dirname(os.path.abspath(__file__)), os.environ["RANK"]
if rank == "0":
    from multiprocessing import get_context, resource_tracker, shared_memory
    segment = shared_memory.SharedMemory(create=True, size=1)
    with open(f"{folder}/made", "w") as stream:
        stream.write(f"/dev/shm/{segment.name.strip('/')} {resource_tracker._resource_tracker._pid}")
    get_context("fork").Process(target=time.sleep, args=(1000,)).start()
    os._exit(0)
while not os.path.exists(f"{folder}/end"):
    time.sleep(0.01)
"""


def started(start: Starter, folder: Path, worker: str, mode: Mode, grace: str) -> Run:
    path = folder / "train.py"
    path.write_text(f"WORKER = {HEAD + worker + READY!r}\n{LEAVES}")
    return start(str(path), mode=mode, options=["--nproc-per-node", "2"], grace=grace)


def worker(folder: Path, rank: int, run: Run, mode: Mode) -> int:
    """Its pid in this namespace."""
    within = number_in(folder / f"worker-{rank}")
    return within if mode == "subreaper" else outside(within, run.pid)


def test_what_a_done_rank_has_left_ends_and_its_neighbours_go_on(start: Starter, mode: Mode, tmp_path: Path) -> None:
    """The end of the attempt comes while it still handles its SIGTERM: it gets no second one."""
    run = started(start, tmp_path, FLUSHES, mode, "90s")
    wait_for((tmp_path / "terms-0").exists, "the SIGTERM for what rank 0 has left")
    (left,) = run.named("rank_leftovers")
    assert (left["rank"], left["local_rank"], left["grace"]) == (0, 0, 90.0)
    assert [text.split()[0] for text in left["processes"]] == [(tmp_path / "worker-0").read_text()]
    assert alive(worker(tmp_path, 1, run, mode))
    assert not (tmp_path / "terms-1").exists()
    (tmp_path / "end").touch()
    wait_for(lambda: run.named("stopping"), "the end of the attempt")
    wait_for((tmp_path / "terms-1").exists, "the SIGTERM for what rank 1 has left")
    (tmp_path / "flushed").touch()
    assert run.finish()[0] == 0
    assert (tmp_path / "terms-0").read_text() == (tmp_path / "terms-1").read_text() == "x"
    assert not run.named("rank_killed")
    assert not run.named("killed")
    wait_for(lambda: not start.living(), "the end of all processes")


def test_what_ignores_sigterm_is_killed_after_the_grace(start: Starter, tmp_path: Path) -> None:
    run = started(start, tmp_path, IGNORES, "subreaper", "200ms")
    (killed,) = wait_for(lambda: run.named("rank_killed"), "the end of what rank 0 has left")
    assert (killed["rank"], killed["processes"]) == (0, 1)
    assert not alive(worker(tmp_path, 0, run, "subreaper"))
    assert alive(worker(tmp_path, 1, run, "subreaper"))
    assert run.process.poll() is None
    (tmp_path / "end").touch()
    assert run.finish()[0] == 0
    wait_for(lambda: not start.living(), "the end of all processes")


def test_the_resource_tracker_of_a_done_rank_can_do_its_work(start: Starter, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRACKED)
    run = start(str(path), options=["--nproc-per-node", "2"], grace="90s")
    run.until("rank_leftovers")
    segment, tracker = (tmp_path / "made").read_text().split()
    wait_for(lambda: not alive(int(tracker)), "the end of the resource tracker")
    assert not Path(segment).exists()
    assert not run.named("rank_killed")
    (tmp_path / "end").touch()
    assert run.finish()[0] == 0
