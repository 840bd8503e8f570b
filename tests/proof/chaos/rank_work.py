"""The training of a job of ranks or groups: `rank_work.py FOLDER PLAN`, the plan as JSON.

Each rank has a number that each step changes, together with the sum over all ranks; `final_values` of rank_numbers.py
is what it has to be.  Each fault of the plan happens once in the job: who claims its file first.
"""

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hooks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "supervisor"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))

import ftrun_hooks as ft
from ftrun.workload.ranks import Together
from proof.chaos.companions import COMPANIONS
from proof.chaos.rank_numbers import addend, first_value, next_value

FOLDER, PLAN = Path(sys.argv[1]), json.loads(sys.argv[2])
RANK, RANKS, SAME = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), bool(PLAN["same"])
NODE = os.environ["CHAOS_NODE"]  # the container
MINE = FOLDER / NODE
SHARDS = PLAN["shards"]  # of the work of a step, whatever the number of ranks


def write_down(file: str, **what: Any) -> None:
    fd = os.open(FOLDER / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    who = {"rank": RANK, "pid": os.getpid(), "node": NODE, "epoch": int(os.environ.get("FTRUN_EPOCH", "0"))}
    os.write(fd, json.dumps({"mono": time.monotonic(), **who, **what}).encode() + b"\n")
    os.close(fd)


def put(name: str, text: str) -> None:
    fresh = FOLDER / f"{name}.new-{RANK}"
    fresh.write_text(text)
    fresh.rename(FOLDER / name)


def save(step: int, value: int) -> None:
    put(f"checkpoint-{step:06}-{RANK}", str(value))
    if PLAN["rewrites"]:
        (MINE / "checkpoints" / f"latest-{RANK}").write_text(str(value))
    else:
        ft.checkpoint(step, FOLDER / f"checkpoint-{step:06}-{RANK}")


class State:
    """The number, with the methods that a model has."""

    def __init__(self) -> None:
        self.value = first_value(RANK, SAME)

    def state_dict(self) -> dict[str, bytes]:
        return {"value": self.value.to_bytes(8, "big")}

    def load_state_dict(self, content: dict[str, bytes]) -> None:
        due("restore", 0)
        self.value = int.from_bytes(content["value"], "big")


def due(moment: str, step: int) -> None:
    """Do what the plan has for this rank at this moment."""
    for number, fault in enumerate(PLAN["faults"]):
        if fault["rank"] != RANK or fault["moment"] != moment or (moment in ("step", "keep") and step < fault["step"]):
            continue
        try:
            os.close(os.open(FOLDER / f"fault-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        write_down("struck", kind=fault["kind"], moment=moment)
        fail(fault["kind"])


def fail(kind: str) -> None:
    match kind:
        case "killed" | "killed with another":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits":
            os._exit(3)
        case "exits with 0":
            os._exit(0)
        case "raises":
            raise ValueError(f"chaos at {time.monotonic()}")
        case "retries":
            raise ft.Retry("chaos")
        case "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit hangs":
            threading.Thread(target=time.sleep, args=(10**6,)).start()
            sys.exit(0)
        case "keeps the GIL":
            while True:
                ctypes.PyDLL(None).pause()
        case "waits for a lock":
            lock = threading.Lock()
            with lock, lock:
                pass
        case "leaves a daemon":
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(10**6)
            os.kill(os.getpid(), signal.SIGKILL)
        case "ignores the fence":
            while True:
                try:
                    time.sleep(10**6)
                except BaseException:
                    pass
        case "dies in the snapshot":
            from ftrun_hooks import _snapshot

            def half(item: Any, memory: memoryview) -> None:
                memory[: item.size // 2] = bytes(item.size // 2)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(_snapshot.Bytes, "write", half)  # noqa: B010


def newest(state: State) -> int:
    """Load the newest checkpoint that all ranks have written, or any if all have the same state."""
    if SAME:
        saved = max((path for path in FOLDER.glob("checkpoint-*") if not path.suffix), default=None)
        state.value = state.value if saved is None else int(saved.read_text())
        return 0 if saved is None else int(saved.name.split("-")[1])
    steps = sorted({int(path.name.split("-")[1]) for path in FOLDER.glob("checkpoint-*-0")}, reverse=True)
    for step in steps:
        if all((FOLDER / f"checkpoint-{step:06}-{rank}").exists() for rank in range(RANKS)):
            state.value = int((FOLDER / f"checkpoint-{step:06}-{RANK}").read_text())
            return step
    return 0


def added(ranks: Together, own: int) -> int:
    while True:
        try:
            return int(ranks.added([own])[0])
        except Exception:
            if not PLAN["swallows"]:
                raise
            time.sleep(0.01)


def prepared(value: int, step: int) -> int:
    return sum(addend(value, step, shard) for shard in range(RANK, SHARDS, RANKS))


@contextlib.contextmanager
def working() -> Iterator[Callable[[int, int], int] | None]:
    """A process of this rank that prepares each step, as the workers of a DataLoader do; None without."""
    if not PLAN["workers"]:
        yield None
        return
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_prepare, args=(theirs, ours), daemon=True)
    process.start()
    theirs.close()

    def ask(value: int, step: int) -> int:
        ours.send((value, step))
        return int(ours.recv())

    try:
        yield ask
    finally:
        process.kill()
        process.join()
        ours.close()


def _prepare(requests: Any, other_end: Any) -> None:
    other_end.close()
    with contextlib.suppress(EOFError):
        while True:
            requests.send(prepared(*requests.recv()))


def hold(step: int) -> None:
    """The training goes on until all that is planned has been done to it."""
    while not (FOLDER / "enough").exists():
        ft.beat(step)
        time.sleep(0.02)


def train(run: Any) -> int:
    due("go", 0)
    state = State()
    step = run.restore(lambda: newest(state), state=state)
    write_down("rounds", round=run.round, reason=run.reason, step=step)
    try:
        with Together(run.rank, run.world_size) as ranks, working() as worker:
            while step < PLAN["steps"]:
                time.sleep(PLAN["pace"])
                due("step", step)
                if step == PLAN["steps"] - 1:
                    hold(step)
                total = added(ranks, prepared(state.value, step) if worker is None else worker(state.value, step))
                state.value = next_value(state.value, total, RANK, SAME)
                step += 1
                due("keep", step)
                if step % PLAN["keep_every"] == 0:
                    run.keep(step, shard="all" if SAME else "", state=state)
                if step % PLAN["save_every"] == 0:
                    save(step, state.value)
                ft.beat(step)
                write_down("steps", round=run.round, step=step, value=state.value)
            put(f"over-{RANK}", "")  # it is not watched any more once this function has returned
    except BaseException:
        due("leave", step)
        raise
    return state.value


if __name__ == "__main__":
    put(f"pid-{NODE}-{os.environ['LOCAL_RANK']}", str(os.getpid()))
    call: Callable[[], int] = ft.recoverable(train)  # type: ignore[assignment]
    for companion in PLAN["beside"]:
        COMPANIONS[companion](MINE)
    put(f"final-{RANK}", str(call()))
    due("end", PLAN["steps"])
