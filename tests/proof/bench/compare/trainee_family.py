"""A training program with children that are hard to end.  Its first start creates them, then fails; the second start
writes the kinds that are still alive to `living` in its working directory.  Of two ranks the other one fails.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

STAY = 120.0  # s; a process that nothing else ends exits then


def stay() -> NoReturn:
    time.sleep(STAY)
    os._exit(0)


def daemon() -> None:
    """Fork twice, with a new session in between."""
    session()
    if os.fork():
        os._exit(0)


def session() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()


def ignoring() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def nothing() -> None:
    pass


KINDS: dict[str, Callable[[], None]] = {
    "a plain child": nothing,
    "a daemon, double fork": daemon,
    "a child in its own session": os.setsid,
    "a stopped child": nothing,
    "a child that ignores SIGTERM": ignoring,
    "a child with an empty environment": nothing,
}


def create(kind: str) -> None:
    """Create a process of this kind.  Returns in the parent only."""
    if os.fork():
        return
    KINDS[kind]()
    here = Path("family", kind)
    if kind == "a child with an empty environment":
        os.execve(sys.executable, [sys.executable, "-S", "-E", __file__, "child", str(here)], {})
    child(here, stopped=kind == "a stopped child")


def child(here: Path, stopped: bool = False) -> NoReturn:
    draft = here.with_name(f".{here.name}")
    draft.write_text(f"{os.getpid()} {started(os.getpid())}")
    draft.rename(here)
    if stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
    stay()


def state(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started(pid: int) -> str:
    return (state(pid) or [""] * 20)[19]


def is_alive(kind: str) -> bool:
    pid, since = Path("family", kind).read_text().split()
    found = state(int(pid))
    return bool(found) and found[0] not in "ZX" and found[19] == since


def all_running() -> bool:
    """Whether all processes exist, and the stopped child is stopped."""
    if not all(Path("family", kind).exists() for kind in KINDS):
        return False
    return state(int(Path("family", "a stopped child").read_text().split()[0]))[0] == "T"


def main() -> None:
    if os.environ.get("LOCAL_RANK") == "1":
        if Path("failed").exists():
            stay()
        while not all_running():
            time.sleep(0.01)
        Path("failed").touch()
        os._exit(1)
    if Path("family").exists():
        Path(".living").write_text("\n".join(kind for kind in KINDS if is_alive(kind)))
        Path(".living").rename("living")
        stay()
    Path("family").mkdir()
    for kind in KINDS:
        create(kind)
    while not all_running():
        time.sleep(0.01)
    stay() if os.environ.get("LOCAL_WORLD_SIZE") == "2" else os._exit(1)


if __name__ == "__main__":
    child(Path(sys.argv[2])) if sys.argv[1:] else main()
