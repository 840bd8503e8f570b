"""Chaos, in short; `bin/prove chaos` is the long form.

FTRUN_CHAOS=30m pytest -m slow tests/proof/chaos/test_chaos.py
"""

import os
import random
from pathlib import Path

import pytest

from proof.chaos.__main__ import Chaos, seconds, told
from proof.chaos.world import refusal

SHORT_SEED, SHORT = 1, 10.0  # s


@pytest.fixture(autouse=True)
def _need_a_world() -> None:
    if why := refusal():
        pytest.skip(why)


def run(seed: int, lasting: float, folder: Path) -> None:
    chaos = Chaos(seed, lasting, 2, folder)
    results = chaos.run()
    failed = "\n".join(told(result, folder) for result in results if result.wrong)
    assert results
    assert not failed, failed


def test_whatever_is_done_to_it_nothing_is_lost(tmp_path: Path) -> None:
    run(SHORT_SEED, SHORT, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_whatever_is_done_to_it_for_long_nothing_is_lost(tmp_path: Path) -> None:
    run(random.SystemRandom().randrange(1, 10**6), seconds(os.environ.get("FTRUN_CHAOS", "2m")), tmp_path)
