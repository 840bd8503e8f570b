"""Every file of tests/scenarios is a story of one run; what the core answers has to be what the file says.

`FTRUN_REWRITE=1 pytest tests/core/test_scenarios.py` writes the answers of now into the files: read the diff.
"""

import os
from pathlib import Path

import pytest

from core.transcript import BadScenario, play

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    written = path.read_text()
    played = play(written)
    if os.environ.get("FTRUN_REWRITE"):
        path.write_text(played)
    else:
        assert played.splitlines() == written.splitlines()


def test_there_are_scenarios() -> None:
    """A wrong folder must not pass as a suite of nothing."""
    assert len(SCENARIOS) >= 18


@pytest.mark.parametrize(
    "text",
    ["at 5 started\nat 4 spawned pid=1", "at 0 started\nat 1 ticked", "at 0 exploded", "policy colour=red", "nonsense"],
)
def test_a_scenario_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(BadScenario):
        play(text)
