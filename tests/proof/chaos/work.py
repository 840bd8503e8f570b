"""The training of a chaos job: `work.py FOLDER PLAN`, the plan as JSON.  It beats, saves, resumes, has children, and
fails as its plan requires.

Whatever it does it first writes down, a JSON object a line, in FOLDER/attempts.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hooks"))

import ftrun_hooks as ft
from proof.chaos.companions import COMPANIONS

FOLDER, PLAN = Path(sys.argv[1]), json.loads(sys.argv[2])
START = int(os.environ["MA_PROC_START_CNT"])


def write_down(**what: Any) -> None:
    fd = os.open(FOLDER / "attempts", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, json.dumps({"start": START, "mono": time.monotonic(), **what}).encode() + b"\n")
    os.close(fd)


def save(step: int) -> None:
    path = FOLDER / "checkpoints" / f"{step:06}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"step": step}))
    os.replace(new, path)
    if PLAN["rewrites"]:
        (FOLDER / "checkpoints" / "latest.json").write_text(json.dumps({"step": step}))
    write_down(saved=step, path=str(path))
    if PLAN["reports"]:
        ft.checkpoint(step, path)


def resume() -> int:
    """At what ftrun says; what is on disk and was never reported does not count."""
    description = os.environ.get("FTRUN_LAST_CHECKPOINT")
    if description and Path(description).name == "latest.json":  # it may be torn
        description = str(max(Path(description).parent.glob("0*.json")))
    return int(json.loads(Path(description).read_text())["step"]) if description else 0


def stay() -> NoReturn:
    """Hang, until ftrun or the end of the chaos kills it."""
    while True:
        time.sleep(3600)


def child(kind: str) -> None:
    if os.fork():
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if kind in ("daemon", "session"):
        os.setsid()
    if kind == "daemon" and os.fork():
        os._exit(0)
    if kind in ("daemon", "ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    stay()


def fail(kind: str) -> None:
    write_down(does=kind)
    if kind == "sleeps":
        stay()
    if kind == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
        stay()
    if kind == "raises":
        raise RuntimeError(f"boom in start {START}")
    if kind == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "fails":
        ft.fail("as planned", recoverable=False)
        os._exit(4)
    if kind == "never ends":
        threading.Thread(target=stay).start()
        sys.exit(0)
    os._exit(7)


def main() -> int:
    reached = begun = resume()

    def ended(number: int, frame: object) -> None:
        save(reached)
        write_down(saved_on=number)
        os._exit(0)

    if PLAN["term"] != "default":
        signal.signal(signal.SIGTERM, ended if PLAN["term"] == "save" else signal.SIG_IGN)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
        signal.signal(number, lambda number, frame: write_down(got=number))
    write_down(pid=os.getpid(), resumed=begun, checkpoint=os.environ.get("FTRUN_LAST_CHECKPOINT"))
    for kind in PLAN["children"]:
        child(kind)
    for kind in PLAN["beside"]:
        COMPANIONS[kind](FOLDER)
    kind, after = next(((kind, after) for start, kind, after in PLAN["failures"] if start == START), ("", 0))
    for step in range(begun + 1, PLAN["steps"] + 1):
        time.sleep(PLAN["pace"])
        ft.beat(step)
        reached = step
        if step % PLAN["every"] == 0:
            save(step)
        if kind and step == begun + after:
            fail(kind)
    write_down(finished=reached)
    os._exit(PLAN["code"])


if __name__ == "__main__":
    sys.exit(main())
