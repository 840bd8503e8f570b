"""The snapshots of a rank in shared memory: `$FTRUN_BEAT_DIR/snapshots/rank-<LOCAL_RANK>.<a|b>`.

A file is a header page, a description as JSON, and the bytes of what it describes.  A snapshot is written into the file
that does not have the newest one: first the word VALID is cleared, last it is set.  Words are stored whole, so a
process that is killed at any instant leaves the other file as it was, and this one either invalid or complete. SEQUENCE
grows with each snapshot: a reader that finds another SEQUENCE afterwards has read a mixture, and says so.  While other
ranks read a snapshot, it is lent: each new one is written into the other file.

A program may keep a step twice, or go back in its steps.  So that all ranks begin a round with the same state, they
compare numbers: the step, in the bits above how often it was kept before in a row, and above these how often the steps
have gone back.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import pickle
import sys
from typing import Any
from zlib import crc32

from . import _torch_adapter as torch_adapter
from . import layout as at

MAGIC = 0x4E55_5254_4653_0001  # "FTRUS", then the version of this layout
PAGE = 4096
ALIGNED = 64
# Words of the header.
H_MAGIC, H_VALID, H_STEP, H_SEQUENCE, H_DESCRIPTION, H_CHECKSUM = range(6)
HEADER_WORDS = 6
MOST = 1 << 32  # bytes of a description
AGAIN, BACK, COUNTS = 40, 46, 64  # the first bits of these counts in a number, which begin anew at COUNTS


class Damaged(Exception):
    """A snapshot is not there, or is not whole."""


class Full(Exception):
    """Shared memory has no space for a snapshot."""


class File:
    """One of the two files of a rank, mapped while its size stays the same."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.words: memoryview | None = None
        self.memory: memoryview | None = None

    def write(self, step: int, sequence: int, description: bytes, data: list[tuple[int, Any]], size: int) -> None:
        """`data`: what is written at which place, counted from the end of the description.  Raises Full, OSError."""
        begin = _aligned(PAGE + len(description))
        words, memory = self._mapped(begin + size)
        words[H_VALID] = 0
        words[H_MAGIC], words[H_STEP], words[H_SEQUENCE] = MAGIC, step, sequence
        words[H_DESCRIPTION] = len(description)
        words[H_CHECKSUM] = crc32(description)
        memory[PAGE : PAGE + len(description)] = description
        for place, item in data:
            item.write(memory[begin + place : begin + place + item.size])
        words[H_VALID] = 1

    def _mapped(self, size: int) -> tuple[memoryview, memoryview]:
        if self.words is None or self.memory is None or self.memory.nbytes < size:
            self.close()
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, bytes(16), 0)  # invalid, before its pages are there
                # Without this a full file system would end the process with SIGBUS.
                os.posix_fallocate(file, 0, size)
                self._map(file, max(size, os.fstat(file).st_size), mmap.ACCESS_WRITE)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG):
                    raise Full from None
                raise
            finally:
                os.close(file)
        assert self.words is not None
        assert self.memory is not None
        return self.words, self.memory

    def _map(self, file: int, size: int, access: int) -> None:
        self.memory = memoryview(mmap.mmap(file, size, access=access))
        self.words = self.memory[:PAGE].cast("Q")

    def open(self) -> bool:
        """Map the file for reading.  False if there is none."""
        if self.words is not None:
            return True
        try:
            file = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            size = os.fstat(file).st_size
            if size >= PAGE:
                self._map(file, size, mmap.ACCESS_WRITE)
            return size >= PAGE
        finally:
            os.close(file)

    def header(self) -> list[int] | None:
        """The header of a complete snapshot, or None."""
        if not self.open():
            return None
        assert self.words is not None
        found = self.words[:HEADER_WORDS].tolist()
        return found if found[H_MAGIC] == MAGIC and found[H_VALID] == 1 else None

    def description(self) -> tuple[dict[str, Any], memoryview]:
        """The description of what the file contains, and the bytes.  Raises Damaged."""
        header = self.header()
        if header is None or self.memory is None or header[H_DESCRIPTION] > min(MOST, self.memory.nbytes - PAGE):
            raise Damaged("it is not complete")
        text = bytes(self.memory[PAGE : PAGE + header[H_DESCRIPTION]])
        if crc32(text) != header[H_CHECKSUM]:
            raise Damaged("its description is damaged")
        return json.loads(text), self.memory[_aligned(PAGE + len(text)) :]

    def forget(self) -> None:
        if self.header() is not None and self.words is not None:
            self.words[H_VALID] = 0

    def close(self) -> None:
        # A tensor may still refer to the mapping, which ends with the last reference.
        self.words = self.memory = None

    def remove(self) -> None:
        self.close()
        try:
            os.unlink(self.path)
        except OSError:
            pass


class Snapshots:
    """The snapshots of this rank, and a look at the snapshots of other ranks of this node."""

    def __init__(self, folder: str, local_rank: int) -> None:
        self.folder, self.local_rank = folder, local_rank
        self._files = self._of(local_rank)
        self._lent: File | None = None
        self._problem: str | None = None
        self._last = -1  # the number of the last snapshot in this round, or of the one with which it began
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            self._give_up(f"{folder}: {error.strerror}")

    @classmethod
    def of_rank(cls) -> Snapshots:
        return cls(os.path.join(os.environ["FTRUN_BEAT_DIR"], at.SNAPSHOTS), int(os.environ["LOCAL_RANK"]))

    def _of(self, local_rank: int) -> tuple[File, File]:
        base = os.path.join(self.folder, f"rank-{local_rank}.")
        return File(base + "a"), File(base + "b")

    def held(self) -> list[tuple[int, str]]:
        """The number and the shard of each complete snapshot, the oldest first."""
        found: list[tuple[int, str]] = []
        for file in self._files if self._problem is None else ():
            try:
                content, _ = file.description()
                found.append((int(content["step"]), str(content["shard"])))
            except Damaged:
                pass
        return sorted(found)

    def forget(self, but: int | None = None) -> None:
        """Give up all own snapshots, but the one with the number `but`, with which a round begins."""
        self.release()
        self._last = -1 if but is None else but
        for file in self._files:
            header = file.header()
            if header is not None and header[H_STEP] != but:
                file.forget()

    def lend(self, number: int) -> None:
        """Keep the own snapshot of this number as it is until `release`: other ranks load it."""
        self._lent = _of_number(self._files, number)

    def release(self) -> None:
        if self._lent is not None and self._problem is not None:
            self._lent.remove()
        self._lent = None

    def keep(self, step: int, shard: str, state: dict[str, Any]) -> bool:
        """Raises TypeError or ValueError for a state that cannot be kept; the snapshots are then as they were."""
        if self._problem is not None:
            return False
        if type(step) is not int or not 0 <= step < 1 << AGAIN:
            raise ValueError(f"run.keep: the step must be an integer from 0 and below 2**{AGAIN}, not {step!r}")
        if len(shard) > 100:
            raise ValueError("run.keep: a shard has at most 100 characters")
        writer = Writer()
        content = {name: writer.described(_state_of(value)) for name, value in state.items()}
        number = _number(step, self._last)
        description = json.dumps({"step": number, "shard": shard, "state": content}).encode()
        ages = [_sequence(file) for file in self._files]
        older = self._files[ages.index(min(ages))]
        if older is self._lent:
            older = next(file for file in self._files if file is not self._lent)
        try:
            older.write(number, max(ages) + 1, description, writer.data, writer.size)
        except Full:
            self._give_up(
                f"two snapshots of {_mebibytes(writer.size)} for each rank do not fit into {self.folder} "
                f"({_mebibytes(_free(self.folder))} are free; see --shm-size)"
            )
            return False
        except OSError as error:
            self._give_up(f"{self.folder}: {error.strerror}")
            return False
        self._last = number
        return True

    def _give_up(self, why: str) -> None:
        self._problem = why
        for file in self._files:
            if file is not self._lent:
                file.remove()
        rank = os.environ.get("RANK", self.local_rank)
        text = f"run.keep keeps no snapshots from now on: {why}. After a fault the ranks begin with the checkpoint."
        if os.environ.get("FTRUN_QUIET") != "1":
            print(f"[ftrun] rank {rank}: {text}", file=sys.stderr, flush=True)

    def load(self, number: int, local_rank: int, targets: dict[str, Any]) -> dict[str, Any]:
        """Load the snapshot of this rank into the targets; what has none is returned.  Raises Damaged."""
        file = _of_number(self._files if local_rank == self.local_rank else self._of(local_rank), number)
        before = None if file is None else file.header()
        if file is None or before is None or before[H_STEP] != number:
            raise Damaged("it is not there any more")
        content, memory = file.description()
        missing = [name for name in targets if name not in content["state"]]
        if missing:
            raise Damaged(f"it has no {', '.join(missing)}")
        rest = {}
        for name, described in content["state"].items():
            value = _value(described, memory)
            if file.header() != before:
                raise Damaged("it was overwritten while it was read")
            if name in targets:
                _load_into(targets[name], value)
            else:
                rest[name] = value
        return rest


class Bytes:
    def __init__(self, content: Any) -> None:
        self._content = memoryview(content).cast("B")
        self.size = self._content.nbytes

    def write(self, memory: memoryview) -> None:
        memory[:] = self._content


class Writer:
    """Describes values as JSON, and gathers what is copied as bytes, in `data`, with its place."""

    def __init__(self) -> None:
        self.data: list[tuple[int, Any]] = []
        self.size = 0

    def described(self, value: object) -> object:
        """Numbers, text and None as they are; all else as a list of its kind and its content.  TypeError."""
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if isinstance(value, (list, tuple)) and kind in (list, tuple):
            return ["list" if kind is list else "tuple", [self.described(one) for one in value]]
        if isinstance(value, dict):  # the kind of dict is not kept
            return ["dict", [[self.described(name), self.described(one)] for name, one in value.items()]]
        if torch_adapter.is_tensor(value):
            tensor = torch_adapter.TensorData(value)
            return ["tensor", self._place(tensor), tensor.size, tensor.dtype, tensor.shape]
        name = "bytes"
        if kind not in (bytes, bytearray, memoryview):
            value, name = pickle.dumps(value, protocol=4), "pickle"
        content = Bytes(value)
        return [name, self._place(content), content.size]

    def _place(self, item: Any) -> int:
        place = self.size
        self.data.append((place, item))
        self.size = _aligned(place + item.size)
        return place


def _value(described: Any, memory: memoryview) -> Any:
    if not isinstance(described, list):
        return described
    kind, content = described[0], described[1]
    if kind in ("list", "tuple"):
        values = [_value(one, memory) for one in content]
        return values if kind == "list" else tuple(values)
    if kind == "dict":
        return {_value(name, memory): _value(one, memory) for name, one in content}
    data = memory[content : content + described[2]]
    if kind == "tensor":
        return torch_adapter.read(data, described[3], described[4])
    return bytes(data) if kind == "bytes" else pickle.loads(data)


def _state_of(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _load_into(target: Any, value: Any) -> None:
    if hasattr(target, "load_state_dict"):
        target.load_state_dict(value)
    elif torch_adapter.is_tensor(target):
        torch_adapter.write_in_place(target, value)
    elif isinstance(target, (bytearray, memoryview)):
        target[:] = value
    else:
        raise TypeError(f"run.restore cannot load into a {type(target).__name__}: read it from run.kept")


def kept_step(number: int) -> int:
    return number & ((1 << AGAIN) - 1)


def _number(step: int, last: int) -> int:
    """The number of a snapshot of this step that follows the number `last` (-1: it is the first)."""
    if last < 0:
        return step
    back, again = last >> BACK, (last >> AGAIN) % COUNTS
    if step < kept_step(last):
        back, again = (back + 1) % COUNTS, 0
    else:
        again = (again + 1) % COUNTS if step == kept_step(last) else 0
    return (back << BACK) + (again << AGAIN) + step


def _of_number(files: tuple[File, File], number: int) -> File | None:
    found = (file for file in files if (header := file.header()) is not None and header[H_STEP] == number)
    return next(found, None)


def _sequence(file: File) -> int:
    """The sequence number of the snapshot in a file; 0 if it has none."""
    header = file.header()
    return 0 if header is None else header[H_SEQUENCE]


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _free(folder: str) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
