"""A small training program: `trainee.py WHAT`.  It beats to whoever started it: by ftrun's hooks, by the client of
nvidia-resiliency-ext, to circus' watchdog, or not at all.  What it does is in `did`, where it runs: a line
`word time pid` for each thing.
"""

import time

BEGAN = time.monotonic()  # this is its first line

import os  # noqa: E402
import random  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

TACT = 0.05  # s between two beats
WARM = 10  # beats before something goes wrong
MORE = 100  # at most so many more, by chance
SHORT, LONG = 2.0, 600.0  # s, the timeouts of its sections `outer` and `inner`


def did(word: str, at: float | None = None) -> None:
    line = f"{word} {time.monotonic() if at is None else at:.6f} {os.getpid()}\n"
    fd = os.open("did", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


class Nobody:
    def beat(self) -> None:
        pass

    def enter(self, section: str, timeout: float) -> None:
        pass


class Ftrun(Nobody):
    def __init__(self) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "hooks"))
        import ftrun_hooks

        self.hooks, self.step = ftrun_hooks, 0

    def beat(self) -> None:
        """As a loop does it; who only keeps alive has no step."""
        if threading.current_thread() is threading.main_thread():
            self.step += 1
            self.hooks.beat(self.step)
        else:
            self.hooks.beat()

    def enter(self, section: str, timeout: float) -> None:
        self.hooks.section(section, timeout=timeout).__enter__()


class Nvidia(Nobody):
    """The timeouts of its sections are the launcher's to give."""

    def __init__(self) -> None:
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

        self.client: Any = RankMonitorClient()
        self.client.init_workload_monitoring()

    def beat(self) -> None:
        self.client.send_heartbeat()

    def enter(self, section: str, timeout: float) -> None:
        self.client.start_section(section)


class Circus(Nobody):
    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.to = ("127.0.0.1", int(os.environ["CIRCUS_WATCHDOG"]))

    def beat(self) -> None:
        self.socket.sendto(f"{os.getpid()};{time.time()}".encode(), self.to)


def starter() -> Nobody:
    if os.environ.get("CIRCUS_WATCHDOG"):
        return Circus()
    if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:
        return Nvidia()
    return Ftrun() if "FTRUN_BEAT_DIR" in os.environ else Nobody()


def train(monitor: Nobody, beats: float) -> float:
    """When the last of them was."""
    at = 0.0
    while beats > 0:
        monitor.beat()
        at = time.monotonic()
        did("beat", at)
        beats -= 1
        time.sleep(TACT)
    return at


def stay() -> NoReturn:
    while True:
        time.sleep(LONG)


def hang() -> None:
    """At some instant of whatever interval its monitor looks in; `last` is its last beat."""
    monitor = starter()  # kept: a client that is gone has taken leave
    did("last", train(monitor, WARM + random.randrange(MORE)))
    stay()


def still() -> None:
    """Before the first call of a hook."""
    stay()


def work() -> None:
    train(starter(), float("inf"))


def below() -> None:
    """As a rank of a launcher of its own."""
    if os.fork():
        os.wait()
    else:
        work()


def tolerant() -> None:
    """Whatever its monitor does to it; then it hangs."""
    monitor = starter()
    train(monitor, WARM)
    while not Path("hang-now").exists():
        try:
            train(monitor, 1)
        except Exception:
            did("refused")
            time.sleep(TACT)
    did("hangs")
    stay()


def sections() -> None:
    """The outer one is going to be overdue, while the inner one has time."""
    monitor = starter()
    train(monitor, WARM)
    monitor.enter("outer", SHORT)
    monitor.enter("inner", LONG)
    did("inside")
    stay()


def thread() -> None:
    monitor = starter()
    train(monitor, WARM)
    did("hangs")
    threading.Thread(target=train, args=(monitor, float("inf")), daemon=True).start()
    stay()


def exits() -> NoReturn:
    sys.exit(17)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


KINDS = {kind.__name__: kind for kind in (hang, still, work, below, tolerant, sections, thread, exits, segfault)}

if __name__ == "__main__":
    did("began", BEGAN)
    KINDS[sys.argv[1]]()
