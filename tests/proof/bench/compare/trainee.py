"""A small training program: `trainee.py KIND`.  It sends heartbeats to the program that started it: by ftrun's hooks,
by the client of nvidia-resiliency-ext, to the watchdog of circus, or not at all.  It logs its events to the file `did`
in its working directory: a line `event time pid` for each.
"""

import time

BEGAN = time.monotonic()  # the time of the first line

import os  # noqa: E402
import random  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

TACT = 0.05  # s between two heartbeats
WARM = 10  # heartbeats before the failure
MORE = 100  # at most so many further heartbeats, a random number
SHORT, LONG = 2.0, 600.0  # s, the timeouts of its sections `outer` and `inner`


def did(event: str, at: float | None = None) -> None:
    line = f"{event} {time.monotonic() if at is None else at:.6f} {os.getpid()}\n"
    fd = os.open("did", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


class NoMonitor:
    def beat(self) -> None:
        pass

    def enter(self, section: str, timeout: float) -> None:
        pass


class Ftrun(NoMonitor):
    def __init__(self) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "hooks"))
        import ftrun_hooks

        self.hooks, self.step = ftrun_hooks, 0

    def beat(self) -> None:
        """A training loop passes its step; another thread sends a heartbeat without a step."""
        if threading.current_thread() is threading.main_thread():
            self.step += 1
            self.hooks.beat(self.step)
        else:
            self.hooks.beat()

    def enter(self, section: str, timeout: float) -> None:
        self.hooks.section(section, timeout=timeout).__enter__()


class Nvidia(NoMonitor):
    """The timeouts of its sections are options of the launcher."""

    def __init__(self) -> None:
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

        self.client: Any = RankMonitorClient()
        self.client.init_workload_monitoring()

    def beat(self) -> None:
        self.client.send_heartbeat()

    def enter(self, section: str, timeout: float) -> None:
        self.client.start_section(section)


class Circus(NoMonitor):
    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.to = ("127.0.0.1", int(os.environ["CIRCUS_WATCHDOG"]))

    def beat(self) -> None:
        self.socket.sendto(f"{os.getpid()};{time.time()}".encode(), self.to)


def starter() -> NoMonitor:
    if os.environ.get("CIRCUS_WATCHDOG"):
        return Circus()
    if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:
        return Nvidia()
    return Ftrun() if "FTRUN_BEAT_DIR" in os.environ else NoMonitor()


def train(monitor: NoMonitor, beats: float) -> float:
    """Send so many heartbeats.  Returns the time of the last one."""
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
    """Hang at a random time in the interval of the monitor's checks; `last` is the last heartbeat."""
    monitor = starter()  # kept, because a client that is deleted signs off
    did("last", train(monitor, WARM + random.randrange(MORE)))
    stay()


def still() -> None:
    """Hang before the first call of a hook."""
    stay()


def work() -> None:
    train(starter(), float("inf"))


def below() -> None:
    """Train as the child of a launcher of its own."""
    if os.fork():
        os.wait()
    else:
        work()


def tolerant() -> None:
    """Tolerate every error of the monitor, then hang."""
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
    """The timeout of the outer section passes, while that of the inner one does not."""
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
