"""The tests of the core catch every planted bug of `mutations.py`, and nothing but planted bugs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from core.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "supervisor" / "ftrun"
# The quick ones first, without the plugins that only the rest needs: they catch most.
QUICK = ("test_scenarios", "test_liveness", "test_policy", "test_rare_turns", "test_exitcode")
THOROUGH = ("test_table", "test_decide_properties")
CAUGHT = 1  # pytest: some tests failed; 2 and up would mean that the mutant was not tested at all


def _tested(folder: Path, mutation: Mutation | None) -> subprocess.CompletedProcess[str]:
    """Runs the suite against a copy of the core in `folder`, with this bug in it."""
    core = folder / "supervisor" / "ftrun" / "core"
    shutil.copytree(PACKAGE / "core", core, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "__init__.py", core.parent)
    if mutation is not None:
        text = (core / mutation.file).read_text()
        assert text.count(mutation.old) == 1, f"{mutation.old!r} occurs {text.count(mutation.old)} times"
        (core / mutation.file).write_text(text.replace(mutation.old, mutation.new))
    paths = [str(folder / "supervisor"), str(ROOT / "hooks"), str(ROOT / "tests")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "FTRUN"))}
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "FTRUN_HYPOTHESIS": "fast", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    command += ["-o", f"pythonpath={' '.join(paths)}", "-o", "addopts="]
    for suite in (QUICK, THOROUGH):
        files = [str(ROOT / "tests" / "core" / f"{name}.py") for name in suite]
        ran = subprocess.run(
            [*command, *files], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
        )
        if ran.returncode != 0:
            break
    return ran


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """All of them, two at a time, from the first test on."""
    with ThreadPoolExecutor(2) as pool:
        every: tuple[Mutation | None, ...] = (None, *MUTATIONS)
        yield {
            mutation.name if mutation else "": pool.submit(_tested, tmp_path_factory.mktemp("mutant"), mutation)
            for mutation in every
        }


def test_the_core_as_it_is_passes(tested: dict[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    ran = tested[""].result()
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_caught(mutation: Mutation, tested: dict[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    ran = tested[mutation.name].result()
    assert ran.returncode == CAUGHT, f"not caught: {mutation}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"


def test_names_are_unique() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 20
