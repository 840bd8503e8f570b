"""Chaos, in short; `bin/prove chaos` is the long form.

FTRUN_CHAOS=30m pytest -m slow tests/proof/chaos/test_chaos.py
"""

import os
import random
from pathlib import Path

import pytest

from proof.chaos.__main__ import seconds
from proof.chaos.forms import FORMS, PLAIN
from proof.chaos.series import Form, report, run

SHORT_SEED, SHORT = 1, 4.0  # s


def finds_nothing(form: Form, seed: int, lasting: float, folder: Path) -> None:
    if why := form.refusal():
        pytest.skip(why)
    results, _ = run(form, seed, lasting, 2, folder)
    failed = "\n".join(report(form, result, folder) for result in results if result.wrong)
    assert results
    assert not failed, failed


def test_short_chaos_finds_no_violation(tmp_path: Path) -> None:
    finds_nothing(PLAIN, SHORT_SEED, SHORT, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.options or "one ftrun")
def test_long_chaos_finds_no_violation(form: Form, tmp_path: Path) -> None:
    finds_nothing(
        form, random.SystemRandom().randrange(1, 10**6), seconds(os.environ.get("FTRUN_CHAOS", "1m")), tmp_path
    )
