"""A standby: a process of the command that has done the imports of the last attempt, and waits to be started.

ftrun executes it exactly as the command; `sitecustomize` calls `main` before the program's first line.  When it is
started it gets its environment, and everything that a program can observe is as in a process that was just executed.
If anything may differ, it says why and ends, and ftrun executes the command instead.

This file is executed without becoming a module, and what it imports for itself is forgotten again.  Descriptors, from
the number in FTRUN_PARKED: requests of ftrun, answers to it, the file with the start, copies of the standard streams.
"""

from __future__ import annotations

import os
import sys
from time import monotonic, time_ns
from typing import Any

NUMBER = 4096  # bytes of an answer
# Native libraries read variables of these families when they are loaded, which shows nowhere.
LIBRARIES = (
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "BLIS_", "TBB_", "PYTHON", "LD_", "MALLOC_", "CUDA_", "NVIDIA_"),
    *("NCCL_", "TORCH", "PYTORCH_", "TRITON_", "XLA_", "TF_", "ASCEND_", "HCCL_", "ROCR_", "HIP_"),
)
DEVICES = ("/dev/nvidia", "/dev/davinci", "/dev/kfd", "/dev/dri", "/dev/hisi", "/dev/devmm")


class Cold(Exception):
    """Why this process cannot be started in place of a new one."""


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


class Missing:
    """The last finder: the modules that were not found."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if path is None:
            self.names.add(name)


class Standby:
    def __init__(self) -> None:
        first, _, self.list = os.environ.pop("FTRUN_PARKED").partition(":")
        self.base = int(first)
        self.requests, self.answers, self.start = self.base, self.base + 1, self.base + 2
        self.given = dict(os.environ)
        self.modules_before = set(sys.modules)
        self.began = time_ns()
        self.error: BaseException | None = None
        self.reads, self.missing = Reads(), Missing()
        sys.meta_path.append(self.missing)
        # Nothing that an import prints may reach the output of the running attempt.
        self.printed = os.memfd_create("printed")
        self.streams = [self._copy(number) for number in range(3)]
        self._replace(0, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for number in (1, 2):
            if self.streams[number] is not None:
                os.dup2(self.printed, number)
        os.set_inheritable(self.printed, False)

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
        with open(self.list, "rb") as file:
            items = os.fsdecode(file.read(1 << 20)).split("\0")
        obstacle, *rest = items
        if obstacle:
            raise Cold(obstacle)
        lists: list[list[str]] = [[]]
        for item in rest:
            lists[-1].append(item) if item else lists.append([])
        modules, self.own, self.folders, self.changed = lists[:4]
        try:
            chain()
        except ImportError as error:
            self.error = error
        self.roots: list[str] = []
        self.seconds = monotonic()
        for name in modules:
            if name not in sys.modules:
                self.roots.append(name)
                try:
                    __import__(name)
                except BaseException as error:
                    raise Cold(f"the import of {name} failed: {type(error).__name__}: {error}"[:300]) from None
        self.seconds = monotonic() - self.seconds
        self.reads.end()
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
        for name in self.changed:
            if name not in self.own_changes and (name in self.reads.names or name.startswith(LIBRARIES)):
                raise Cold(f"the program sets {name}, which its imports may read")
        absent = sorted(self.missing.names & set(self.own))
        if absent:
            raise Cold(f"its imports need the program's own module {absent[0]}")

    def check(self) -> None:
        """What may not be in a process that waits, or be done by one."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        if os.fstat(self.printed).st_size:
            text = os.pread(self.printed, 200, 0).decode("utf-8", "replace").strip()
            raise Cold(f"an import printed: {text}")
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

    def _versions(self) -> dict[str, tuple[int, int, int] | None]:
        """The version of each imported file, of the interpreter, and of the folders with installed packages."""
        paths = {sys.executable, os.path.join(sys.prefix, "pyvenv.cfg"), os.path.realpath("/proc/self/exe")}
        paths.update(entry for entry in sys.path if entry.rstrip("/").endswith("-packages"))
        for module in list(sys.modules.values()):
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            if isinstance(origin, str) and origin.startswith("/"):
                paths.add(origin)
        return {path: _version(path) for path in paths}

    def say(self, *words: str) -> None:
        os.write(self.answers, os.fsencode("\0".join(words))[:NUMBER] + b"\n")

    # --- the start ------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait for the start; ends this process if ftrun is gone."""
        if not os.read(self.requests, 1):
            os._exit(0)

    def become(self) -> None:
        """Become the command; raises Cold."""
        content = os.fsdecode(os.pread(self.start, os.fstat(self.start).st_size, 0))
        lists: list[list[str]] = [[]]
        for item in content.split("\0"):
            lists[-1].append(item) if item else lists.append([])
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
        os.environ.clear()
        os.environ.update(environment)
        posix = sys.modules["posix"]
        posix.environ.clear()  # what os.environ is made from
        posix.environ.update((os.fsencode(name), os.fsencode(value)) for name, value in environment.items())
        for name, value in self.own_changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

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
        os.close(self.printed)
        for fd in (*(copy for copy in self.streams if copy is not None), self.requests, self.answers, self.start):
            os.close(fd)


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _can_be_imported(folder: str, entry: str) -> bool:
    return entry.endswith((".py", ".so", ".pyc")) or ("." not in entry and os.path.isdir(os.path.join(folder, entry)))


def main(chain: Any) -> BaseException | None:
    """Returns in the process that has become the command, with the exception of its own sitecustomize, if any."""
    standby = Standby()
    try:
        try:
            standby.prepare(chain)
            standby.say("ready", f"{standby.seconds:.3f}", _resident(), *standby.roots)
            standby.wait()
            standby.become()
        except Cold as why:
            standby.say("cold", str(why))
            os._exit(0)
        standby.say("warm")
        standby.forget()
    except BaseException:
        os._exit(1)
    return standby.error


def _resident() -> str:
    """Its proportional share of memory, in bytes."""
    lines = _content("/proc/self/smaps_rollup").split(b"\n")
    return str(1024 * sum(int(line.split()[1]) for line in lines if line.startswith(b"Pss:")))


def _content(path: str) -> bytes:
    """A small file of /proc; empty where the kernel does not have it.  As bytes: text may need another module."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
