"""A rank that can recover, in plain Python and without the hooks' own wrapper: it speaks the control protocol itself.

`python plain_rank.py STEPS [FAULTS]`: each step it sends a heartbeat, writes `step ROUND RANK STEP PID` to
`$PROGRESS`, and waits for all others in a file barrier.  FAULTS is Python that is executed before each step, with
`rank`, `step`, `round` and `starts`; `Retry` is what it may raise.
"""

import json
import os
import select
import socket
import sys
import time
from pathlib import Path

import ftrun_hooks as ft

FOLDER = Path(os.environ["PROGRESS"])
LOCAL_RANK, WORLD = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])


class Retry(BaseException):
    pass


class Fenced(BaseException):
    pass


CONTROL = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ADDRESS = os.environ["FTRUN_BEAT_DIR"] + "/ranks.sock"
if os.path.exists(ADDRESS):  # not with `--recover none`
    CONTROL.connect(ADDRESS)


def tell(message: str, /, **fields: object) -> None:
    if os.path.exists(ADDRESS):
        CONTROL.send(json.dumps({"type": message, "local_rank": LOCAL_RANK, **fields}).encode())


def held() -> list[dict[str, object]]:
    """A rank holds the last step that it has completed, and the one before, in a file that outlives its process."""
    try:
        last = int((FOLDER / f"held-{LOCAL_RANK}").read_text() or 0)
    except (FileNotFoundError, ValueError):
        return []
    return [{"step": step, "shard": ""} for step in (last - 1, last) if step > 0]


def keep(step: int) -> None:
    fresh = FOLDER / f"held-{LOCAL_RANK}.new"
    fresh.write_text(str(step))
    fresh.rename(FOLDER / f"held-{LOCAL_RANK}")


def look(number: int) -> None:
    """Leave the round if PID 1 asks for it."""
    while os.path.exists(ADDRESS) and select.select([CONTROL], [], [], 0)[0]:
        message = json.loads(CONTROL.recv(4096))
        if message["type"] == "fence_rank" and message["round"] == number:
            raise Fenced


def meet(number: int, step: int) -> None:
    """Wait until each rank has reached this step of this round: the collective."""
    (FOLDER / f"at-{number}-{step}-{LOCAL_RANK}").touch()
    while not all((FOLDER / f"at-{number}-{step}-{other}").exists() for other in range(WORLD)):
        look(number)
        time.sleep(0.005)


def train(number: int, step: int, last: int, faults: str) -> None:
    with open(FOLDER / "log", "a") as log:
        while step < last:
            look(number)
            values = {"rank": LOCAL_RANK, "step": step, "round": number, "Retry": Retry, "FOLDER": FOLDER}
            exec(faults, values | {"starts": int(os.environ["MA_PROC_START_CNT"])})
            meet(number, step)
            step += 1
            keep(step)
            ft.beat(step)
            print("step", number, LOCAL_RANK, step, os.getpid(), file=log, flush=True)


def main() -> None:
    last, faults = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    tell("said_hello", held=held())
    number, step = int(os.environ.get("FTRUN_ROUND", "1")), 0
    waits = number > 1
    while True:
        if waits:
            while (message := json.loads(CONTROL.recv(4096)))["type"] != "begin_round":
                pass
            number = int(message["round"])
            step = (message["restore"] or {"step": 0})["step"]
            assert message["variables"]["FTRUN_ROUND"] == str(number), message
        waits = True
        try:
            train(number, step, last, faults)
            tell("function_finished", round=number)
            return
        except Retry as why:
            tell("asked_retry", round=number, why=str(why))
        except Fenced:
            pass
        tell("left_round", round=number, held=held(), problem=None)


main()
