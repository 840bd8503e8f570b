"""Only the files of the phases construct phases: few places show how the machine comes into one."""

import ast
from collections.abc import Iterator
from pathlib import Path

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
