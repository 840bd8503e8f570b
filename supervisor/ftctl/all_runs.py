"""Every run that this user may see: those under the temp folder, those that run anywhere, the earlier ones that a state
dir names, and those in given folders."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.records import advice, group, rundir, schedules, state, summary
from ftrun.records.run_snapshot import read_snapshot

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
    """The living ones first, each group with the latest start first.  A run that cannot be read has a `problem`."""
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
    return state.load(run_dir).part("run").get("state_dir")


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
