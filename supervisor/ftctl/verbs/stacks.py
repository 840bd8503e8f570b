"""`ftctl stacks`."""

import time
from typing import Any

import click

from ftctl import processes
from ftctl.common import AS_JSON, RUN_DIR, UserError, show, show_json
from ftctl.orders import MEMBER, read_file
from ftrun.core.text.sentences import printable
from ftrun.helpers.evidence import present
from ftrun.records.files import rundir


@click.command(
    help="Print the present Python stacks of all processes of the command.  They are not stopped for that.  Of another "
    "member of the group with --member; with --last-report those of its last report."
)
@RUN_DIR
@AS_JSON
@MEMBER
@click.option(
    "--rank", type=int, metavar="R", help="Only this rank and its descendants: all threads, and what they use."
)
@click.option(
    "--last-report", is_flag=True, help="With --member: the stacks that its last report has, not the present ones."
)
def command(run_dir: str | None, as_json: bool, rank: int | None, member: int | None, last_report: bool) -> None:
    path = rundir.find(run_dir)
    if member is not None:
        if last_report and rank is not None:
            raise click.UsageError("--rank cannot be given with --last-report: those stacks are one text")
        text = read_file(path, member, "stacks" if last_report else "present stacks", 0, rank).decode(
            "utf-8", "replace"
        )
        if as_json:
            show_json({"schema": present.SCHEMA, "member": member, "text": text})
        else:
            show(map(printable, text.splitlines()))
        return
    if last_report:
        raise click.UsageError("--last-report needs --member; `ftctl report` shows that of this run")
    try:
        found = present.observe(path, rank)
    except present.NoStacks as why:
        raise UserError(str(why)) from None
    if as_json:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        show_json({"schema": present.SCHEMA, "time": at, "processes": [_document(one) for one in found]})
        return
    show(map(printable, present.lines(found, rank is not None)))
    if rank is not None:
        usage = [(one.pid, processes.used(one.pid)) for one in found]
        show(["", *(f"process {pid}: {used.text}" for pid, used in usage if used is not None)])


def _document(one: present.ProcessStacks) -> dict[str, Any]:
    used = processes.used(one.pid)
    return present.document(one) | {"used": None if used is None else used._asdict()}
