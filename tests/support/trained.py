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


def weights(folder: Path) -> dict[str, bytes]:
    """Those of the model at the end, without an import of PyTorch."""
    with zipfile.ZipFile(folder / "final.pt") as archive:
        found = {name.partition("/")[2]: archive.read(name) for name in archive.namelist() if "/data/" in name}
    assert len(found) == 2
    return found
