"""One sample of a running ftrun, from outside: the resources of it and its helpers, and the files in its folders."""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from support.runs import descendants, helpers, status

SUPERVISOR: Final = "ftrun"


class Process(NamedTuple):
    """Memory in KiB."""

    pid: int
    descriptors: int
    threads: int
    rss: int
    pss: int
    inotify: int


class Sample(NamedTuple):
    """`restarts`: before it.  `files`: by folder; `sizes`: bytes of each entry of the run dir."""

    restarts: int
    processes: dict[str, Process]
    tree: int
    zombies: int
    files: dict[str, int]
    sizes: dict[str, int]

    def figures(self) -> dict[tuple[str, str], float]:
        """All figures, by the process and the name."""
        found: dict[tuple[str, str], float] = {
            (name, what): getattr(process, what)
            for name, process in self.processes.items()
            for what in ("descriptors", "threads", "rss", "pss", "inotify")
        }
        found |= {("all", "processes"): self.tree, ("all", "zombies"): self.zombies}
        return found | {("files", folder): number for folder, number in self.files.items()}


def look(ftrun: int, restarts: int, run_dir: Path, folders: dict[str, Path]) -> Sample:
    """`ftrun`: its pid.  `folders`: where its files are counted, as they are called."""
    below = [ftrun, *descendants(ftrun)]
    lasting = {SUPERVISOR: ftrun} | {name: pid for name, pid in helpers(ftrun).items() if name != "evidence"}
    return Sample(
        restarts,
        {name: process for name, pid in lasting.items() if (process := _process(pid)) is not None},
        len(below),
        sum(status(pid).get("State", "").startswith("Z") for pid in below),
        {name: sum(len(files) for _, _, files in os.walk(folder)) for name, folder in folders.items()},
        {path.name: size(path) for path in run_dir.iterdir()},
    )


def size(path: Path) -> int:
    """Of all that is in it."""
    inner = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(os.lstat(name).st_size for name in (inner if path.is_dir() else (path,)))


def _process(pid: int) -> Process | None:
    """None: it is gone."""
    found = status(pid)
    try:
        opened = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        pss = re.search(rb"^Pss:\s+(\d+)", _read(f"/proc/{pid}/smaps_rollup"), re.MULTILINE)
        return Process(
            pid,
            len(opened),
            int(found["Threads"]),
            int(found["VmRSS"].split()[0]),
            int(pss[1]) if pss else 0,
            sum(target == "anon_inode:inotify" for target in opened),
        )
    except (OSError, KeyError):
        return None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
