"""A process tree that is hard to end.  `trees.py FOLDER SIZE RESTARTS [END]`: the first RESTARTS starts hang once their
tree stands; the next one exits with END (0).

Each process appends `attempt pid start-time` to FOLDER/pids.  Each start first writes to FOLDER/left what remains of
earlier ones: processes of these lines, and those with the beat folder in their environment.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hooks"))
STORMS = 3
LASTS = 240.0  # s; a storm that no ftrun ends, because its test was killed, ends by itself


def fields(pid: int | str) -> tuple[str, int] | None:
    try:
        rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return rest[0].decode(), int(rest[19])
    except (OSError, IndexError):
        return None


def write_down(path: Path, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, line.encode() + b"\n")
    os.close(fd)


def survivors(folder: Path, attempt: int) -> list[str]:
    """Living processes of earlier attempts, seen at this instant."""
    found = []
    lines = (folder / "pids").read_text().splitlines() if (folder / "pids").exists() else []
    for line in lines:
        of, pid, start = (int(word) for word in line.split())
        now = fields(pid)
        if of != attempt and now is not None and now[1] == start and now[0] not in "ZX":
            found.append(f"{attempt}: {pid} of {of}, {now[0]}")
    beats = f"FTRUN_BEAT_DIR={os.environ['FTRUN_BEAT_DIR']}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        now = fields(name)
        if now is None or now[0] in "ZX" or beats not in words:
            continue
        if f"MA_PROC_START_CNT={attempt}".encode() not in words:
            found.append(f"{attempt}: {name} by its environment, {now[0]}")
    return found


def stay() -> NoReturn:
    while True:
        time.sleep(3600)


class Tree:
    def __init__(self, folder: Path, attempt: int) -> None:
        self.folder, self.attempt = folder, attempt

    def here(self) -> None:
        found = fields("self")
        write_down(self.folder / "pids", f"{self.attempt} {os.getpid()} {found[1] if found else 0}")

    def grow(self, size: int) -> None:
        """`size` processes, then the storm; returns when all of them have written themselves down."""
        kinds = [self.plain, self.double, self.daemon, self.group, self.ignoring, self.blocking, self.stopped]
        kinds += [self.cleared]
        (self.folder / "pids").touch()  # read below, maybe before the first of them has written
        for index in range(size):
            if os.fork() == 0:
                kinds[index % len(kinds)]()
                os._exit(1)
        for _ in range(STORMS):
            if os.fork() == 0:
                self.storm()
        mine = f"{self.attempt} "
        while sum(line.startswith(mine) for line in (self.folder / "pids").read_text().splitlines()) < size + STORMS:
            time.sleep(0.005)

    def plain(self) -> NoReturn:
        self.here()
        stay()

    def double(self) -> NoReturn:
        if os.fork():
            os._exit(0)
        self.plain()

    def daemon(self) -> NoReturn:
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.ignoring()

    def group(self) -> NoReturn:
        os.setpgid(0, 0)
        self.plain()

    def ignoring(self) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.plain()

    def blocking(self) -> NoReturn:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.plain()

    def stopped(self) -> NoReturn:
        self.here()
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)

    def cleared(self) -> NoReturn:
        """A daemon in a session of its own that wipes its environment, as sshd does."""
        if os.fork():
            os._exit(0)
        os.setsid()
        self.here()
        os.execve("/bin/sleep", ["sleep", "3600"], {})

    def storm(self) -> NoReturn:
        """Forks on and on: one process follows another, in a session of its own, deaf to SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.here()
        until = time.monotonic() + LASTS
        while time.monotonic() < until:
            time.sleep(0.002)
            try:
                if os.fork():
                    os._exit(0)
                os.setsid()
            except OSError:
                pass
        os._exit(1)


def main(folder: Path, size: int, restarts: int, end: int = 0) -> None:
    import ftrun_hooks as ft

    attempt = int(os.environ["MA_PROC_START_CNT"])
    for line in survivors(folder, attempt):
        write_down(folder / "left", line)
    Tree(folder, attempt).grow(size)
    write_down(folder / "stood", str(attempt))
    if attempt > restarts:
        os._exit(end)
    ft.beat()
    stay()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
