"""The other threads of a process of which one is observed: what they touch looks as if that one had touched it."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from ftrun.helpers.evidence.recognized import STOPPABLE
from ftrun.helpers.evidence.tracing import Tracee
from ftrun.host import procfs


class OtherThreads:
    """Those that run all the time and may be stopped (recognized.py) are stopped while thread `tid` is observed.  They
    are traced within the context.  OSError where that is refused, Acted if one of them ends or receives a signal."""

    def __init__(self, pid: int, tid: int) -> None:
        self._folder, self._tid = f"/proc/{pid}/task", tid
        self._traced = ExitStack()
        self._stopped: list[Tracee] = []
        self._before: dict[str, bytes] = {}

    def __enter__(self) -> "OtherThreads":
        with ExitStack() as traced:
            for tid in self._tids():
                if self._read(tid, "comm").decode("utf-8", "replace").strip() in STOPPABLE:
                    self._stopped.append(traced.enter_context(Tracee(int(tid))))
                    self._stopped[-1].resume()
            self._traced = traced.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._traced.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Those that may be stopped are, within this context; after an exception, until they are traced no more."""
        for tracee in self._stopped:
            tracee.stop()
        self._before = self._runs()
        yield
        for tracee in self._stopped:
            tracee.resume()

    @property
    def have_run(self) -> bool:
        """Whether one of them has run since they were held; False where the kernel does not count that."""
        return self._runs() != self._before

    def _runs(self) -> dict[str, bytes]:
        return {tid: self._read(tid, "schedstat") for tid in self._tids()}

    def _tids(self) -> list[str]:
        return [name for name in os.listdir(self._folder) if name != str(self._tid)]

    def _read(self, tid: str, name: str) -> bytes:
        return procfs.read(f"{self._folder}/{tid}/{name}", 128) or b""
