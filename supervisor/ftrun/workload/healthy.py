"""Healthy behaviour that looks like a hang: each lasts as many seconds as its argument, then training continues."""

import os
import time
from tempfile import TemporaryFile
from typing import IO

from ftrun.host.spawn import die_with
from ftrun.workload.training import Setting, compute, paced

PIECE = 512 << 10  # bytes
PACE = 0.125  # seconds for a piece, so that some MB a second are transferred
MOST = 64 << 20  # bytes of a file
JOBS, JOB = 2, 0.2  # number of compilers at a time, and seconds for which each computes


def slow_step(setting: Setting) -> None:
    """One step of very many small parts, each of which computes for a third of its time."""
    for _ in paced(setting.value, setting.step_time):
        compute(setting.step_time / 2)


def long_checkpoint(setting: Setting) -> None:
    """Write an unnamed file, so that nothing is left of it."""
    with setting.section("checkpoint"), TemporaryFile(dir=setting.folder) as file:
        size = min(int(setting.value / PACE + 1) * PIECE, MOST)
        disk = SlowDisk(file, setting.value * PIECE / size)
        if setting.torch:
            from ftrun.workload import with_torch

            with_torch.save(disk, size)
        else:
            disk.write(bytes(size))


class SlowDisk:
    """A file that takes `pace` seconds to write and sync each PIECE."""

    def __init__(self, file: IO[bytes], pace: float) -> None:
        self.file, self.pace = file, pace

    def write(self, data: bytes) -> int:
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self.file.write(piece)
            self.file.flush()
            os.fsync(self.file.fileno())
            time.sleep(self.pace * len(piece) / PIECE)
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered."""


def long_compile(setting: Setting) -> None:
    """`torch.compile` with a real optimizer, otherwise short-lived children, as make(1) starts them."""
    with setting.section("compile"):
        if setting.torch:
            from ftrun.workload import with_torch

            for _ in paced(setting.value, 0):
                with_torch.compile_once()
        else:
            for _ in paced(setting.value, 0):
                _compile()


def _compile() -> None:
    parent, children = os.getpid(), []
    for _ in range(JOBS):
        child = os.fork()
        if child == 0:
            try:
                die_with(parent)
                compute(JOB)
                with TemporaryFile() as compiled:
                    compiled.write(bytes(PIECE))
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def long_eval(setting: Setting) -> None:
    with setting.section("evaluation"):
        compute(setting.value)


def quiet_sleep(setting: Setting) -> None:
    with setting.section("pause"):
        time.sleep(setting.value)


def first_batch(setting: Setting) -> None:
    with setting.section("first batch"), TemporaryFile(buffering=0) as data:
        data.write(bytes(PIECE))
        for _ in paced(setting.value, PACE):
            data.seek(0)
            while data.read(65536):
                pass
