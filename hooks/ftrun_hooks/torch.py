"""Checkpoints that a kill cannot tear, and the removal of what a killed attempt left in the container.

Only `save` needs PyTorch, and only it imports it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import struct
import zipfile
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator

from ._attempt import attempt
from ._auto import was_saved
from ._beat import _start_ticks, checkpoint
from ._last import _remove
from ._section import Automatic

UNFINISHED = re.compile(r"^\.|\.tmp|(\.temp|\.part|\.partial|~)$")
LOCAL_HEADER_BYTES = 30  # and then the name
END = struct.Struct("<4s12xLH")  # the last record of a zip file: magic, central directory, bytes of a comment
FAR = 0xFFFFFFFF  # the central directory is further away than this record can say
BOOT = "/proc/sys/kernel/random/boot_id"


def save(obj: object, path: str | os.PathLike[str], step: int | None = None) -> None:
    """`torch.save`, complete and on disk when it returns; a kill at any instant leaves the old file or the new one.

    With a `step` it calls `ft.checkpoint(step, path)`.  If it raises (OSError, RuntimeError on a full disk; pickle
    errors), the old file is as it was, and the temporary one beside it is gone.
    """
    import torch

    with Automatic("checkpoint"), _replacing(os.path.realpath(path)) as file:
        torch.save(obj, file)
    was_saved(path)
    if step is not None:
        checkpoint(step, os.path.abspath(path))


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The newest complete file of `torch.save` right in `folder`, by time of modification, then by name (10 after 9).

    Skipped, whatever is wrong with them: torn files, temporary ones (a leading dot, `.tmp`, `.part`, `~`), TorchScript,
    the format before PyTorch 1.6, anything else.  Tensor data is not read: it is damaged unnoticed only if the
    file system loses data in the middle of a file.
    """
    newest = sorted(_candidates(folder), reverse=True)
    return next((Path(path) for *_, path in newest if _is_complete(path)), None)


def fresh_shared_memory(name: str, size: int) -> SharedMemory:
    """A new, zeroed segment; one of that name that a killed attempt left, even half made, is removed first.

    For the one process that makes the segment: the others open it afterwards.  ValueError for a bad name or size.
    """
    if size <= 0 or not name.strip("./") or "/" in name.lstrip("/"):
        raise ValueError(f"not a name and a size of shared memory: {name!r}, {size!r}")
    try:
        # Not by opening it: a segment of no bytes cannot be opened, and the resource tracker would learn of it.
        os.unlink(os.path.join("/dev/shm", name.lstrip("/")))
    except FileNotFoundError:
        pass
    return SharedMemory(name, create=True, size=size)


def once(name: str, fn: Callable[[], object]) -> bool:
    """Run `fn`, which must not run twice in a container (a download, preprocessing); True if it ran.

    Of several ranks one runs it while the others wait.  If it raises, the error propagates and another rank may try; if
    it is killed, the next start runs it again.  In a new container it runs again, even if the run dir is an old one.
    Outside ftrun, or where the run dir cannot be written, it always runs.
    """
    run_dir, beat_dir = os.environ.get("FTRUN_RUN_DIR"), os.environ.get("FTRUN_BEAT_DIR")
    if not run_dir or not beat_dir:
        fn()
        return True
    marker = os.path.join(run_dir, "once", _file_name(name))
    here = {"name": name, "container": _container(), "beat_dir": beat_dir}
    with Automatic("once"), _exclusive(marker + ".lock"):
        if _complete(marker, here):
            return False
        fn()
        try:
            with _replacing(marker) as file:
                file.write(json.dumps(here).encode())
        except OSError:
            pass
    return True


@contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends, synced to disk; if the block raises, it is removed.

    Its name depends on the path and the RANK alone, so that what a kill leaves is overwritten by the next.
    """
    folder, name = os.path.split(path)
    fresh = os.path.join(folder, f".{_file_name(name, os.environ.get('RANK', ''))}.tmp")
    with _open_exclusively(fresh) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(fresh, path)
        except BaseException:
            _remove(fresh)
            raise
    _sync_folder(folder)


def _open_exclusively(path: str) -> BinaryIO:
    """The file, empty.  Waits for a live process that still writes to it: ranks that have no RANK share the name."""
    while True:
        file = open(path, "ab")  # noqa: SIM115 - it is the result
        _lock(file.fileno(), fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                file.truncate(0)
                return file
        except FileNotFoundError:
            pass
        file.close()  # the other process has renamed or removed it


@contextmanager
def _exclusive(path: str) -> Iterator[None]:
    """One process at a time is in the block, where the folder can be written."""
    file = None
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        pass
    try:
        if file is not None:
            _lock(file, fcntl.LOCK_EX)
        yield
    finally:
        if file is not None:
            _lock(file, fcntl.LOCK_UN)  # closing is not enough: a child forked in the block has it open too
            os.close(file)


def _lock(file: int, how: int) -> None:
    try:
        fcntl.flock(file, how)
    except OSError:  # a file system without locks
        pass


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that syncs no folders
            raise
    finally:
        os.close(folder)


def _complete(marker: str, here: dict[str, str]) -> bool:
    """Whether it was done in this container: by an earlier start, or by another rank of this very start."""
    try:
        with open(marker, "rb") as file:
            kept = json.load(file)
        same = kept["container"] == here["container"]
        return same and (attempt().start_cnt > 1 or kept["beat_dir"] == here["beat_dir"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _container() -> str:
    """An identity of the container.  It changes at a restart, which may keep the run dir but loses downloads."""
    try:
        with open(BOOT, encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{boot} {_start_ticks(1)}"


def _file_name(*parts: str) -> str:
    """A distinct file name for these texts, of at most 57 bytes."""
    digest = sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{re.sub('[^A-Za-z0-9._-]', '_', parts[0])[:40]}-{digest[:16]}"


def _candidates(folder: str | os.PathLike[str]) -> Iterator[tuple[int, list[Any], str]]:
    """When each finished regular file was modified, its name as people sort it, its path."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            found = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and not UNFINISHED.search(name):
            parts = re.split(r"(\d+)", name)
            yield found.st_mtime_ns, [int(p) if at % 2 else p for at, p in enumerate(parts)], path


def _is_complete(path: str) -> bool:
    """A zip file to its last byte, with each entry where the central directory says, and the pickle undamaged."""
    try:
        with open(path, "rb") as file:
            file.seek(-END.size, os.SEEK_END)
            magic, directory, comment = END.unpack(file.read())
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                return (
                    (magic, comment) == (b"PK\5\6", 0)  # else something follows it
                    and directory in (archive.start_dir, FAR)  # else it is a zip file inside a torn one
                    and all(_in_place(archive, entry) for entry in entries)
                    and {"data.pkl", "version"} <= {entry.filename.partition("/")[2] for entry in entries}
                )
    except Exception:  # zipfile raises nearly anything over garbage
        return False


def _in_place(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    # PyTorch compresses nothing but the code of TorchScript.
    end = entry.header_offset + LOCAL_HEADER_BYTES + len(entry.filename) + entry.compress_size
    if entry.compress_type != zipfile.ZIP_STORED or end > archive.start_dir:
        return False
    with archive.open(entry) as data:  # reads and compares the entry's own header
        while entry.filename.endswith("/data.pkl") and data.read(1 << 20):  # compares the checksum at its end
            pass
    return True
