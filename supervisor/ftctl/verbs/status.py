"""`ftctl status`."""

from typing import Final

import click

from ftctl.common import AS_JSON, RUN_DIR, bold, show, show_json, width
from ftrun.core.text.sentences import printable
from ftrun.messages.codec import DECODABLE
from ftrun.records.files import rundir
from ftrun.records.present import group, summary
from ftrun.records.present.group import GroupNow
from ftrun.records.present.run_snapshot import read_snapshot
from ftrun.records.present.snapshot import Snapshot

UNSETTLED: Final = 3
ENDED_BADLY: Final = 4
CUT_OFF: Final = 5
SCHEMA: Final = 1


@click.command(
    help="Show the present state of the run: its phase and health, the last incident, and what happens next."
)
@RUN_DIR
@AS_JSON
@click.option(
    "--exit-code",
    is_flag=True,
    help="Exit with 0 if the run is healthy or has ended with 0; 3 if it may hang, is stalled, paused, suspended or "
    "between two attempts, or another member of its group is missing or in trouble; "
    "4 if it ended with another code; 5 if ftrun is gone without a verdict; 1 if there is no run.",
)
@click.option(
    "--all",
    "whole",
    is_flag=True,
    help="Show the whole group, from any member: a row for each member, the coordinator's view, and who is waited for.",
)
def command(run_dir: str | None, as_json: bool, exit_code: bool, whole: bool) -> int:
    shown = read_snapshot(rundir.find(run_dir))
    members = group.read(shown)
    shown, found = group.marked(shown, members), members if whole else None
    columns, code = width(), condition(shown) if exit_code else 0
    if as_json and whole:
        show_json({"schema": SCHEMA, "group": found and DECODABLE.plain(group.document(found))}, code)
    elif as_json:
        show_json(summary.document(shown), code)
    elif found is not None:
        show(_group(found, columns), code)
    else:
        alone = ["this run is not a member of a group, or has just begun; it alone is shown"] if whole else []
        show([*alone, *map(bold, summary.title(shown, columns)), *summary.lines(shown, columns)], code)
    return code


def condition(shown: Snapshot) -> int:
    """The exit code that `--exit-code` asks for, as its help says."""
    if shown.phase == "cut off":
        return CUT_OFF
    if shown.phase == "done":
        return 0 if shown.exit_code == 0 else ENDED_BADLY
    healthy = shown.phase in ("launching", "starting", "running", "spare", "finished") and shown.paused is None
    healthy = healthy and shown.job is None and shown.suspended is None and shown.stalled is None
    healthy = healthy and shown.stopped is None
    return 0 if healthy else UNSETTLED


def _group(found: GroupNow, columns: int) -> list[str]:
    lines = list(map(bold, summary.wrapped(group.headline(found), columns)))
    lines += [bold(printable(line)) if marked else printable(line) for line, marked in group.table(found)]
    for line in group.details(found):
        lines += summary.wrapped(line, columns, "    ")
    return lines
