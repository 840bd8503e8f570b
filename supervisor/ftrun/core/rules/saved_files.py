"""Progress of a job that reports none, derived from the files that it saves and resumes from."""

import re
from typing import Final

from ftrun.core.machine.values import Attempt, Rank, SavedFile

MOST: Final = 64  # files that are kept in the ledger
_NUMBER: Final = re.compile(r"\d+")


def remembered(saved: tuple[SavedFile, ...], ranks: tuple[Rank, ...]) -> tuple[SavedFile, ...]:
    """`saved` with the files that these ranks have saved since, the newest last, each path once, at most `MOST`."""
    fresh = {file.path: file for rank in ranks if rank.saved for file in rank.saved}
    if not fresh or set(saved).issuperset(fresh.values()):
        return saved
    kept = [file for file in saved if file.path not in fresh]
    return (*kept, *fresh.values())[-MOST:]


def advanced(attempt: Attempt) -> bool:
    """Whether this attempt has saved newer state than all earlier ones: it resumed from the newest file of a series
    that earlier attempts saved, moved, and then saved a file of that series.

    A series is all files whose paths differ only in their numbers: `snapshot.pt` is a series, and so are `epoch_1.pt`
    and `epoch_2.pt`.  A new file alone is no progress: a job that starts from scratch each time saves its first epoch
    again and again, maybe into a folder with a new name.  A new file after an older one was loaded is no progress
    either: stages do that, of which the last one starts from scratch, and so do jobs that repeat what they once
    reached.  The loaded file must be the very version that was saved, since each attempt may rewrite and load a file.
    """
    now = {_series(file.path) for rank in attempt.ranks for file in rank.saved}
    if not now or not attempt.inherited:
        return False
    newest = {_series(file.path): file for file in attempt.inherited}
    resumed = [file for rank in attempt.ranks for file in rank.resumed]
    return any(_same(file, newest[series]) for series in now & newest.keys() for file in resumed)


def latest(attempt: Attempt) -> str | None:
    """The path of the file that one of its ranks saved last."""
    return next((rank.saved[-1].path for rank in attempt.ranks if rank.saved), None)


def _series(path: str) -> str:
    return _NUMBER.sub("#", path)


def _same(loaded: SavedFile, saved: SavedFile) -> bool:
    if "-" in (saved.version, loaded.version):  # a file that was still open when its save returned
        return loaded.path == saved.path
    return loaded.version == saved.version
