"""Chaos, in short; `bin/prove chaos` is the long form.

FTRUN_CHAOS=30m pytest -m slow tests/proof/chaos/test_chaos.py
"""

import os
import random
from pathlib import Path

import pytest

from proof.chaos.__main__ import Chaos, report, seconds
from proof.chaos.world import refusal

SHORT_SEED, SHORT = 1, 10.0  # s


@pytest.fixture(autouse=True)
def _need_a_world() -> None:
    if why := refusal():
        pytest.skip(why)


def run(seed: int, lasting: float, folder: Path) -> None:
    chaos = Chaos(seed, lasting, 2, folder)
    results = chaos.run()
    failed = "\n".join(report(result, folder) for result in results if result.wrong)
    assert results
    assert not failed, failed


def test_short_chaos_finds_no_violation(tmp_path: Path) -> None:
    run(SHORT_SEED, SHORT, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_long_chaos_finds_no_violation(tmp_path: Path) -> None:
    run(random.SystemRandom().randrange(1, 10**6), seconds(os.environ.get("FTRUN_CHAOS", "2m")), tmp_path)
