"""`ftctl report`."""

import glob
import json
import os
import re
from typing import Any

import click

from ftrun.cli.common import AS_JSON, RUN_DIR, UserError, WholeNumber, show, show_json
from ftrun.cli.members import MEMBER, read_file
from ftrun.host import procfs
from ftrun.host.output_pipes import LOG, RANK_LOG
from ftrun.views import failure_report, markdown, record_files, rundir

LIMIT = 64 << 20  # bytes
TAIL = 1 << 20  # bytes of output that are read
LINES = 30  # lines of output that are shown
RANK_LOGS = RANK_LOG.format("*")


def _attempts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For shell completion: the attempts with a report in the run dir that --run-dir or the default names."""
    try:
        found = attempts(rundir.find(ctx.params.get("run_dir")))
    except (OSError, rundir.NoRunDir):
        return []
    return [str(number) for number in found if str(number).startswith(incomplete)]


@click.command(
    help="Print the report of attempt N, or the last one: the evidence on which it was found hung, or how it failed."
)
@click.argument("attempt", required=False, type=WholeNumber(1), metavar="[N]", shell_complete=_attempts)
@RUN_DIR
@AS_JSON
@MEMBER
def command(attempt: int | None, run_dir: str | None, as_json: bool, member: int | None) -> None:
    path = rundir.find(run_dir)
    if member is not None:
        content = read_file(path, member, "report.json" if as_json else "report.md", attempt or 0)
        if as_json:
            show_json(_parsed(content, f"the report of member {member}"))
        else:
            show(markdown.lines(content.decode("utf-8", "replace")))
        return
    reported = attempts(path)
    records = list(record_files.search_back(f"{path}/events.jsonl", failure_report.READ))[::-1]
    known = sorted({*reported, *failure_report.failed(records)})
    number = attempt if attempt is not None else (known[-1] if known else None)
    if number is not None and number not in reported and number in known:
        failure = failure_report.document(records, number, path, _tail(path, number)) or {}
        if as_json:
            show_json(failure)
        else:
            show(failure_report.lines(failure))
        return
    if number is None or number not in reported:
        what = "no report was written" if number is None else f"no report of attempt {number}"
        others = f"; attempts with a report: {', '.join(map(str, known))}" if known else ""
        raise UserError(f"{path}: {what}{others}")
    if as_json:
        show_json(_document(f"{path}/reports/attempt-{number}/report.json"))
    else:
        show(markdown.lines(_content(f"{path}/reports/attempt-{number}/report.md").decode("utf-8", "replace")))


def _tail(run_dir: str, attempt: int) -> list[str]:
    """The last lines of the output of this attempt, where it is kept; with the number of the rank where there are
    several."""
    found = []
    for path in sorted(glob.glob(f"{glob.escape(run_dir)}/{LOG}") + glob.glob(f"{glob.escape(run_dir)}/{RANK_LOGS}")):
        own: list[str] = []
        for line in record_files.last_lines(path, TAIL):
            text = line.decode("utf-8", "replace")
            mark = re.fullmatch(r"--- attempt (\d+) ---", text)
            if mark and int(mark[1]) > attempt:
                break
            own = [] if mark else [*own[1 - LINES :], text]
        name = re.fullmatch(r"output-(\d+)\.log", os.path.basename(path))
        found += [f"[{name[1]}] {text}" if name else text for text in own]
    return found


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
    return _parsed(_content(file), file)


def _parsed(content: bytes, source: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise UserError(f"{source} is not valid JSON: is it truncated?") from None
