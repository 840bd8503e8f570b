"""The ladder that `docs/schedulers/local.py --demo` and `bin/demo ladder` show."""

import subprocess
import sys

import pytest

from support.runs import HOUSE


@pytest.mark.slow
def test_every_rung_holds_within_a_minute() -> None:
    demo = [sys.executable, str(HOUSE / "docs" / "schedulers" / "local.py"), "--demo"]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n--- ") == 7
    assert "did not hold" not in done.stdout
