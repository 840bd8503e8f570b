"""Routes the command's output through pipes of ftrun, so that a helper can keep a copy of it (`--log-dir`) or mark the
lines of each rank (`--prefix-ranks`).

PID 1 holds both ends of each pipe and neither reads nor writes: a helper that dies causes no SIGPIPE in the command,
and the next helper continues where it stopped, since data that was not passed on is still in the pipe.  A terminal and
a closed stream are never captured: job control and `isatty` behave as without ftrun.
"""

import fcntl
import os
import stat
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.host import mounts

LOG: Final = "output.log"  # file name in the run dir
RANK_LOG: Final = "output-{}.log"  # the name for a local rank, where ftrun starts the ranks
NUMBERS: Final = 3  # standard streams: a stream has the key `NUMBERS * local rank + number`


class RankOutput(NamedTuple):
    """`ranks`: how many ranks ftrun starts; None: the command is one process.  `shown`: the local ranks whose output is
    forwarded; None: all.  `kept`: each rank's output is kept in a file.  `prefixed`: each line is marked with the
    number of its rank."""

    ranks: int | None = None
    shown: Container[int] | None = None
    kept: bool = False
    prefixed: bool = False

    def is_shown(self, local_rank: int) -> bool:
        return self.shown is None or local_rank in self.shown


class OutputPipes:
    """If stdout and stderr are the same file they share one pipe, which keeps the order."""

    def __init__(self, output: RankOutput) -> None:
        self._output = output
        self._ends: dict[int, int] = {}  # the end that the helper reads, by the key of the stream
        self._writers: dict[int, dict[int, int]] = {}
        self._null: int | None = None
        capturable = [number for number in (1, 2) if _captured(number, output)]
        shared = len(capturable) > 1 and _file(1) == _file(2)
        for local_rank in range(output.ranks or 1) if capturable else ():
            writers = self._writers[local_rank] = {}
            if not output.kept and not output.is_shown(local_rank):
                continue
            for number in capturable:
                if shared and number == 2:
                    writers[2] = writers[1]
                else:
                    self._ends[NUMBERS * local_rank + number], writers[number] = os.pipe2(os.O_CLOEXEC)

    @property
    def captures(self) -> bool:
        return bool(self._ends)

    def streams(self, local_rank: int = 0) -> dict[int, int]:
        """The descriptors that replace standard streams of this rank, as `spawn.spawn` takes them.  The output of a
        rank that is neither shown nor kept is discarded."""
        writers = self._writers.get(local_rank, {})
        if self._output.is_shown(local_rank) or writers:
            return writers
        if self._null is None:
            self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        return dict.fromkeys((1, 2), self._null)

    def arguments(self, run_dir: str) -> Sequence[str]:
        """Return the helper's arguments; it has the descriptors `descriptors` as 3 and up."""
        output = self._output
        log = "" if not output.kept else f"{run_dir}/{LOG if output.ranks is None else RANK_LOG}"
        prefixed = ":prefixed" if output.prefixed else ""
        return log, *(f"{key}{prefixed if output.is_shown(key // NUMBERS) else ':hidden'}" for key in self._ends)

    @property
    def descriptors(self) -> Sequence[int]:
        """For each argument but the first: the end to read from, and the stream to write to."""
        return [fd for key, end in self._ends.items() for fd in (end, key % NUMBERS)]

    def reader_closed(self, key: int) -> None:
        """The helper reports that the reader of this stream is gone: the command gets SIGPIPE, as it would without
        ftrun."""
        if key not in self._ends:
            return
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, self._ends[key], inheritable=False)  # the number stays valid for the next helper
        os.close(null)

    def close_writers(self) -> None:
        """The command and its tree are dead: the helper reaches the end of the pipes when it has passed on
        everything."""
        for fd in {fd for writers in self._writers.values() for fd in writers.values()}:
            os.close(fd)
        self._writers = {}

    def close_readers(self) -> None:
        """No further helper will be started; one that still runs has its own copies of the descriptors."""
        for fd in self._ends.values():
            os.close(fd)
        self._ends = {}


def _captured(number: int, output: RankOutput) -> bool:
    """Return whether this stream was inherited, can be written to, and is not a terminal, unless its lines are to be
    marked."""
    if not output.kept and not output.prefixed:
        return False
    try:
        # ftrun may have opened that number itself.
        opened_by_ftrun = fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        writable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        terminal = not mounts.is_on_network_volume(number) and os.isatty(number)
        return not opened_by_ftrun and writable and (output.prefixed or not terminal)
    except OSError:
        return False


def _file(number: int) -> object:
    """Return what is the same for two descriptors of one file."""
    if mounts.is_on_network_volume(number):
        return os.readlink(f"/proc/self/fd/{number}")
    status = os.fstat(number)
    return status.st_dev, status.st_ino


def inherited_files() -> tuple[tuple[str, int], ...]:
    """Each file into which inherited streams write, with its present size: what comes later is not of this attempt.
    Pipes and terminals are left out, and so is a file on a network disk, which may block."""
    found: dict[str, int] = {}
    for number in (1, 2):
        with suppress(OSError):  # it is closed
            if mounts.is_on_network_volume(number):
                continue
            status = os.fstat(number)
            if stat.S_ISREG(status.st_mode) and status.st_nlink:
                found[os.readlink(f"/proc/self/fd/{number}")] = status.st_size
    return tuple(found.items())
