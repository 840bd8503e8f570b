"""`ftctl report`."""

import json
from collections.abc import Sequence
from typing import Any

import click

from ftctl import markdown
from ftctl.common import AS_JSON, RUN_DIR, UserError, show, show_json
from ftctl.orders import MEMBER, read_file, read_report
from ftrun.config.whole_number import WholeNumber
from ftrun.core.text import sentences
from ftrun.host import procfs
from ftrun.records.files import reports, rundir
from ftrun.records.files.recent_events import Incident
from ftrun.records.present import group
from ftrun.records.present.run_snapshot import read_snapshot


def _attempts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For shell completion: the attempts with a report in the run dir that --run-dir or the default names."""
    try:
        found = reports.known(rundir.find(ctx.params.get("run_dir")))
    except (OSError, rundir.NoRunDir):
        return []
    return [str(number) for number in found if str(number).startswith(incomplete)]


@click.command(
    help="Print the report of attempt N, or the last one: the evidence on which it was found hung, or how it failed. "
    "Without N, in a group: that of the member where it happened."
)
@click.argument("attempt", required=False, type=WholeNumber(1), metavar="[N]", shell_complete=_attempts)
@RUN_DIR
@AS_JSON
@MEMBER
def command(attempt: int | None, run_dir: str | None, as_json: bool, member: int | None) -> None:
    path = rundir.find(run_dir)
    cause = _elsewhere(path) if member is None and attempt is None else None
    if cause is not None and _show_cause(path, cause, as_json):
        return
    if member is not None:
        _show_of_member(path, member, attempt or 0, as_json)
        return
    reported, known = reports.hung(path), reports.known(path)
    number = attempt if attempt is not None else (known[-1] if known else None)
    if number is not None and number not in reported and number in known:
        failure = reports.failure(path, number) or {}
        if as_json:
            show_json(failure)
        else:
            show(reports.failure_lines(failure))
        return
    if number is None or number not in reported:
        none = "no report was written; `ftctl status` shows the present state"
        what = none if number is None else f"no report of attempt {number}"
        others = f"; attempts with a report: {', '.join(map(str, known))}" if known else ""
        raise UserError(f"{path}: {what}{others}")
    if as_json:
        file = reports.path(path, number, "report.json")
        content = procfs.read(file, reports.LIMIT)
        if content is None:
            raise UserError(f"{file} cannot be read")
        show_json(_parsed(content, file))
    else:
        text = reports.text(path, number)
        if text is None:
            raise UserError(f"{reports.path(path, number)} cannot be read")
        show(markdown.lines(text))


def _elsewhere(path: str) -> Incident | None:
    """The last incident of the job, if it was on another member of the group."""
    found = read_snapshot(path)
    cause = group.marked(found, group.read(found)).trouble
    return cause if cause is not None and cause.member is not None else None


def _show_cause(path: str, cause: Incident, as_json: bool) -> bool:
    """Show the report of the member where it happened; False if there is a report here, and that of the other member
    cannot be read."""
    assert cause.member is not None
    where = f"{cause.again or cause.cause} on member {cause.member} ({cause.node}): {cause.why}"
    try:
        if cause.cause == "loss":
            raise UserError("nobody was left to write one")
        _show_of_member(path, cause.member, 0, as_json, [sentences.printable(where), ""])
    except UserError as why:
        if not reports.known(path):
            raise UserError(f"{where}; its report cannot be read: {why}") from None
        click.echo(f"{where}; its report cannot be read: {why}. This is the report of this member.", err=True)
        return False
    return True


def _show_of_member(path: str, member: int, attempt: int, as_json: bool, before: Sequence[str] = ()) -> None:
    """Show the report of another member; UserError if it cannot be read.  `before`: the lines above it."""
    if as_json:
        show_json(_parsed(read_file(path, member, "report.json", attempt), f"the report of member {member}"))
    else:
        show([*before, *markdown.lines(read_report(path, member, attempt))])


def _parsed(content: bytes, source: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise UserError(f"{source} is not valid JSON: is it truncated?") from None
