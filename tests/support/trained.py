"""Programs that train on ranks, in `rank_programs`, and what they leave."""

import zipfile
from pathlib import Path

from support.runs import HOUSE

PROGRAMS = HOUSE / "tests" / "support" / "rank_programs"
NEEDED = {
    "ddp": ("torch",),
    "transformers": ("torch", "transformers", "accelerate"),
    "accelerate": ("torch", "accelerate"),
    "lightning": ("torch", "lightning"),
}


def tensors(checkpoint: Path) -> dict[str, bytes]:
    """Those in a file of PyTorch, without an import of it."""
    with zipfile.ZipFile(checkpoint) as archive:
        found = {name.partition("/")[2]: archive.read(name) for name in archive.namelist() if "/data/" in name}
    assert len(found) > 1
    return found


def weights(folder: Path) -> dict[str, bytes]:
    """Those of the model at the end."""
    return tensors(folder / "final.pt")
