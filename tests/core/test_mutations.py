"""The tests of the core catch every planted bug of `mutations.py`, and pass where there is none."""

import contextlib
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from core.mutations import COORDINATOR, GROUP_ROUNDS, JOB, LEASE, RANKS, WAITS, Mutation

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "supervisor" / "ftrun"
# The quick files first: they catch most.
SUITES = {
    JOB: (
        ("test_scenarios", "test_liveness", "test_policy", "test_rare_turns", "test_idle_rule", "test_fault_history"),
        ("test_exit_codes", "test_table", "test_decide_properties"),
    ),
    COORDINATOR: (("test_coordinator", "test_world"), ("test_coordinator_properties",)),
    LEASE: (("test_lease",),),
    RANKS: (("test_rounds", "test_scenarios"),),
    WAITS: (("test_group_waits",),),
    GROUP_ROUNDS: (("test_group_rounds",),),
}
ALL = (*JOB, *COORDINATOR, *LEASE, *RANKS, *WAITS, *GROUP_ROUNDS)
CAUGHT = "1"  # pytest: some tests failed; 2 and up would mean that the mutant was not results at all
# Each mutant has a process of its own, forked where everything but the core has been imported.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "hypothesis.stateful"])


class Ran(NamedTuple):
    code: str
    output: str


def _planted(folder: Path, mutation: Mutation | None) -> None:
    """A copy of the core in `folder`, with this bug in it."""
    core = folder / "supervisor" / "ftrun" / "core"
    shutil.copytree(PACKAGE / "core", core, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "__init__.py", core.parent)
    if mutation is not None:
        text = (core / mutation.file).read_text()
        assert text.count(mutation.old) == 1, f"{mutation.old!r} occurs {text.count(mutation.old)} times"
        (core / mutation.file).write_text(text.replace(mutation.old, mutation.new))


def _tests(folder: Path, suites: tuple[tuple[str, ...], ...]) -> None:
    """Run these suites against the core in `folder`; pytest's exit code and output go into files there."""
    for name in [name for name in os.environ if name.startswith(("PYTEST", "FTRUN"))]:
        del os.environ[name]
    os.environ |= {"FTRUN_HYPOTHESIS": "fast", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    os.chdir(folder)
    sys.dont_write_bytecode = True
    paths = [str(folder / "supervisor"), str(ROOT / "hooks"), str(ROOT / "tests")]
    sys.path[:0] = paths
    options = ["-x", "-q", "--no-header", "--tb=line", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:logging"]
    options += ["-p", "no:unraisableexception", "-m", "not slow", "-o", "addopts="]
    options += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-o", f"pythonpath={' '.join(paths)}"]
    code = 0
    with Path("output").open("w") as output, contextlib.redirect_stdout(output):
        for suite in suites:
            code = code or pytest.main([*options, *(str(ROOT / "tests" / "core" / f"{name}.py") for name in suite)])
    Path("code").write_text(str(int(code)))  # the exit status of a process is lost where two threads ask for it


def _tested(folder: Path, mutation: Mutation | None, suites: tuple[tuple[str, ...], ...]) -> Ran:
    _planted(folder, mutation)
    process = PROCESSES.Process(target=_tests, args=(folder, suites))
    process.start()
    process.join(600)
    if process.is_alive():
        process.kill()
        process.join()
        if mutation is not None:
            return Ran(CAUGHT, "it does not come to an end")
    return Ran((folder / "code").read_text(), (folder / "output").read_text())


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[Ran]]]:
    """All mutations that were selected, two at a time, from the first test on."""
    with ThreadPoolExecutor(2) as pool:
        yield {
            mutation.name: pool.submit(_tested, tmp_path_factory.mktemp("mutant"), mutation, suites)
            for mutations, suites in SUITES.items()
            for mutation in _selected(request.session.items)
            if mutation in mutations
        }


def _selected(items: Iterable[pytest.Item]) -> list[Mutation]:
    tests = [item for item in items if isinstance(item, pytest.Function) and item.function is test_the_bug_is_caught]
    return [cast(Mutation, test.callspec.params["mutation"]) for test in tests]


# That this way of running the tests reports nothing where nothing is planted: once is enough, and the gate runs the
# tests themselves.
@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    "suites", SUITES.values(), ids=["job", "coordinator", "lease", "ranks", "waits", "group_rounds"]
)
def test_the_core_as_it_is_passes(tmp_path: Path, suites: tuple[tuple[str, ...], ...]) -> None:
    ran = _tested(tmp_path, None, suites)
    assert ran.code == "0", ran.output


# All of them take minutes: every eighth is in the short form, `-m slow` has the others.
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(mutation, marks=[pytest.mark.slow] if number % 8 else [], id=mutation.name)
        for number, mutation in enumerate(ALL)
    ],
)
@pytest.mark.timeout(700)
def test_the_bug_is_caught(mutation: Mutation, results: dict[str, Future[Ran]]) -> None:
    ran = results[mutation.name].result()
    assert ran.code == CAUGHT, f"not caught: {mutation}\n{ran.output[-2000:]}"


def test_each_bug_has_one_name_and_one_place() -> None:
    assert len({mutation.name for mutation in ALL}) == len(ALL)
    texts = {file: (PACKAGE / "core" / file).read_text() for file in {mutation.file for mutation in ALL}}
    assert [mutation.name for mutation in ALL if texts[mutation.file].count(mutation.old) != 1] == []
