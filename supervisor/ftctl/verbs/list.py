"""`ftctl list`: every run that this user may see, the living ones as a table, then those that have ended.

Listed are the runs under the temp folder, those that are running anywhere, the earlier ones that a state dir names, and
those in given folders."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import click

from ftctl.common import AS_JSON, show, show_json, width
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.sentences import printable, short
from ftrun.messages.codec import DECODABLE
from ftrun.records.files import rundir, state
from ftrun.records.past import schedules
from ftrun.records.present import advice, group, summary
from ftrun.records.present.run_snapshot import read_snapshot

MOST: Final = 1000  # run dirs
SEARCHED: Final = 10_000  # entries of a given folder


class RunLine(NamedTuple):
    """`state`: as the first line of `ftctl status`; `word`: the same in a word; `do`: what a person can do about it,
    empty where nothing is wrong.  `problem`: why the run cannot be read."""

    run_dir: str
    alive: bool
    phase: str = ""
    state: str = ""
    attempt: int = 0
    step: int | None = None
    verdict: str | None = None
    exit_code: int | None = None
    began: str | None = None
    node: str = ""
    schedule: int | None = None
    command: str = ""
    problem: str | None = None
    word: str = ""
    do: str = ""


def read(folders: Sequence[str] = ()) -> list[RunLine]:
    """The running ones first, each group with the latest start first.  A run that cannot be read has a `problem`."""
    found = [_line(path) for path in run_dirs(folders)[:MOST]]
    found.sort(key=lambda one: one.began or "", reverse=True)
    return sorted(found, key=lambda one: not one.alive)


def run_dirs(folders: Sequence[str]) -> list[str]:
    """Each run dir once, whatever its names."""
    named = [*rundir.in_temp_folder(), *rundir.running(), *(path for folder in folders for path in _inside(folder))]
    seen = {os.path.realpath(path): os.path.abspath(path) for path in reversed(named)}
    for folder in {folder for path in [*seen] if (folder := _state_dir(path)) is not None}:
        for life in schedules.read(folder):
            if os.path.exists(f"{life.run_dir}/events.jsonl"):
                seen.setdefault(os.path.realpath(life.run_dir), life.run_dir)
    return list(seen.values())


def _state_dir(run_dir: str) -> str | None:
    return state.load(run_dir).rest.run.state_dir


def _inside(folder: str) -> Iterable[str]:
    """The run dirs in this folder, and the folder itself if it is one."""
    if os.path.exists(f"{folder}/events.jsonl"):
        return [folder]
    try:
        names = sorted(os.listdir(folder))[:SEARCHED]
    except OSError as error:
        raise rundir.NoRunDir(f"{folder}: {error.strerror}") from None
    return [f"{folder}/{name}" for name in names if os.path.exists(f"{folder}/{name}/events.jsonl")]


def _line(path: str) -> RunLine:
    try:
        own = read_snapshot(path)
        shown = group.marked(own, group.read(own))
    except rundir.NoRunDir as error:
        return RunLine(path, False, problem=str(error))
    return RunLine(
        path,
        shown.alive,
        shown.phase,
        summary.headline(shown),
        shown.attempt,
        shown.step,
        shown.verdict,
        shown.exit_code,
        shown.began,
        shown.node,
        shown.schedule_cnt,
        " ".join(shown.command),
        word=summary.word(shown),
        do=advice.what_to_do(shown),
    )


def document(found: Sequence[RunLine]) -> dict[str, Any]:
    return {"schema": 1, "runs": [one._asdict() for one in found]}


INDENT = "    "
LEAST = 12  # characters of a command in the table


@click.command(
    name="list",
    help="List all runs that you may see, the living ones as a table, then those that have ended: those under the temp "
    "folder, those that run anywhere on "
    "this node, the earlier ones in their state dirs, and those in the given folders.",
)
@click.argument("folders", nargs=-1, metavar="[DIR]...")
@click.option("--living", is_flag=True, help="Only those that run.")
@AS_JSON
def command(folders: tuple[str, ...], living: bool, as_json: bool) -> None:
    found = [one for one in read(folders) if one.alive or not living]
    if as_json:
        show_json(DECODABLE.plain(document(found)))
        return
    columns = width()
    show(_table([one for one in found if one.alive], columns))
    if any(one.alive for one in found) and not all(one.alive for one in found):
        show(["", "ended:"])
    show(line for one in found if not one.alive for line in _lines(one, columns))
    if not found:
        show(["no run is under way" if living else "no run was found"])


def _table(living: Sequence[RunLine], columns: int) -> Iterator[str]:
    """A row for each; the command has what is left of the line.  Below it, what a person can do about some."""
    if not living:
        return
    heads = "state", "attempt", "step", "started", "run dir", "command"
    rows = [_cells(one) for one in living]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    left = max(LEAST, columns - sum(widths[:-1]) - 2 * (len(heads) - 1))
    for cells in (heads, *rows):
        numbers = (f"{cell:>{width}}" for cell, width in zip(cells[1:4], widths[1:4], strict=True))
        yield "  ".join(
            [f"{cells[0]:<{widths[0]}}", *numbers, f"{cells[4]:<{widths[4]}}", short(cells[5], left)]
        ).rstrip()
    for one in living:
        if one.do:
            about = "" if one.run_dir in one.do else f", about {one.run_dir}"
            yield from summary.wrapped(f"do{about}: {one.do}", columns, INDENT)


def _cells(one: RunLine) -> tuple[str, ...]:
    """The cells of the row of a running run."""
    step, age = "" if one.step is None else str(one.step), summary.age(one.began)
    return one.word, str(one.attempt), step, age, printable(one.run_dir), printable(one.command)


def _lines(one: RunLine, columns: int) -> list[str]:
    step = "" if one.step is None else f", step {one.step}"
    begun = (
        f"{INDENT}{short(one.command, min(80, columns) - 40) or 'unknown command'}, started {summary.ago(one.began)}"
    )
    head = summary.wrapped(one.problem or f"{one.state}{step}", columns, INDENT)
    body = summary.wrapped(begun, columns, INDENT)
    return [*head, *(body if one.problem is None else ()), printable(f"{INDENT}{one.run_dir}")]
