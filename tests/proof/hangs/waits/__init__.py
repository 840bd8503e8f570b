"""Small programs that stand still for a reason that can still end, each a few lines in a file of this folder.

    @@ what it waits for | what it needs: modules, programs or one of `NEEDS`; `cores=`, `seconds=`, `moments=`, `by=`
    the lines that the program executes
    -- what ends the wait
    the lines that a process outside the job executes; `due()` returns when the wait has lasted for its time

A program has `seconds`, for which it is to wait; `waits()`, which tells those outside that it does now; `ask(path)`, a
request to the server; and what else rows.py gives it.  A name with `{A B}` is one program for each word, which takes
the place of `%s` in the lines.  `by` names what acts on it in place of a process: a function of actors.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from proof.hangs import actors
from proof.hangs.actors import Actor, Stage, Steps, nobody
from proof.hangs.rows import BOTH, MOMENTS, Row
from support.runs import permitted

OUTSIDE = f"""{BOTH}
folder = os.getcwd()
def due(): until('due')
def waiting(): return number('waits')
def accepted():
    server = socket.socket(socket.AF_UNIX)
    server.bind('made')
    server.listen()
    os.rename('made', 'sock')
    return server.accept()[0]
def taken():
    connection = accepted()
    descriptor = socket.recv_fds(connection, 1, 1)[1][0]
    connection.send(b'y')
    connection.close()
    return descriptor
def accepted_tcp():
    server = socket.create_server(('127.0.0.1', 0))
    publish('port', server.getsockname()[1])
    return server.accept()[0]
"""
START = "import os, sys; os.chdir(sys.argv[1]); exec(open('outside.py').read())"
TITLE = re.compile(r"^@@ ([^|\n]+?)(?: \| ([^\n]+))?\n", re.M)
WORDS = re.compile(r"\{([^}]*)\}")


def outside(text: str) -> Actor:
    """A process that has these lines, and is told when the wait has lasted long enough."""

    def act(stage: Stage) -> Steps:
        (stage.folder / "outside.py").write_text(f"{OUTSIDE}\n{text}")
        stage.process(sys.executable, "-c", START, str(stage.folder))
        yield
        yield
        (stage.folder / "due").touch()
        yield

    return act


def _has_ipv6() -> bool:
    addresses = Path("/proc/net/if_inet6")
    return socket.has_ipv6 and addresses.exists() and "lo" in addresses.read_text()


NEEDS: dict[str, Callable[[], bool]] = {
    "root": lambda: os.geteuid() == 0,
    "private-mounts": lambda: permitted("unshare", "--mount", "--net", "--pid", "--fork"),
    "ipv6": _has_ipv6,
    "fuse": lambda: os.access("/dev/fuse", os.W_OK),
    "freezer": lambda: os.access(actors.FREEZER, os.W_OK),
}


@cache
def _is_there(need: str) -> bool:
    if need in NEEDS:
        return NEEDS[need]()
    try:
        return importlib.util.find_spec(need) is not None or shutil.which(need) is not None
    except ModuleNotFoundError:
        return False


def _lacks(needs: tuple[str, ...]) -> str:
    return next((need for need in needs if not _is_there(need)), "")


def _rows(group: str, text: str, more: tuple[str, ...]) -> Iterator[Row]:
    parts = TITLE.split(text)
    for name, about, lines in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        inside, _, ending = lines.partition("\n-- ")
        _, _, ending = ending.partition("\n")
        needs = [*more, *(about or "").split()]
        given = dict(need.split("=", 1) for need in needs if "=" in need)
        options: dict[str, Any] = {
            "seconds": float(given["seconds"]) if "seconds" in given else None,
            "cores": float(given.get("cores", 0.15 if "torch" in more else 0.05)),
            "moments": tuple(given["moments"].split(",")) if "moments" in given else MOMENTS,
            "lacks": partial(_lacks, tuple(need for need in needs if "=" not in need)),
        }
        words = WORDS.search(name)
        for word in words[1].split() if words else [""]:
            own, other = (part.replace("%s", word) if word else part for part in (inside, ending))
            actor = outside(other) if other else nobody
            if "by" in given:
                actor = getattr(actors, given["by"])
            yield Row(group, WORDS.sub(word, name), own, actor, **options)


GROUPS = {
    "time": "time",
    "signals": "signals",
    "network": "network",
    "files": "databases, files and locks",
    "input": "queues and input from outside",
    "children": "children and pools",
    "work": "work",
    "others": "others act on the job",
    "memory": "memory",
    "descriptors": "descriptors",
    "processes": "processes",
    "multiprocessing": "multiprocessing",
    "libraries": "libraries",
    "asyncio": "asyncio",
    "threads": "threads",
    "torch": "PyTorch",
}
WAITS = tuple(
    row
    for file, group in GROUPS.items()
    for row in _rows(group, Path(__file__).with_name(f"{file}.txt").read_text(), ("torch",) if file == "torch" else ())
)
