"""A standby: a process of the command that has done the imports of the last attempt, and waits to be started.

ftrun executes it exactly as the command; `sitecustomize` calls `main` before the program's first line.  When it is
started it gets its environment, and what a program can observe is as in a process that was just executed, except for
what the imports themselves leave: modules, variables and filters of warnings that they set.  If anything else may
differ, it says why and ends, and ftrun executes the command instead.

FTRUN_PARKED is `FIRST:RANKS:LIST`.  With RANKS this process is a template: it imports, and then forks a standby for
each rank (`_template.py`).  LIST is the file with what is to be imported (`_report.py`).

This file is executed without becoming a module, and what it imports for itself is forgotten again.  Descriptors, from
FIRST: requests of ftrun, answers to it, the file with the start, copies of the standard streams; and again six for each
rank of a template.
"""

from __future__ import annotations

import os
import sys
from time import monotonic, time, time_ns
from typing import Any

NUMBER = 4096  # bytes of an answer
PRELOAD = "/preload"  # the end of LIST, if it is not from an attempt of this run
KEPT = 1 << 14  # bytes of the imports that ftrun keeps
# Native libraries read variables of these families when they are loaded, which shows nowhere.
LIBRARIES = (
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "BLIS_", "TBB_", "PYTHON", "LD_", "MALLOC_", "CUDA_", "NVIDIA_"),
    *("NCCL_", "TORCH", "PYTORCH_", "TRITON_", "XLA_", "TF_", "ASCEND_", "HCCL_", "ROCR_", "HIP_"),
)
ROOM = "FTRUN_PARKED_ROOM"  # a variable in whose place the environment block gets what the start has added
STREAMS = ("stdin", "stdout", "stderr")
DEVICES = ("/dev/nvidia", "/dev/davinci", "/dev/kfd", "/dev/dri", "/dev/hisi", "/dev/devmm")


class Cold(Exception):
    """Why this process cannot be started in place of a new one."""


class Alone(Exception):
    """Why ranks cannot be forked from this process, although one that has imported by itself could be started."""


class ParkedProcess:
    def __init__(self, load: Any) -> None:
        self.load = load
        first, ranks, self.list = os.environ.pop("FTRUN_PARKED").split(":", 2)
        os.environ.pop(ROOM, None)
        self.ranks = int(ranks)
        self.use(int(first))
        self.given = dict(os.environ)
        self.modules_before = set(sys.modules)
        self.template: Any = None
        self.differing: set[str] = set()  # variables that differ between the ranks of a template
        self.began = time_ns()
        self.error: BaseException | None = None
        self.reads, self.missing = Reads(), Missing()
        sys.meta_path.append(self.missing)
        # Nothing that an import prints may reach the output of the running attempt.
        self.lines = load("_kept_lines")["KeptLines"]()
        self.streams = [self._copy(number) for number in range(3)]
        self._replace(0, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for number in (1, 2):
            if self.streams[number] is not None:
                os.dup2(self.lines.files[number], number)
        self.terminals = Terminals(self.streams)
        self.known = {fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")}

    def use(self, base: int) -> None:
        self.base, self.requests, self.answers, self.start = base, base, base + 1, base + 2

    def _copy(self, number: int) -> int | None:
        try:
            return os.dup2(number, self.base + 3 + number, inheritable=False)
        except OSError:
            return None  # the command was started without it

    def _replace(self, number: int, fd: int) -> None:
        if self.streams[number] is not None and fd != number:
            os.dup2(fd, number)
            os.close(fd)

    # --- before the start ---------------------------------------------------------------------------------------

    def prepare(self, chain: Any) -> None:
        """Import; raises Cold.  `chain` runs the program's own sitecustomize."""
        modules, self.own, self.folders, self.changed = self._lists(self.list)
        finder: Any = next(one for one in sys.meta_path if type(one).__name__ == "FtrunFinder")
        finder.changed, self.finder = self.changed, finder  # what the program changes first cannot be seen here
        if self.ranks:
            modules = self._of_all_ranks(modules)
            draws = "random" in modules or self.list.endswith(PRELOAD)
            self.template = self.load("_template")["ForkTemplate"](Alone, draws)
        with open(os.path.join(os.path.dirname(self.list), "command"), "rb") as file:
            if obstacle := self.load("_command")["obstacle"](file.read()):
                raise Cold(obstacle)
        try:
            chain()
        except ImportError as error:
            self.error = error
        if text := self.lines.unread():
            raise Cold(f"the program's own sitecustomize printed: {text}")
        self.lines.watch_warnings()
        self.roots: list[str] = []
        self.seconds = monotonic()
        for name in modules:
            if name not in sys.modules:
                before = len(sys.modules)
                try:
                    __import__(name)
                except BaseException as error:
                    if self._is_found_elsewhere(name, error):
                        continue
                    raise Cold(f"the import of {name} failed: {type(error).__name__}: {error}"[:300]) from None
                self.roots.append(name)
                self.lines.imported(before)
        self.seconds = monotonic() - self.seconds
        self.lines.end()
        self.terminals.end()
        self.reads.end()
        if self.template is not None:
            self.template.imported()
        if self.reads.kept:
            raise Cold("an import keeps a copy of the environment")
        self.imported = [name for name in sys.modules if name not in self.modules_before]
        self.files = self._versions()
        if any(version is not None and version[0] > self.began for version in self.files.values()):
            raise Cold("a file was changed while it was imported")
        self.check()
        self.own_changes = {
            name: os.environ.get(name)
            for name in self.given.keys() | os.environ.keys()
            if self.given.get(name) != os.environ.get(name)
        }
        mark = self.load("_command")["mark"]
        for entry in self.changed:
            name, _, value = entry.partition("=")
            matters = name.startswith(LIBRARIES)
            if name in self.own_changes:  # the import that sets it would find another value in a cold start
                matters = matters and value not in ("", mark(self.own_changes[name]))
            elif name in self.reads.names:
                matters = True
            if matters:
                raise Cold(f"the program sets {name}, which its imports may read")
        absent = sorted(self.missing.names & set(self.own))
        if absent:
            raise Cold(f"its imports need the program's own module {absent[0]}")

    def _is_found_elsewhere(self, name: str, error: BaseException) -> bool:
        """Whether an attempt has found a module where only the program looks, such as one that setuptools has packed:
        nothing of it was executed, and the program imports it itself."""
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        return not self.list.endswith(PRELOAD) and absent is not None and f"{name}.".startswith(f"{absent}.")

    def _lists(self, path: str) -> list[list[str]]:
        """The content of a report (`_report.py`); raises Cold if it is an obstacle."""
        with open(path, "rb") as file:
            obstacle, _, rest = os.fsdecode(file.read(1 << 20)).partition("\0")
        if obstacle:
            raise Cold(obstacle)
        return _lists(rest)[:4]

    def _of_all_ranks(self, modules: list[str]) -> list[str]:
        """What all ranks of a template have imported, with what any of them has added or changed."""
        differing, reports = _lists(os.fsdecode(os.pread(self.start, os.fstat(self.start).st_size, 0)))[:2]
        self.differing = set(differing)
        for report in reports:
            theirs, *others = self._lists(report)
            common = set(theirs)
            modules = [name for name in modules if name in common]
            for one, more in zip((self.own, self.folders, self.changed), others):  # noqa: B905 - Python 3.8 has no `strict`
                one += [name for name in more if name not in one]
        os.ftruncate(self.start, 0)
        return modules

    def check(self) -> None:
        """What may not be in a process that waits, or be done by one."""
        if text := self.lines.unread():
            raise Cold(f"an import printed {text}")
        if len(sys._current_frames()) > 1:
            raise Cold("an import started a thread")
        for task in os.listdir("/proc/self/task"):
            if _content(f"/proc/self/task/{task}/children").strip():
                raise Cold("an import started a process")
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if target.startswith(DEVICES):
                raise Cold(f"an import opened the device {target}")
            if fd in self.known:
                continue
            # The running attempt has the same object: a port, a connection to a service, a log that both would write.
            if target.startswith("socket:"):
                raise Cold("an import opened a socket")
            flags, is_locked = _use(fd)
            if is_locked:
                raise Cold(f"an import has locked {target}")
            if flags & 3 and os.fstat(int(fd)).st_mode & 0o170000 == 0o100000:  # a regular file
                raise Cold(f"an import keeps {target} open for writing")

    def _versions(self) -> dict[str, tuple[int, int, int] | None]:
        """The version of each imported file, of the interpreter, and of the folders with installed packages."""
        paths = {sys.executable, os.path.join(sys.prefix, "pyvenv.cfg"), os.path.realpath("/proc/self/exe")}
        paths.update(entry for entry in sys.path if entry.rstrip("/").endswith("-packages"))
        for module in list(sys.modules.values()):
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            if isinstance(origin, str) and origin.startswith("/"):
                paths.add(origin)
        return {path: _version(path) for path in paths}

    def leave_imports(self) -> None:
        """Leave in the file with the start what a later ftrun needs to import the same in advance."""
        lists = self.roots, self.own, self.folders, self.changed
        content = os.fsencode("\0".join("\0".join((*one, "")) for one in lists))
        if len(content) <= KEPT:
            os.pwrite(self.start, content, 0)

    def say(self, *words: str) -> None:
        os.write(self.answers, os.fsencode("\0".join(words))[:NUMBER] + b"\n")

    # --- the start ------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait for the start; ends this process if ftrun is gone."""
        if not os.read(self.requests, 1):
            os._exit(0)

    def become(self) -> None:
        """Become the command; raises Cold."""
        lists = _lists(os.fsdecode(os.pread(self.start, os.fstat(self.start).st_size, 0)))
        environment = dict(entry.split("=", 1) for entry in lists[0])
        ours, withheld = set(lists[1]), set(lists[2])
        settings = dict(entry.split("=", 1) for entry in lists[3])
        for name in self.given.keys() | environment.keys():
            if self.given.get(name) == environment.get(name):
                continue
            if name in self.reads.names:
                raise Cold(f"its imports have read the variable {name}, which has changed")
            if name not in ours and name not in withheld:
                raise Cold(f"the variable {name} has changed")
        self.check()
        self._check_files()
        self._restore(settings)
        self._show(environment)
        _begin_now()
        os.environ.clear()
        os.environ.update(environment)
        for name, value in self.own_changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self.lines.kept:
            self.lines.hide()
            self.finder.kept = self.lines

    def _show(self, environment: dict[str, str]) -> None:
        """Let /proc/PID/environ have the variables that were added, in the place that was kept for them.  The strings
        that were there stay where they are: native libraries may have kept their addresses."""
        wanted = {os.fsencode(f"{name}={value}") for name, value in environment.items()}
        fields = _content("/proc/self/stat").rpartition(b")")[2].split()
        begin, end = int(fields[47]), int(fields[48])  # env_start and env_end (proc_pid_stat(5))
        try:
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(begin)
                entries = memory.read(end - begin).split(b"\0")
                added = b"\0".join(sorted(wanted.difference(entries)))
                found = [entry if entry in wanted else b"\0" * len(entry) for entry in entries]
                place = next(number for number, entry in enumerate(entries) if entry.startswith(ROOM.encode()))
                if len(added) > len(entries[place]):
                    raise Cold("its environment has become longer")
                found[place] = added.ljust(len(entries[place]), b"\0")
                memory.seek(begin)
                memory.write(b"\0".join(found))
        except (OSError, StopIteration):  # a kernel that does not let a process write there
            pass

    def _check_files(self) -> None:
        for path, version in self.files.items():
            if _version(path) != version:
                raise Cold(f"{path} has changed")
        tops = {name.partition(".")[0] for name in self.imported} | self.missing.names
        for folder in self.folders:
            try:
                entries = os.listdir(folder)
            except OSError:
                continue
            hidden = tops & {entry.partition(".")[0] for entry in entries if _can_be_imported(folder, entry)}
            if hidden:
                raise Cold(f"{folder} has a module {sorted(hidden)[0]} of its own")

    def _restore(self, settings: dict[str, str]) -> None:
        """Priority, memory score, process group and streams as a new process of ftrun would have them."""
        try:
            if "nice" in settings:
                os.setpriority(os.PRIO_PROCESS, 0, int(settings["nice"]))
            if "oom" in settings:
                with open("/proc/self/oom_score_adj", "wb") as file:
                    file.write(settings["oom"].encode())
        except OSError as error:
            raise Cold(f"a setting cannot be restored: {error}") from None
        if settings["group"] != "0":
            try:
                os.setpgid(0, int(settings["group"]))
            except PermissionError:
                pass  # its last process has just ended: a process that is executed now would have a group of its own
        sys.meta_path.remove(self.missing)
        for number, copy in enumerate(self.streams):
            if copy is not None:
                os.dup2(copy, number)

    def forget(self) -> None:
        """Close all that was needed to wait."""
        self.lines.close()
        for fd in (*(copy for copy in self.streams if copy is not None), self.requests, self.answers, self.start):
            os.close(fd)


def _lists(content: str) -> list[list[str]]:
    """Lists of words, each ended by a NUL; an empty one ends a list."""
    lists: list[list[str]] = [[]]
    for item in content.split("\0"):
        lists[-1].append(item) if item else lists.append([])
    return lists


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _use(fd: str) -> tuple[int, bool]:
    """The flags with which it was opened, and whether this process has locked the file (proc_pid_fdinfo(5))."""
    lines = _content(f"/proc/self/fdinfo/{fd}").split(b"\n")
    flags = next((line for line in lines if line.startswith(b"flags:")), b"0")
    return int(flags.split()[-1], 8), any(line.startswith(b"lock:") for line in lines)


def _can_be_imported(folder: str, entry: str) -> bool:
    return entry.endswith((".py", ".so", ".pyc")) or ("." not in entry and os.path.isdir(os.path.join(folder, entry)))


def _begin_now() -> None:
    """Modules that have kept the time of their import get the time of the start."""
    logging: Any = sys.modules.get("logging")
    if logging is not None and hasattr(logging, "_startTime"):
        logging._startTime = time_ns() if isinstance(logging._startTime, int) else time()


def main(chain: Any, load: Any) -> BaseException | None:
    """Returns in the process that has become the command, with the exception of its own sitecustomize, if any.  `load`
    returns the names of another file of the hooks."""
    standby = ParkedProcess(load)
    try:
        try:
            standby.prepare(chain)
            if standby.ranks:
                standby.template.fork_ranks(standby)  # returns in each rank
            else:
                standby.leave_imports()
            standby.say("ready", f"{standby.seconds:.3f}", _resident(), *standby.roots)
            standby.wait()
            standby.become()
        except Cold as why:
            standby.say("cold", str(why))
            os._exit(0)
        except Alone as why:
            standby.say("alone", str(why))
            os._exit(0)
        standby.say("warm")
        standby.forget()
    except BaseException:
        os._exit(1)
    return standby.error


def _resident() -> str:
    """The proportional share of memory of this process, in bytes."""
    lines = _content("/proc/self/smaps_rollup").split(b"\n")
    return str(1024 * sum(int(line.split()[1]) for line in lines if line.startswith(b"Pss:")))


def _content(path: str) -> bytes:
    """A small file of /proc; empty where the kernel does not have it.  As bytes: text may need another module."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


# --- what the imports read and miss -----------------------------------------------------------------------------------


class Reads:
    """What imports read of the environment, while `os.environ` is of another class: `names` that were asked for, and
    whether a copy of all of it is `kept`.  Programs often go through all variables, to find those with some prefix:
    that alone is neither."""

    MARK = "FTRUN_PARKED.MARK"

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.kind = type(os.environ)
        names, mark, kind = self.names, self.MARK, self.kind
        self.value = value = "".join(("kept ", mark))  # one object, whose references show who kept it
        os.environ[mark] = value

        class All(kind):  # type: ignore[valid-type,misc]
            def __getitem__(self, key: Any) -> Any:
                return value if key == mark else kind.__getitem__(self, key)

        class Environ(All):
            def __getitem__(self, key: Any) -> Any:
                names.add(os.fsdecode(key))
                return All.__getitem__(self, key)

            def items(self) -> Any:
                everything = All.__new__(All)
                everything.__dict__.update(self.__dict__)
                return kind.items(everything)

        for one in (os.environ, os.environb):
            one.__class__ = Environ
        self.references = sys.getrefcount(value)

    def end(self) -> None:
        for one in (os.environ, os.environb):
            one.__class__ = self.kind
        del os.environ[self.MARK]
        self.kept = sys.getrefcount(self.value) > self.references


class Terminals:
    """What imports ask of a terminal while the standard streams lead elsewhere: the real ones answer, `streams`.

    Many libraries look when they are imported whether they may print in colours.
    """

    def __init__(self, streams: list[int | None]) -> None:
        self.real = isatty, get_terminal_size = os.isatty, os.get_terminal_size
        self.raw: list[Any] = []
        self.files = files = {number: copy for number, copy in enumerate(streams) if copy is not None}
        answers = {name: number in files and isatty(files[number]) for number, name in enumerate(STREAMS)}
        if any(answers.values()):
            os.isatty = lambda fd: isatty(files.get(fd, fd))
            os.get_terminal_size = lambda fd=1: get_terminal_size(files.get(fd, fd))
            for name, answer in answers.items():
                buffered = getattr(getattr(sys, name), "buffer", None)
                if buffered is not None:
                    raw = getattr(buffered, "raw", buffered)  # which the objects around it ask
                    raw.isatty = lambda answer=answer: answer
                    self.raw.append(raw)

    def end(self) -> None:
        os.isatty, os.get_terminal_size = self.real
        self.files.clear()  # an import may have kept one of the functions
        for raw in self.raw:
            del raw.isatty


class Missing:
    """The last finder: the modules that were not found."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if path is None:
            self.names.add(name)
