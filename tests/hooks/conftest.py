from collections.abc import Iterator
from pathlib import Path

import pytest

from support.beat_file import BeatDir


@pytest.fixture
def beats(tmp_path: Path) -> Iterator[BeatDir]:
    made = BeatDir(tmp_path / "beats")
    yield made
    made.close()
