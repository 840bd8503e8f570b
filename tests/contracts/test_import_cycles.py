"""No module of ftrun, waitproof or ftctl imports itself through others, imports inside functions included."""

from graphlib import CycleError, TopologicalSorter

import grimp


def test_there_is_no_import_cycle() -> None:
    graph = grimp.build_graph("ftrun", "waitproof", "ftctl", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}
    assert cycle(imported) == ()
    assert "ftrun.core.machine.job" in imported["ftrun.pid1.loop"]


def test_cycle_is_named() -> None:
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


def cycle(imported: dict[str, set[str]]) -> tuple[str, ...]:
    """The modules of one cycle, each imported by the next; empty if there is none."""
    try:
        tuple(TopologicalSorter(imported).static_order())
    except CycleError as found:
        return tuple(found.args[1])
    return ()
