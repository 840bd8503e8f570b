"""The checkpoints of `fthang`: whole on disk, or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

KEPT = 3


class Checkpoint(NamedTuple):
    """All that a training needs to go on as if it had never stopped."""

    step: int
    weights: tuple[float, float]
    loss: float


BEGINNING = Checkpoint(0, (0.0, 0.0), 0.0)


def save(folder: Path, state: Checkpoint) -> Path:
    """Its path; once this returns, the checkpoint outlives a crash of the machine.  Keeps the newest KEPT."""
    path = folder / f"checkpoint-{state.step:08d}.json"
    fresh = path.with_suffix(".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(state._asdict(), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # else the new name may be lost
    finally:
        os.close(directory)
    for old in newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def newest(folder: Path) -> Checkpoint | None:
    """The newest intact checkpoint; torn and foreign files are passed over."""
    return next(filter(None, map(load, newest_first(folder))), None)


def newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.json"), reverse=True)


def load(path: Path) -> Checkpoint | None:
    try:
        kept = json.loads(path.read_bytes())
        slope, offset = kept["weights"]
        return Checkpoint(int(kept["step"]), (float(slope), float(offset)), float(kept["loss"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
