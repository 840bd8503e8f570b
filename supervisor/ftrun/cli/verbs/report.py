"""`ftctl report`."""

import json
import os
import re
from typing import Any

import click

from ftrun.cli.common import AS_JSON, RUN_DIR, UserError, show, show_json
from ftrun.host import procfs
from ftrun.views import markdown, rundir

LIMIT = 64 << 20  # bytes


def _attempts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For shell completion: the attempts with a report in the run dir that --run-dir or the default names."""
    try:
        found = attempts(rundir.find(ctx.params.get("run_dir")))
    except (OSError, rundir.NoRunDir):
        return []
    return [str(number) for number in found if str(number).startswith(incomplete)]


@click.command(help="Print the report of attempt N, or the last one: the evidence on which it was found hung.")
@click.argument("attempt", required=False, type=click.IntRange(min=1), metavar="[N]", shell_complete=_attempts)
@RUN_DIR
@AS_JSON
def command(attempt: int | None, run_dir: str | None, as_json: bool) -> None:
    path = rundir.find(run_dir)
    reported = attempts(path)
    number = attempt if attempt is not None else (reported[-1] if reported else None)
    if number is None or number not in reported:
        what = "no report was written" if number is None else f"no report of attempt {number}"
        others = f"; attempts with a report: {', '.join(map(str, reported))}" if reported else ""
        raise UserError(f"{path}: {what}{others}")
    if as_json:
        show_json(_document(f"{path}/reports/attempt-{number}/report.json"))
    else:
        show(markdown.lines(_content(f"{path}/reports/attempt-{number}/report.md").decode("utf-8", "replace")))


def attempts(run_dir: str) -> list[int]:
    """The attempts with a report, in order."""
    try:
        names = os.listdir(f"{run_dir}/reports")
    except OSError:
        return []
    numbers = (int(found[1]) for name in names if (found := re.fullmatch(r"attempt-(\d+)", name, re.ASCII)))
    return sorted(n for n in numbers if os.path.exists(f"{run_dir}/reports/attempt-{n}/report.md"))


def _content(file: str) -> bytes:
    content = procfs.read(file, LIMIT)
    if content is None:
        raise UserError(f"{file} cannot be read")
    return content


def _document(file: str) -> Any:
    try:
        return json.loads(_content(file))
    except (ValueError, RecursionError):
        raise UserError(f"{file} is not valid JSON: is it truncated?") from None
