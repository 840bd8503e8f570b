"""A template: a standby that imports once and then forks one standby for each rank, which share its memory.

A fork repeats more than a program may observe, so only a process in which nothing of that kind was found is forked:
another thread, an open descriptor, memory that is shared for writing, a module of unknown behaviour at a fork or a
module that has kept the process id.  What was filled with random values is filled again in each rank: see `renew`.
Where this is not possible, each rank has a standby of its own (`Alone`).

The hash seed, the layout of the memory and what an import has made of random values, such as a name with a `uuid4`, are
all that forked ranks have in common.

This file is executed without becoming a module, like `_parked.py`.
"""

from __future__ import annotations

import gc
import os
import sys
from time import sleep
from typing import Any

SET = 6  # descriptors of a standby (`_parked.py`)
# Installed packages whose handlers at a fork bring them into the state of a new process, as was seen in their sources.
# These hooks are among them where ftrun is installed; an import of torch loads them.
KNOWN = ("ftrun_hooks", "torch", "numpy", "filelock", "huggingface_hub", "trio", "fsspec")
SIGKILL, PR_SET_PDEATHSIG = 9, 1


class WatchedFunction:
    """Replaces a function of `os` while modules are imported: which installed packages have called it."""

    def __init__(self, name: str) -> None:
        self.name, self.real = name, getattr(os, name)
        self.packages: set[str] = set()
        real, packages = self.real, self.packages

        def call(*arguments: Any, **named: Any) -> Any:
            names = sys._getframe(1).f_globals
            origin = str(getattr(names.get("__spec__"), "origin", ""))
            if "-packages/" in origin:
                packages.add(str(names.get("__name__")).partition(".")[0])
            return real(*arguments, **named)

        self.call: Any = call
        del call
        self.references = sys.getrefcount(self.call)
        setattr(os, name, self.call)

    def end(self) -> str:
        """Stop watching.  Returns why a fork could be observed by the program, or nothing."""
        setattr(os, self.name, self.real)
        unknown = sorted(self.packages.difference(KNOWN))
        if unknown:
            return f"an import of {unknown[0]} has called os.{self.name}"
        if sys.getrefcount(self.call) > self.references:
            self.give_back()
        return f"an import has kept os.{self.name}" if sys.getrefcount(self.call) > self.references else ""

    def give_back(self) -> None:
        """Replace it where a module or the defaults of a function have kept it."""
        holder: Any
        for holder in gc.get_referrers(self.call):
            if holder is self.__dict__:
                continue
            if isinstance(holder, dict):
                holder.update({name: self.real for name, value in holder.items() if value is self.call})
            elif isinstance(holder, tuple):
                given_back = tuple([self.real if one is self.call else one for one in holder])
                for function in gc.get_referrers(holder):
                    if getattr(function, "__defaults__", None) is holder:
                        function.__defaults__ = given_back


class TorchSeed:
    """The first finder, which finds nothing.  torch imports more after its native part, and this is asked then: it sees
    the seed that torch has drawn, before any package can have set another one."""

    drawn: int | None = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self.drawn is None and (generator := self.generator()) is not None:
            self.drawn = generator.initial_seed()

    @staticmethod
    def generator() -> Any:
        return getattr(sys.modules.get("torch._C"), "default_generator", None)

    def was_set(self) -> bool:
        generator = self.generator()
        return generator is not None and generator.initial_seed() != self.drawn


class ForkTemplate:
    """`alone`: the exception that says why ranks cannot be forked.  `draws`: whether the imports need `random`."""

    def __init__(self, alone: type[Exception], draws: bool) -> None:
        self.alone, self.parent, self.inherited = alone, os.getppid(), _descriptors()
        self.seeded: list[Any] = []  # generators of random numbers that an import has created without a seed
        self.watched = [WatchedFunction("getpid"), WatchedFunction("register_at_fork")]
        self.torch_seed = TorchSeed()
        sys.meta_path.insert(0, self.torch_seed)
        self.seed: Any = None
        if draws:
            self.watch_random()

    def watch_random(self) -> None:
        from random import Random

        seeded, self.seed = self.seeded, Random.seed
        seed = self.seed

        def recorded(generator: Any, a: Any = None, version: int = 2) -> None:
            seeded[:] = [one for one in seeded if one is not generator]
            if a is None:
                seeded.append(generator)
            seed(generator, a, version)

        Random.seed = recorded  # type: ignore[method-assign,assignment]

    def imported(self) -> None:
        """The imports are done."""
        sys.meta_path.remove(self.torch_seed)
        if self.seed is not None:
            sys.modules["random"].Random.seed = self.seed
        self.obstacles = [watched.end() for watched in self.watched]

    def fork_ranks(self, standby: Any) -> None:
        """Fork a standby for each rank; returns in each of them, once ftrun is its parent.  This process ends."""
        self.check(standby)
        if self.parent != 1:
            self.load_libc()
        pids = []
        template = os.getpid()
        for number in range(standby.ranks):
            pid = os.fork()
            if pid == 0:
                self.become_rank(standby, number, template)
                return
            pids.append(str(pid))
        standby.leave_imports()
        standby.say("forked", f"{standby.seconds:.3f}", *pids)
        # ftrun learns the ranks before they become its children, so that it never takes one for a part of the command.
        os.read(standby.requests, 1)
        os._exit(0)

    def load_libc(self) -> None:
        before = set(sys.modules)
        import ctypes

        self.libc: Any = ctypes.CDLL(None)
        for name in set(sys.modules) - before:
            del sys.modules[name]

    def become_rank(self, standby: Any, number: int, template: int) -> None:
        os.setpgid(0, 0)
        own = standby.base + SET * (number + 1)
        for fd in range(standby.base, standby.base + SET * (standby.ranks + 1)):
            if not own <= fd < own + SET:
                _close(fd)
        standby.use(own)
        standby.streams = [fd if _is_open(fd) else None for fd in range(own + 3, own + SET)]
        while os.getppid() == template:
            sleep(0.001)
        if self.parent != 1:  # the kernel sends the signal when the parent of that moment ends
            self.libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
        if os.getppid() != self.parent:
            os._exit(0)
        self.renew()

    def check(self, standby: Any) -> None:
        """Raise `alone` if ranks that are forked from this process could differ from new processes."""
        read = sorted(standby.differing & standby.reads.names)
        if read:
            raise self.alone(f"its imports have read the variable {read[0]}, which differs between ranks")
        for obstacle in self.obstacles:
            if obstacle:
                raise self.alone(obstacle)
        if len(os.listdir("/proc/self/task")) > 1:
            raise self.alone("an import of a native library started a thread")
        for fd in _descriptors() - self.inherited:
            if fd not in standby.lines.files.values() and not standby.base <= fd < standby.base + SET * (
                standby.ranks + 1
            ):
                raise self.alone(f"an import opened {os.readlink(f'/proc/self/fd/{fd}')}")
        with open("/proc/self/maps", "rb") as file:
            for line in file:
                if line.split()[1] == b"rw-s":
                    raise self.alone("an import shares memory")
        with open("/proc/self/status", "rb") as file:
            if any(line.startswith(b"VmLck:") and line.split()[1] != b"0" for line in file):
                raise self.alone("an import has locked memory")
        # A new process would have the numbers of a seed that an import has set.
        if self.torch_seed.was_set():
            raise self.alone("an import has seeded torch")
        if "numpy.random" in sys.modules:
            self.check_numpy()

    def check_numpy(self) -> None:
        """Only the generator behind `numpy.random` itself can be seeded again."""
        from numpy.random import Generator, RandomState, mtrand

        if getattr(mtrand._rand._bit_generator, "_seed_seq", self) is None:  # as `numpy.random.seed` leaves it
            raise self.alone("an import has seeded numpy.random")
        for one in gc.get_objects():
            kind = type(one)
            if (kind is Generator or kind is RandomState) and one is not mtrand._rand:
                raise self.alone("an import has created a generator of numpy.random")

    def renew(self) -> None:
        """What each new process draws at random when modules are imported.  `random` itself does so at a fork."""
        for generator in self.seeded:
            generator.seed()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        if (generator := self.torch_seed.generator()) is not None:
            generator.seed()
        if (threading := sys.modules.get("threading")) is not None:
            # Up to Python 3.12 a fork leaves the old one.
            threading.main_thread()._native_id = threading.get_native_id()
        if (process := sys.modules.get("multiprocessing.process")) is not None:
            process.current_process().authkey = os.urandom(32)


def _descriptors() -> set[int]:
    return {int(fd) for fd in os.listdir("/proc/self/fd") if _is_open(int(fd))}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass
