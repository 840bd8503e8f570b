"""Python stacks, read by the program py-spy.

It always runs with --nonblocking: without it py-spy stops the process first, and waits forever for one that is stuck in
the kernel.  With it the stack of a running thread may be inconsistent; that of a waiting thread is not.
"""

import functools
import itertools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from waitproof import children, procfs

PROGRAM: Final = "py-spy"
AT_ONCE: Final = 4
EACH: Final = 2.0  # s for one process, which usually takes 20 ms
NO_PYTHON: Final = "it does not run Python, or a version that py-spy does not support"
NO_TIME: Final = "there was no time left to read it"
REFUSED: Final = "not permitted"
GONE: Final = "the process has ended"
NEW: Final = "the process had just been started"
_LIBRARY: Final = re.compile(r"^<frozen |/(site|dist)-packages/|/lib(64)?/python\d(\.\d+)?/|/python\d+\.zip/")
_HOOKS: Final = re.compile(r"/ftrun_hooks/[^/]+\.py$")  # ftrun's own calls are no place in the program
_SERVING: Final = "BaseServer.serve_forever"
_BEGINS: Final = frozenset({"_bootstrap", "_bootstrap_inner", "run"})  # in threading.py: where each thread begins
_PROXY: Final = ".BaseProxy._callmethod"  # of multiprocessing/managers.py, whose functions that call it are generated
_PACKAGES: Final = re.compile(r"/(site|dist)-packages/")
_PACKAGE: Final = re.compile(r".*/(site|dist)-packages/[^/]+(/|$)")  # the folder of a package, or a module


class Frame(NamedTuple):
    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} {self.name}"

    @property
    def full(self) -> str:
        return f"{self.file}:{self.line} {self.name}"

    @property
    def library(self) -> bool:
        return bool(_LIBRARY.search(self.file) or self.is_hook)

    @property
    def is_hook(self) -> bool:
        return bool(_HOOKS.search(self.file))

    @property
    def is_standard(self) -> bool:
        """Whether it is of Python's own library."""
        return bool(_LIBRARY.search(self.file)) and not _PACKAGES.search(self.file)

    @property
    def begins_thread(self) -> bool:
        return self.file.endswith("/threading.py") and self.name.rpartition(".")[2] in _BEGINS

    @property
    def console_script(self) -> bool:
        """Whether it looks like one that pip has written: it imports the program and calls it."""
        folder, file = os.path.split(self.file)
        return self.name == "<module>" and os.path.basename(folder) == "bin" and "." not in file


class Thread(NamedTuple):
    """`frames`: the innermost first.  `tid` is None where py-spy does not know it."""

    tid: int | None
    name: str
    active: bool
    gil: bool
    frames: tuple[Frame, ...]

    @property
    def location(self) -> str:
        """Where it is: the innermost line of the program's own code, and the library call in which that is."""
        if not self.frames:
            return "no Python frame"
        own = own_frame(self.frames) or outermost(self.frames) or self.frames[-1]
        return str(own) if own == self.frames[0] else f"{own}, in {self.frames[0]}"


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the program itself.  That of an installed program, which a console script or `python -m`
    runs, is in the package that it enters first.  A function by which a Manager is asked is none."""
    proxies = {outer for inner, outer in itertools.pairwise(frames) if f".{inner.name}".endswith(_PROXY)}
    own = next((frame for frame in frames if not frame.library and frame not in proxies), None)
    if own is not None and not (own is frames[-1] and own.console_script):
        return own
    entered = next((found for frame in frames[::-1] if (found := _PACKAGE.match(frame.file))), None)
    return next((frame for frame in frames if entered is not None and frame.file.startswith(entered[0])), None)


def outermost(frames: Sequence[Frame]) -> Frame | None:
    """The outermost frame that is not ftrun's, after those in which each thread begins; None if there is no other."""
    return next((frame for frame in reversed(frames) if not (frame.is_hook or frame.begins_thread)), None)


class Stack(NamedTuple):
    """All threads of one process; `main` may be missing while the process starts or ends."""

    threads: tuple[Thread, ...]
    main: Thread | None


class Stacks(NamedTuple):
    """For each pid its stack, or why there is none."""

    found: dict[int, Stack]
    missing: dict[int, str]


def program() -> str | None:
    """The path of py-spy: on PATH, or beside this interpreter, because a venv need not be on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), PROGRAM)
    found = shutil.which(PROGRAM) or (beside if os.access(beside, os.X_OK) else None)
    return os.path.abspath(found) if found else None


def collect(spy: str | None, pids: Sequence[int], seconds: float) -> Stacks:
    """Read the stacks of these processes in this order, within `seconds`."""
    if spy is None:
        return Stacks({}, dict.fromkeys(pids, f"{PROGRAM} is not installed"))
    found, missing, until = {}, dict.fromkeys(pids, NO_TIME), time.monotonic() + seconds
    serving = []  # those with a thread of a server of the standard library, whose frames do not say what it serves
    commands = [[spy, "dump", "--nonblocking", "--json", "--pid", str(pid)] for pid in pids]
    at_once = min(AT_ONCE, len(os.sched_getaffinity(0)))
    for number, result in children.run(commands, at_once, EACH, until):
        pid = pids[number]
        try:
            found[pid] = parse(pid, result.output)
            del missing[pid]
            serving += [pid] if _SERVING.encode() in result.output else []
        except (ValueError, KeyError, TypeError, RecursionError):
            missing[pid] = f"{PROGRAM} did not answer in time" if result.killed else reason(result.errors)
    commands = [[spy, "dump", "--nonblocking", "--json", "--locals", "--pid", str(pid)] for pid in serving]
    for number, result in children.run(commands, at_once, EACH, until):
        pid = serving[number]
        try:
            found[pid] = _with_servers(found[pid], json.loads(result.output))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # whose servers they are remains unknown
    return Stacks(found, missing)


def _with_servers(stack: Stack, content: list[dict[str, Any]]) -> Stack:
    """The stack, in which the threads of servers name the class of their servers: `TmpServer.serve_forever`."""
    servers = dict[int, str]()
    for thread in content:
        for frame in thread["frames"]:
            own = (one["repr"] for one in frame["locals"] or () if one["name"] == "self" and one["arg"])
            if frame["name"] == _SERVING and (named := re.match(r"<(\w+) at 0x", next(own, "") or "")):
                servers[thread["os_thread_id"]] = named[1]

    def named_frame(frame: Frame, server: str) -> Frame:
        return frame._replace(name=f"{server}.serve_forever") if frame.name == _SERVING else frame

    threads = tuple(
        thread._replace(frames=tuple(named_frame(frame, servers[thread.tid]) for frame in thread.frames))
        if thread.tid in servers
        else thread
        for thread in stack.threads
    )
    return Stack(
        threads, next((thread for thread in threads if stack.main and thread.tid == stack.main.tid), stack.main)
    )


def parse(pid: int, content: bytes) -> Stack:
    """The stack in py-spy's output; ValueError, KeyError or TypeError if the output is malformed."""
    threads = tuple(_thread(found) for found in json.loads(content))
    # No thread ids before Python 3.11, no names before `import threading`: the main thread is the oldest, the last.
    nameless = [t for t in threads if t.tid is None]
    mains = [t for t in threads if t.tid == pid] or [t for t in nameless if t.name == "MainThread"] or nameless[-1:]
    if not mains:
        return Stack(threads, None)
    main = mains[0]._replace(tid=pid)
    return Stack(tuple(main if thread is mains[0] else thread for thread in threads), main)


def reason(errors: bytes) -> str:
    """Why py-spy could not read the stack, from its stderr."""
    text = errors.decode("utf-8", "replace")
    known = {
        "Failed to find python version": NO_PYTHON,
        "Failed to find a python": NO_PYTHON,
        "Permission": REFUSED,
        "Operation not permitted": REFUSED,
        "No such": GONE,
        "InvalidPid": GONE,
    }
    first = text.partition("\n")[0].removeprefix("Error: ").strip()
    return next(
        (short for pattern, short in known.items() if pattern.lower() in text.lower()), first[:200] or "no answer"
    )


def permission() -> str:
    """Why py-spy may not be permitted to read a process."""
    if int(procfs.status("self").get("CapEff", "0"), 16) >> 19 & 1:  # CAP_SYS_PTRACE
        return "py-spy was denied access although it has the capability SYS_PTRACE (a seccomp filter may forbid it)"
    scope = (procfs.read("/proc/sys/kernel/yama/ptrace_scope", 16) or b"").strip().decode("ascii", "replace")
    yama = f", kernel.yama.ptrace_scope is {scope}" if scope not in ("", "0") else ""
    return f"the process belongs to another user or is not dumpable, and the capability SYS_PTRACE is missing{yama}"


_frame: Final = functools.lru_cache(maxsize=1024)(Frame)  # of thousands of threads most have the same frames


def _thread(found: dict[str, Any]) -> Thread:
    frames = tuple(_frame(str(f["name"]), str(f["filename"]), int(f["line"] or 0)) for f in found["frames"])
    tid = found.get("os_thread_id")
    return Thread(tid, str(found.get("thread_name") or ""), bool(found["active"]), bool(found["owns_gil"]), frames)
