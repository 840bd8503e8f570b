"""The diagram of the phases, `states.svg`, and the page that shows it, from the transition table and the transcripts.

`python docs/reference.py` writes the page, and draws anew where graphviz is installed and an edge has changed."""

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Final

from made.played import Edge, played

from ftrun.core.machine.states import PHASES

DRAWING: Final = Path(__file__).resolve().parents[1] / "states.svg"
# What a hang takes: drawn in another colour.
HANG: Final = {("Running", "Suspect"), ("Suspect", "Stopping"), ("Stopping", "Launching")}
USUAL: Final = {("Pending", "Launching"), ("Launching", "Starting"), ("Starting", "Running")}
INTRO: Final = """# States

Generated from the code by `docs/reference.py`: the phases and their cells are those of the table at the end of
`core/machine/job.py`; the transcripts in `tests/scenarios` show where each cell leads.

A run is in one phase at a time. An event that has no cell in a phase changes nothing there. The intended state (keep
running, restart, finish) is a separate field, so that the phase describes only the current state.

```{image} ../states.svg
:alt: The phases as boxes, and between them arrows with the events that lead from one to the other
:target: ../_images/states.svg
```

Blue arrows show how a run starts, red arrows a hang, from the suspicion through the kill to the next attempt. Each
arrow is labelled with the events that cause it. What an event does that leads to no other phase is in that table and in
the transcripts.

## Phases

| phase | meaning |
| --- | --- |
"""


def transitions() -> dict[tuple[str, str], list[str]]:
    """From a phase to another: upon which events."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for edge in sorted(played().edges):
        if edge.phase != edge.to:
            found[edge.phase, edge.to].append(edge.event)
    return dict(found)


def page() -> str:
    lines = [INTRO.rstrip("\n")]
    for phase in PHASES:
        doc = "Over: the verdict is on disk." if phase.__doc__ is None or "(" in phase.__doc__[:8] else phase.__doc__
        lines.append(f"| {phase.__name__} | {' '.join(doc.split())} |")
    return "\n".join(lines) + "\n"


# --- the drawing ----------------------------------------------------------------------------------------------------


def drawn(svg: str) -> set[Edge]:
    """The edges that a drawing says it has; ValueError if its arrows are others."""
    told = re.search(r"<desc>(.*?)</desc>", svg, re.DOTALL)
    edges = {Edge(*line.split()) for line in (told[1] if told else "").strip().splitlines()}
    arrows = {tuple(title.split("->")) for title in re.findall(r"<title>(\w+&#45;&gt;\w+)</title>", svg)}
    arrows = {tuple(title.replace("&#45;", "-").replace("&gt;", ">").split("->")) for (title,) in arrows}
    if arrows != {(edge.phase, edge.to) for edge in edges}:
        raise ValueError("the arrows are not those of the list")
    return edges


def moving() -> set[Edge]:
    """All edges that lead from one phase to another."""
    return {edge for edge in played().edges if edge.phase != edge.to}


def draw() -> str:
    """As SVG, by graphviz's `dot`; OSError where that is not installed."""
    asked = ["dot", "-Tsvg"]
    svg = subprocess.run(asked, input=_dot(), capture_output=True, text=True, check=True, timeout=60).stdout
    svg = svg[svg.index("<svg") :]
    edges = "\n".join(" ".join(edge) for edge in sorted(moving()))
    head, end, rest = svg.partition(">\n")
    title = "<title>The phases of a run of ftrun</title>"
    return f"{head}{end}{title}\n<desc>\n{edges}\n</desc>\n{rest}"


def _dot() -> str:
    lines = [
        "digraph phases {",
        'bgcolor="white"; nodesep=0.35; ranksep=0.45; pad=0.15;',
        'node [shape=box, style="rounded,filled", fillcolor="#eef2f7", color="#44546a", fontname="Helvetica,Arial",'
        " fontsize=18];",
        'edge [fontname="Helvetica,Arial", fontsize=14, color="#5b6470"];',
        *(f"{phase.__name__};" for phase in PHASES),
    ]
    for ends, events in transitions().items():
        style = ""
        if ends in HANG:
            style = ', color="#b3261e", penwidth=2'
        elif ends in USUAL:
            style = ', color="#1a5fb4", penwidth=2'
        label = "\\n".join(events)
        lines.append(f'{ends[0]} -> {ends[1]} [label="{label}"{style}];')
    return "\n".join([*lines, "}"])
