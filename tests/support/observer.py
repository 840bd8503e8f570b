"""A program that writes down what it can observe of itself, then gives heartbeats until a file tells it to fail.

`observer.py FOLDER`: `FOLDER/seen-<start>-<rank>` is its JSON.  Once `FOLDER/fail` exists, the first start ends with 3
and a later one with 0.
"""

import sys
from time import time as now

BEGAN = now()
LOADED = sorted(sys.modules)
FINDERS = [type(one).__name__ for one in sys.meta_path]
STREAMS = [(id(getattr(sys, name)) == id(getattr(sys, f"__{name}__"))) for name in ("stdin", "stdout", "stderr")]
MAIN = {name: str(value)[:80].partition(" at 0x")[0] for name, value in globals().items() if name.startswith("__")}

import _thread  # noqa: E402
import atexit  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import locale  # noqa: E402
import logging  # noqa: E402
import multiprocessing.process  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from email.message import Message  # noqa: E402
from typing import Any  # noqa: E402

import ftrun_hooks as ft  # noqa: E402

assert Message.__name__  # imported for its own sake


def tried(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def file(path: str) -> str:
    with open(path, errors="replace") as stream:
        return stream.read()


def stream(number: int) -> Any:
    found = os.fstat(number)
    flags = fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)
    return found.st_dev, found.st_ino, found.st_mode, os.isatty(number), *flags


def text(name: str) -> Any:
    one = getattr(sys, name)
    if one is None:
        return None
    buffered = one.buffer
    names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines", "closed")
    raw = (type(buffered).__name__, buffered.raw.mode, buffered.raw.name, buffered.raw.closefd, buffered.raw.seekable())
    return [str(getattr(one, name)) for name in names], type(one).__name__, raw


def status() -> dict[str, str]:
    wanted: tuple[str, ...] = ("Name", "State", "Umask", "Uid", "Gid", "Groups", "Threads", "Seccomp", "NoNewPrivs")
    wanted += ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd")
    wanted += ("CapAmb", "Cpus_allowed", "Mems_allowed", "CoreDumping", "THP_enabled", "Speculation_Store_Bypass")
    lines = (line.split(":", 1) for line in file("/proc/self/status").splitlines())
    wanted += ("VmLck", "VmPin")
    return {name: value.split()[0] if name == "State" else value.strip() for name, value in lines if name in wanted}


def of_a_child() -> list[str]:
    with os.popen("env | grep -v '^_=' | sort") as output:
        return output.read().splitlines()


def random_elsewhere() -> float:
    """From a generator that an installed package has created when it was imported."""
    drawn = sys.modules.get("drawn")
    return 0.0 if drawn is None else float(drawn.GENERATOR.random())


def death_signal() -> int:
    import ctypes

    found = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(2, ctypes.byref(found), 0, 0, 0) == 0  # PR_GET_PDEATHSIG
    return found.value


def observe() -> dict[str, Any]:
    numbers = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
    handlers = {str(number): str(tried(signal.getsignal, number)) for number in range(1, signal.NSIG)}
    found: dict[str, Any] = {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "cmdline": file("/proc/self/cmdline"),
        "exe": os.readlink("/proc/self/exe"),
        "comm": file("/proc/self/comm"),
        "executable": sys.executable,
        "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix],
        "path": sys.path,
        "hooks of the path": [str(hook).partition(" at 0x")[0] for hook in sys.path_hooks],
        "finders": FINDERS,
        "main": MAIN,
        "flags": str(sys.flags),
        "xoptions": str(sys._xoptions),
        "warnings": sys.warnoptions,
        "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix],
        "hash": [sys.hash_info.algorithm, sys.flags.hash_randomization],
        "cwd": os.getcwd(),
        "umask": os.umask(0o22),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name},
        "limits of the kernel": file("/proc/self/limits"),
        "cgroup": file("/proc/self/cgroup"),
        "handlers": handlers,
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "pending": sorted(signal.sigpending()),
        "timers": [signal.getitimer(signal.ITIMER_REAL), signal.set_wakeup_fd(-1)],
        "streams": [tried(stream, number) for number in range(3)],
        "texts": [tried(text, name) for name in ("stdin", "stdout", "stderr")],
        "originals": STREAMS,
        "descriptors": [fd for fd in numbers if os.path.lexists(f"/proc/self/fd/{fd}")],
        "foreground": [tried(os.tcgetpgrp, number) == os.getpgrp() for number in range(3)],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, sorted(os.sched_getaffinity(0))],
        "autogroup": tried(file, "/proc/self/autogroup"),
        "oom": [file("/proc/self/oom_score_adj"), file("/proc/self/oom_adj")],
        "status": status(),
        "environ": list(os.environ.items()),
        "bytes": [os.fsdecode(key) for key in os.environb],
        "posix": [os.fsdecode(key) for key in __import__("posix").environ],
        "of a child": of_a_child(),
        "class": [type(os.environ).__name__, type(os.environb).__name__, type(os.environ).__module__],
        "parent": os.getppid(),
        "environment block": sorted(entry for entry in file("/proc/self/environ").split("\0") if entry),
        "dies with its parent": death_signal(),
        "native thread": threading.main_thread().native_id == os.getpid() == threading.get_native_id(),
        "begun": logging.LogRecord("", 0, "", 0, "", None, None).relativeCreated < 1000 * (time.time() - BEGAN) + 1000,
        "timers of the kernel": [tried(file, "/proc/self/timers"), signal.getitimer(signal.ITIMER_VIRTUAL)],
        "shared for writing": [line for line in file("/proc/self/maps").splitlines() if " rw-s " in line],
        "advice": [file("/proc/self/coredump_filter"), tried(file, "/proc/self/setgroups")],
        "state": random.getstate()[0],
        "session": os.getsid(0),
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding()],
        "threads": [threading.active_count(), len(os.listdir("/proc/self/task")), _thread._count()],
        "main thread": threading.current_thread() is threading.main_thread(),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug()],
        "at exit": atexit._ncallbacks(),
        "recursion": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "following": [str(sys.gettrace()), str(sys.getprofile()), threading.gettrace()],
        "displayed": [str(sys.displayhook), sys.excepthook.__qualname__, str(sys.breakpointhook)],
        "builtins": sorted(dir(__builtins__)),
        "terminal": os.environ.get("TERM"),
        "zone": time.tzname,
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))},
        "root": os.stat("/").st_ino,
        "slack": tried(file, "/proc/self/timerslack_ns"),
        "personality": tried(file, "/proc/self/personality"),
        "children": file("/proc/self/task/" + str(os.getpid()) + "/children"),
        "usable": [os.access("/", os.W_OK), os.get_exec_path()],
    }
    group = os.getpgrp()
    found["group"] = "own" if group == os.getpid() else "of another"
    found["loaded"] = LOADED
    key = bytes(multiprocessing.process.current_process().authkey)
    found["drawn"] = [random.random(), key.hex(), random_elsewhere()]
    return found


if __name__ == "__main__":
    folder, number = sys.argv[1], int(os.environ["MA_PROC_START_CNT"])
    path = f"{folder}/seen-{number}-{os.environ.get('RANK', '0')}"
    seen = observe()
    ft.beat(number)
    seen["at the first heartbeat"] = sorted(sys.modules)
    seen["rank"], seen["pid"] = os.environ.get("RANK"), os.getpid()
    with open(f"{path}.new", "w") as written:
        json.dump(seen, written)
    os.rename(f"{path}.new", path)
    # No rank ends before all have looked: one that ends takes its process group along.
    ranks = range(int(os.environ.get("WORLD_SIZE", "1")))
    awaited = [f"{folder}/fail", *(f"{folder}/seen-{number}-{rank}" for rank in ranks)]
    while not all(map(os.path.exists, awaited)):
        time.sleep(0.02)
        ft.beat()
    sys.exit(3 if number == 1 else 0)
