"""The crash report of a Python process that dies of an exception: a small file in the beat folder.

`raised-<CLOCK_MONOTONIC in ns, 20 digits>-<pid>`, renamed into place, at most `SIZE` bytes: lines of `key value`, `end`
the last of them.  Times are in ns, `parents` goes up from the parent, `kinds` are the exception's class and its bases.
Keys that begin with `root-` describe the exception at the bottom of the chain; `chain` is the kind of link to it.
`children` are `rank:pid:exit code` of each child whose failure a launcher reports (minus n: ended by signal n).

This file is loaded alone, without the package: the program may have died because an import of the package fails.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RAISED = "raised-"
SIZE = 8192
FILES = 256  # the most that are kept; then those in the middle are removed: the first and the last are the most useful
ANCESTORS = 16
CHAIN = 64
CHILDREN = 12
HOOKS = ("/ftrun_hooks/_importlib_bootstrap.py", "/ftrun_hooks/_crash.py")  # take the place of functions
# Bytes; for error and root each.
ROOM = {"kinds": 600, "message": 400, "more": 400, "where": 120, "own": 120, "frames": 500, "stack": 900, "source": 160}


def leave(folder: str, error: BaseException | None) -> None:
    """Write the exception that ends this process.  A deliberate exit counts only if it follows an exception."""
    try:
        if isinstance(error, SystemExit):
            error = None if error.code in (None, 0) or error.__suppress_context__ else error.__context__
        if error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit)):
            _write(folder, _record(error))
    except Exception:
        pass


def leave_shown(folder: str, error: BaseException) -> None:
    """As `leave`, for an exception that Python shows next: without the frames of the functions of these hooks that take
    the place of others."""
    leave(folder, error)
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting and len(seen) < CHAIN:
        one = waiting.pop()
        if isinstance(one, BaseException) and not any(one is other for other in seen):
            seen.append(one)
            _leave_out_hooks(one)
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _leave_out_hooks(error: BaseException) -> None:
    step = error.__traceback__
    while step is not None:
        below = step.tb_next
        while below is not None and below.tb_frame.f_code.co_filename.endswith(HOOKS):
            below = below.tb_next
        if below is not step.tb_next:
            step.tb_next = below
        step = below


def in_children(folder: str) -> None:
    """Write the exceptions that end children of multiprocessing, which catches their exceptions before any hook of
    Python sees them."""
    from multiprocessing import context, process, util

    def begin(_: object = None) -> None:
        if sys.version_info < (3, 11):
            # Runs while the exception propagates.  From 3.13 on that would be too late.
            util.Finalize(None, lambda: leave(folder, sys.exc_info()[1]), exitpriority=1 << 30)
            return
        child: Any = process.current_process()
        inner = child.run

        def run() -> Any:
            try:
                return inner()
            except BaseException as error:
                leave(folder, error)
                if error.__traceback__ is not None:
                    error.__traceback__ = error.__traceback__.tb_next  # this function is not shown in the traceback
                raise

        child.run = run

    util.register_after_fork(leave, begin)
    spawned: Any = context.SpawnProcess
    if "_after_fork" in vars(spawned):  # from 3.10 on spawned children do not call registered functions
        spawned._after_fork = staticmethod(begin)


def _record(error: BaseException) -> list[str]:
    pid = os.getpid()
    lines = ["pid %d" % pid, "at %d" % time.monotonic_ns(), "started %d" % _started()]
    lines.append("parents " + " ".join(map(str, _parents())))
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or ""
    if rank.isdigit():
        lines.append("rank " + rank[:9])
    lines.append("program " + _cut(os.path.basename((getattr(sys, "argv", None) or [""])[0]), 80))
    lines += _described(error, "")
    try:
        root, how = _root(error)
    except Exception:  # the exception may have attributes of any kind
        root, how = error, ""
    if root is not error:
        lines.append("chain " + how)
        lines += _described(root, "root-")
    children = _children(error) or _children(root)
    if children:
        lines.append("children " + " ".join(children))
    return lines


def _children(error: BaseException) -> list[str]:
    """The children that torch's launchers report, the first failure first: from torchrun's `ChildFailedError` and from
    the exceptions of `torch.multiprocessing.spawn`."""
    launcher: Any = error
    try:
        if isinstance(getattr(launcher, "failures", None), dict):
            first = launcher.get_first_failure()[0]
            ranks = sorted(launcher.failures, key=lambda rank: rank != first)
            failed = [(rank, launcher.failures[rank].pid, launcher.failures[rank].exitcode) for rank in ranks]
        elif hasattr(launcher, "error_pid"):
            failed = [(launcher.error_index, launcher.error_pid, getattr(launcher, "exit_code", 1))]
        else:
            return []
        return ["%d:%d:%d" % one for one in failed[:CHILDREN]]
    except Exception:  # another class with attributes of these names
        return []


def _described(error: BaseException, prefix: str) -> list[str]:
    kinds: list[str] = []
    for kind in type(error).__mro__:
        if kind is not object and len(" ".join(kinds)) < ROOM["kinds"] - 120:
            module = "" if kind.__module__ == "builtins" else str(kind.__module__) + "."
            kinds.append(_cut(module + kind.__qualname__, 120))
    message, more = _message(error)
    where, own = _places(error)
    found = {"kinds": " ".join(kinds), "message": message, "more": more, "where": where, "own": own}
    found["frames"], found["stack"], found["source"] = *_frames(error), _source(error)
    return [prefix + key + " " + _cut(value, ROOM[key]) for key, value in found.items() if value]


def _message(error: BaseException) -> tuple[str, str]:
    """The first line, and the others joined."""
    try:
        lines = [line.strip() for line in str(error)[:8192].splitlines()]
    except Exception:
        return "", ""
    first, *rest = [line for line in lines if line] or [""]
    return first, " | ".join(rest)


def _places(error: BaseException) -> tuple[str, str]:
    """Where it was raised, and the innermost frame of the program's own code: `file.py:88 in f`."""
    library = os.path.dirname(os.__file__) + os.sep
    last: Any = None
    own: Any = None
    step = error.__traceback__
    while step is not None:
        last = step
        path = step.tb_frame.f_code.co_filename
        if not (path.startswith(("<", library)) or "-packages" + os.sep in path or path.endswith(HOOKS)):
            own = step
        step = step.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        return "%s:%s" % (os.path.basename(str(error.filename)), error.lineno), _place(own)
    return _place(last), _place(own)


def _frames(error: BaseException) -> tuple[str, str]:
    """The innermost frames, that of the raise last, as many as there is room for: `file.py:function` of each, and where
    it was: `file.py:88 in function`."""
    frames: list[str] = []
    places: list[str] = []
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        for found, text in (
            (frames, "%s:%s" % (os.path.basename(code.co_filename), code.co_name)),
            (places, _place(step)),
        ):
            found.append(_cut(text, 80).replace("|", "?"))
            del found[:-16]
        step = step.tb_next
    for found, room in (frames, ROOM["frames"]), (places, ROOM["stack"]):
        while len("|".join(found).encode()) > room:
            del found[0]
    return "|".join(frames), "|".join(places)


def _source(error: BaseException) -> str:
    """The line of the program where it was raised, as Python shows it in a traceback."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    try:
        import linecache

        return linecache.getline(step.tb_frame.f_code.co_filename, step.tb_lineno).strip() if step is not None else ""
    except Exception:
        return ""


def _place(step: Any) -> str:
    if step is None:
        return ""
    code = step.tb_frame.f_code
    return "%s:%s in %s" % (os.path.basename(code.co_filename), step.tb_lineno, code.co_name)


def _root(error: BaseException) -> tuple[BaseException, str]:
    """The first exception of the chain.  `cause`: raised `from` it; `context`: raised while it was being handled."""
    how, seen = "cause", [error]
    while len(seen) < CHAIN:
        below, link = error.__cause__, "cause"
        if below is None:  # attributes of torch's compiler errors, which suppress both, and of exception groups
            below = getattr(error, "inner_exception", None) or getattr(error, "exceptions", (None,))[0]
        if below is None and not error.__suppress_context__:
            below, link = error.__context__, "context"
        if not isinstance(below, BaseException) or any(below is other for other in seen):
            break
        if type(below).__name__.endswith("RemoteTraceback"):
            break  # holds the traceback of another process as text; the exception raised there is `error`
        if link == "context":
            how = link
        seen.append(below)
        error = below
    return error, how


def _stat(pid: object) -> list[bytes]:
    """/proc/<pid>/stat from its third field on: the name before may hold anything."""
    with open("/proc/%s/stat" % pid, "rb") as file:
        return file.read(4096).rpartition(b")")[2].split()


def _started() -> int:
    """When this process began, in CLOCK_MONOTONIC; 0 if it cannot be determined."""
    try:
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat("self")[19]) / os.sysconf("SC_CLK_TCK")
        return max(0, time.monotonic_ns() - int(age * 1e9))
    except Exception:
        return 0


def _parents() -> list[int]:
    pids = [os.getppid()]
    try:
        while pids[-1] > 1 and len(pids) < ANCESTORS:
            pids.append(int(_stat(pids[-1])[1]))
    except Exception:
        pass
    return pids


def _cut(text: str, room: int) -> str:
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:room])
    return plain.encode("utf-8", "backslashreplace")[:room].decode("utf-8", "ignore")


def _write(folder: str, lines: list[str]) -> None:
    content = "\n".join([*lines, "end", ""]).encode()
    kept = sorted(name for name in os.listdir(folder) if name.startswith(RAISED))
    for name in kept[FILES // 2 : len(kept) - FILES // 2 + 1]:
        _remove(os.path.join(folder, name))
    name = "%s%020d-%d" % (RAISED, time.monotonic_ns(), os.getpid())
    fresh = os.path.join(folder, "." + name)
    try:
        mode = 0o600 if os.stat(folder).st_uid == os.geteuid() else 0o640  # for the supervisor, if that is another user
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.write(file, content)
        finally:
            os.close(file)
        os.rename(fresh, os.path.join(folder, name))
    except OSError:  # full
        _remove(fresh)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # another process has removed it
        pass
