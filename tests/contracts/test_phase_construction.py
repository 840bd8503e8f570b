"""Only the files of the phases construct phases: few places show how the machine comes into one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.core.machine import device_faults, restarting, starting, states, stopping, watching

ROOT = Path(states.__file__).parents[1]
PHASES = {phase.__name__ for phase in states.PHASES}
ALLOWED = {
    states: {"Pending"},  # how a job begins
    starting: {"Pending"},
    restarting: {"Pending", "Launching"},
    watching: {"Starting", "Running", "Suspect"},
    stopping: {"Stopping", "Done"},
    device_faults: {"Healing"},
}


def test_only_the_phase_files_construct_phases() -> None:
    found = {str(path): constructed(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}
    allowed = {str(module.__file__): phases for module, phases in ALLOWED.items()}
    assert {path: phases for path, phases in found.items() if phases} == allowed


@pytest.mark.parametrize(
    "text",
    [
        f"from {states.__name__} import Done\nDone(0)",
        f"from {states.__name__} import Done as D\nD(0)",
        "from ftrun.core.machine import states\nstates.Done(0)",
        "class Done(NamedTuple): ...\nPHASES = (Done,)\nDone(0)",
    ],
)
def test_construction_is_found(text: str) -> None:
    assert constructed(text) == {"Done"}


def test_name_of_a_phase_alone_is_no_construction() -> None:
    assert constructed("class Done(NamedTuple): ...\nDone(0)") == set()
    assert constructed(f"from {states.__name__} import Done\nmatch phase:\n    case Done(): pass") == set()


def constructed(text: str) -> set[str]:
    """The phases that this source constructs."""
    return set(_constructed(ast.parse(text)))


def _constructed(tree: ast.Module) -> Iterator[str]:
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == states.__name__]
    names = {name.asname or name.name: name.name for node in imports for name in node.names if name.name in PHASES}
    if any(isinstance(node, ast.Name) and node.id == "PHASES" and isinstance(node.ctx, ast.Store) for node in nodes):
        names = {name: name for name in PHASES}  # the module that defines them
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id in names:
            yield names[call.func.id]
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in PHASES
            and ast.unparse(call.func.value) == "states"
        ):
            yield call.func.attr
