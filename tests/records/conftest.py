"""For the readers of a run dir."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.made_run import MadeRun


@pytest.fixture
def run(tmp_path: Path) -> Iterator[MadeRun]:
    """A run dir that a test fills."""
    made = MadeRun(tmp_path / "run")
    yield made
    made.close()
