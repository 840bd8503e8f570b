"""A training program with children that are hard to end.  Its first start brings them into the world, then fails; the
second one looks which of them live, and writes that into `living`, where it runs.  Of two ranks the other one fails.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

STAY = 120.0  # s; where nobody ends them, they end


def stay() -> NoReturn:
    time.sleep(STAY)
    os._exit(0)


def daemon() -> None:
    """Forked twice, in a session of its own."""
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
    "a daemon, forked twice": daemon,
    "one in a session of its own": os.setsid,
    "a stopped one": nothing,
    "one that ignores SIGTERM": ignoring,
    "one without its environment": nothing,
}


def born(kind: str) -> None:
    """A new process of that kind; returns in the parent."""
    if os.fork():
        return
    KINDS[kind]()
    here = Path("family", kind)
    if kind == "one without its environment":
        os.execve(sys.executable, [sys.executable, "-S", "-E", __file__, "child", str(here)], {})
    child(here, stopped=kind == "a stopped one")


def child(here: Path, stopped: bool = False) -> NoReturn:
    draft = here.with_name(f".{here.name}")
    draft.write_text(f"{os.getpid()} {started(os.getpid())}")
    draft.rename(here)
    if stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
    stay()


def state(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; none for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started(pid: int) -> str:
    return (state(pid) or [""] * 20)[19]


def lives(kind: str) -> bool:
    pid, since = Path("family", kind).read_text().split()
    found = state(int(pid))
    return bool(found) and found[0] not in "ZX" and found[19] == since


def standing() -> bool:
    """All are there, and the one that is to be stopped is."""
    if not all(Path("family", kind).exists() for kind in KINDS):
        return False
    return state(int(Path("family", "a stopped one").read_text().split()[0]))[0] == "T"


def main() -> None:
    if os.environ.get("LOCAL_RANK") == "1":
        if Path("failed").exists():
            stay()
        while not standing():
            time.sleep(0.01)
        Path("failed").touch()
        os._exit(1)
    if Path("family").exists():
        Path(".living").write_text("\n".join(kind for kind in KINDS if lives(kind)))
        Path(".living").rename("living")
        stay()
    Path("family").mkdir()
    for kind in KINDS:
        born(kind)
    while not standing():
        time.sleep(0.01)
    stay() if os.environ.get("LOCAL_WORLD_SIZE") == "2" else os._exit(1)


if __name__ == "__main__":
    child(Path(sys.argv[2])) if sys.argv[1:] else main()
