"""The pages of what was measured, from docs/measured: `benchmarks.md`, `hang-matrix.md`, `reliability.md`, `scale.md`,
and their plots."""

import json
import statistics
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
RESULTS = DOCS / "measured"
PLOTS = DOCS / "_static" / "measured"
OURS = ("#10316b", "#4f7cac")
OTHERS = ("#c8553d", "#e0a458", "#6a994e", "#8e6c8a", "#7f7f7f", "#2a9d8f", "#bc4b51", "#a5a58d", "#f28482", "#84a59d")
HEADS = {
    "benchmarks": """# Benchmarks

This page compares ftrun with the programs that people would use in its place. All programs are measured in turn in one
run, by `bin/prove bench`, which is in the repository and works on any machine. A figure is a median, followed by the
10th and the 90th percentile in parentheses. Where a program lacks a function, the table states it; a program that was
not installed is not in the table. [Compared with others](why/compared.md) describes the purpose of each program, and
[What was measured](measurements.md) has the figures of ftrun alone.
""",
    "hang-matrix": """# Which hangs are found

This page has the outcome of each kind of `fthang`, and of healthy jobs that stand still, under ftrun **without any
option**: the limits are the real ones, and no program says anything to ftrun. Only the last section has other options.
[How ftrun tells a hang from work](hangs.md) describes the rules.

**Measured before [ADR 39](adr/0039-the-rule-is-one-table.md).** A cell with `loop` has a proof that there is no more:
such a loop is found by the rule `spin` after an hour, or not. One with `step` has a learned timeout, which ends nothing
any more: a person is told after ten minutes.

Each hang begins at three moments: before the first step, when ftrun has seen nothing of the job; in the first ten
steps; and after a hundred steps, from which ftrun had learned a limit of 30 s. A cell has the rule that found the hang
and the longest time from its beginning to the verdict, or for how long it was watched in vain. An empty cell was not
measured. Most deadlocks were measured beside other work, at a load of 30 to 45 on two cores; cells that then took
longer than a minute were measured again on a quieter machine, and have the time of that run.
""",
    "reliability": """# Reliability

This page has the results of injecting faults into ftrun, and of running it for a long time. The commands that produce
them are in the repository (`bin/prove`); each section names its own.
""",
    "scale": """# Very large groups

**This page is a plan and a simulation, not a feature**: today all members of a group report to rank 0 directly, in a
star. That has been run with [10,000 connections](#real-connections). For more the messengers
would form a tree, in which each passes on one report for all members below it ([ADR
35](adr/0035-a-tree-of-messengers.md)). The simulation runs ftrun's own coordinator and the rules that would merge
reports; what is a model is the network (delays, losses, racks of 32, pods of 1,024) and the processors, by the times
for a message that were measured with real sockets. One member is one node.
""",
}


def page(name: str) -> str:
    """The page, from the results that there are."""
    parts = [HEADS[name]]
    parts += [_section(json.loads(path.read_text())) for path in sorted((RESULTS / name).glob("*.json"))]
    return "\n".join(parts)


def _section(found: dict[str, Any]) -> str:
    lines = [f"## {found['title']}", ""]
    for paragraph in found["before"]:
        lines += [paragraph, ""]
    if found["rows"]:
        lines += [_row(found["head"]), _row(["---"] * len(found["head"]))]
        lines += [_row(row) for row in found["rows"]]
        lines.append("")
    if found["plot"]:
        lines += [f"![{found['title']}](_static/measured/{found['name']}.svg)", ""]
    for paragraph in found["after"]:
        lines += [paragraph, ""]
    lines += [f"`{found['made_by']}`, {found['day']}, commit {found['commit']}, {found['machine']}.", ""]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def draw() -> None:
    """All plots anew, as SVG without a date; needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "ftrun", "svg.fonttype": "none", "font.size": 10})
    from matplotlib import pyplot

    PLOTS.mkdir(parents=True, exist_ok=True)
    for path in sorted(RESULTS.glob("*/*.json")):
        found = json.loads(path.read_text())
        if plot := found["plot"]:
            bars = sum(len(one["points"]) for one in plot["series"]) if plot["kind"] == "bars" else 0
            figure, axes = pyplot.subplots(figsize=(7.5, max(2.0, 1.2 + 0.28 * bars) if bars else 4.2))
            _draw(axes, plot)
            axes.set_title(found["title"], loc="left")
            figure.savefig(PLOTS / f"{found['name']}.svg", metadata={"Date": None}, bbox_inches="tight")
            pyplot.close(figure)


def _draw(axes: Any, plot: dict[str, Any]) -> None:
    """Lines, or bars that lie, so that their names have room; ftrun's own are the dark ones."""
    series = plot["series"]
    lines = plot["kind"] == "lines"
    names = list(dict.fromkeys(x for one in series for x, _ in one["points"]))
    colours = iter(OTHERS)
    for index, one in enumerate(series):
        ours = one["who"].startswith("ftrun")
        look = {"color": OURS[index % len(OURS)] if ours else next(colours), "label": one["who"]}
        seen = [sorted(samples) for _, samples in one["points"]]
        middles = [statistics.median(samples) for samples in seen]
        lows = [middle - samples[int(0.1 * len(samples))] for middle, samples in zip(middles, seen, strict=True)]
        highs = [_high(samples) - middle for middle, samples in zip(middles, seen, strict=True)]
        xs = [x for x, _ in one["points"]]
        if lines:
            axes.errorbar(xs, middles, yerr=(lows, highs), marker="o", markersize=4, capsize=3, **look)
        else:
            width = 0.8 / len(series)
            places = [names.index(x) + (index - (len(series) - 1) / 2) * width for x in xs]
            if len(series) == 1:
                look["color"] = [OURS[0] if str(x).startswith(("ftrun", "ft.")) else OTHERS[0] for x in xs]
            axes.barh(places, middles, width, xerr=(lows, highs), capsize=2, **look)
    if lines:
        _axes(axes, plot, "x", "y")
    else:
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        _axes(axes, plot, "y", "x")
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _axes(axes: Any, plot: dict[str, Any], x: str, y: str) -> None:
    """`x`, `y`: which axis of the picture is which of the plot."""
    from matplotlib.ticker import FuncFormatter

    for axis, of in ((x, "x"), (y, "y")):
        axes.set(**{f"{axis}label": plot[of]})
        if plot[f"log_{of}"]:
            axes.set(**{f"{axis}scale": "log"})
        if of == "y" or plot["kind"] == "lines":
            getattr(axes, f"{axis}axis").set_major_formatter(FuncFormatter(_tick))
    axes.grid(axis=y, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _high(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def _tick(value: float, _: int) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
