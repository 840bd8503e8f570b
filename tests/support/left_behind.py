"""What tests may leave in /dev/shm, outside their own folders: the beat folders of ftruns that were killed.

The next ftrun of this user would remove them, so that a test which forgets one is only seen where it was the last.
"""

import fcntl
import os
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")
HOUSE = Path(__file__).resolve().parents[2]


def beat_folders(since: float) -> list[Path]:
    """Those of dead ftruns of this work tree, started at `since` (seconds of the epoch) or later."""
    return [path for path in MEMORY.glob("ftrun-beats-*") if _is_ours(path, since) and is_abandoned(path)]


def _is_ours(path: Path, since: float) -> bool:
    try:
        hooks = os.readlink(path / "python" / "sitecustomize.py")  # each ftrun links to its own
        return hooks.startswith(f"{HOUSE}/") and path.lstat().st_ctime >= since
    except OSError:
        return False


def is_abandoned(path: Path) -> bool:
    """Whether its ftrun has died: it held a lock as long as it lived."""
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def remove_recorded(beat_dir: object) -> None:
    """Remove the beat folder that a dead ftrun has named in its `state.json`: in a PID namespace its name has another
    pid than the process of the test."""
    path = Path(str(beat_dir))
    if path.parent == MEMORY and path.name.startswith("ftrun-beats-") and is_abandoned(path):
        shutil.rmtree(path, ignore_errors=True)


class Session:
    """The tests of one run of pytest.  Where another run in the same work tree goes on at its end, nobody can tell
    whose folders are left, and nothing is reported: all of them hold a shared lock on the work tree."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._lock = os.open(HOUSE, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # no other run has it alone for longer than a moment

    def end(self) -> list[Path]:
        """What is left, and is removed now."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return []
        finally:
            os.close(self._lock)
        found = beat_folders(self._began)
        for path in found:
            shutil.rmtree(path, ignore_errors=True)
        return found
