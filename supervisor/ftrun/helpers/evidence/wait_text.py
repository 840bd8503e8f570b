"""The graph of waits in a report: the section of report.md, and the part of report.json.  Pure."""

from typing import Any, Final

from ftrun.core.text.markdown import code, plain
from ftrun.core.text.redaction import redact
from ftrun.core.text.sentences import begun, printable, several, short
from waitproof.wait_graph import RUNS, Node, WaitGraph

LINES: Final = 60  # in report.md
NAMED: Final = 4  # others that are named in one line
HEADLINE: Final = 240  # characters of it
TEXT: Final = 160  # characters of each text of a node


def headline(sentence: str) -> str:
    return begun(printable(redact(sentence)), HEADLINE)


def clean(text: str) -> str:
    """A text of a node as it is shown."""
    return short(printable(redact(text)), TEXT)


def lines(graph: WaitGraph) -> list[str]:
    """The section of report.md: one line a node."""
    if not graph.nodes:
        return []
    shown = [_line(node, graph) for node in graph.nodes[:LINES]]
    left = sum(node.size for node in graph.nodes[LINES:]) + graph.more
    parts = ["## What waits for what", "\n".join(shown)]
    if graph.cycle:
        names = [plain(graph.nodes[place].name) for place in (*graph.cycle, graph.cycle[0])]
        parts.append(f"They wait for each other: {' → '.join(names)}.")
    if left:
        parts.append(f"{several(left, 'thread')} more are not shown here.")
    return parts


def _line(node: Node, graph: WaitGraph) -> str:
    where = f", at {code(node.place)}" if node.place else ""
    return f"* {plain(node.name)}{where}: {plain(node.does)}.{plain(_who_ends(node, graph))}"


def _who_ends(node: Node, graph: WaitGraph) -> str:
    """Who can end the wait of a node, with a space before it."""
    if node.ends == RUNS or node.fails:
        return ""
    if node.ends:
        return f" That may end: it {node.ends}."
    names = [graph.nodes[place].name for place in node.wakers[:NAMED]]
    others = len(node.wakers) - len(names)
    named = "; ".join([*names, f"{others} more"] if others else names)
    if not names:
        return " No thread of the job can end that."
    return f" It can be ended by: {named}."


def document(graph: WaitGraph) -> dict[str, Any]:
    """The same for report.json: `wakers` and `cycle` are places in `nodes`."""
    shown = ("pid", "who", "thread", "place", "does", "ends", "wakers", "size")
    nodes = [{name: getattr(node, name) for name in shown} for node in graph.nodes]
    return {"nodes": nodes, "cycle": list(graph.cycle), "more": graph.more}
