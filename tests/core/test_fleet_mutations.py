"""The tests of the coordinator catch every planted bug of `fleet_mutations.py`, and nothing but planted bugs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.fleet_mutations import MUTATIONS
from core.mutations import Mutation
from core.test_mutations import CAUGHT, PACKAGE, ROOT, Ran, _planted

SUITE = ("test_fleet", "test_fleet_properties")  # the quick one first: it catches most


def ran(folder: Path, mutation: Mutation | None) -> Ran:
    """The suite, against a copy of the core with this bug in it."""
    _planted(folder, mutation)
    paths = [str(folder / "supervisor"), str(ROOT / "hooks"), str(ROOT / "tests")]
    words = ["-x", "-q", "--no-header", "--tb=line", "--assert=plain", "-p", "no:cacheprovider", "-m", "not slow"]
    words += ["-o", "addopts=", "-o", f"pythonpath={' '.join(paths)}"]
    words += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "FTRUN"))}
    environment |= {"FTRUN_HYPOTHESIS": "fast", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *words, *(str(ROOT / "tests" / "core" / f"{name}.py") for name in SUITE)]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return Ran(CAUGHT, "it does not come to an end")
    return Ran(str(done.returncode), done.stdout + done.stderr)


def test_the_coordinator_as_it_is_passes(tmp_path: Path) -> None:
    passed = ran(tmp_path, None)
    assert passed.code == "0", passed.said


# All of them take minutes: each eighth is in the short form, `-m slow` has the others.
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(mutation, marks=[pytest.mark.slow] if number % 8 else [], id=mutation.name)
        for number, mutation in enumerate(MUTATIONS)
    ],
)
def test_caught_in_the_fleet(mutation: Mutation, tmp_path: Path) -> None:
    caught = ran(tmp_path, mutation)
    assert caught.code == CAUGHT, f"not caught: {mutation}\n{caught.said[-2000:]}"


def test_each_has_one_place_and_one_name() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 20
    texts = {file: (PACKAGE / "core" / file).read_text() for file in {mutation.file for mutation in MUTATIONS}}
    assert [mutation.name for mutation in MUTATIONS if texts[mutation.file].count(mutation.old) != 1] == []
