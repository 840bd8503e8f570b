"""`ftctl timeline`: a picture of the run."""

import json
import os
import stat
import sys
from typing import Final

import click

from ftctl.common import AS_JSON, RUN_DIR, UserError
from ftctl.timeline import html, timeline
from ftrun.core.text.sentences import printable
from ftrun.drawing import svg
from ftrun.host import safe_files
from ftrun.records.files import rundir
from ftrun.records.past.history import History, read

DEFAULT: Final = "ftrun-timeline.html"
KINDS: Final = (".html", ".svg")


@click.command(help="Draw the run: attempts, steps, hangs, evidence, and how the time was spent.")
@RUN_DIR
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help=f"A .html or .svg file; - writes HTML to standard output.  [default: {DEFAULT}]",
)
@AS_JSON
def command(run_dir: str | None, output: str | None, as_json: bool) -> None:
    if as_json and output is not None:
        raise click.UsageError("--json and --output exclude each other")
    path = DEFAULT if output is None else output
    kind = ".html" if path == "-" else os.path.splitext(path)[1].lower()
    if kind not in KINDS:
        raise click.UsageError(f"--output {path}: the name must end in {' or '.join(KINDS)}")
    history = read(rundir.find(run_dir))
    if as_json:
        click.echo(json.dumps(document(history)))
        return
    for problem in history.problems:
        click.echo(f"ftctl: {printable(problem)}", err=True)
    content = rendered(history, kind)
    try:
        if path == "-":
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
            return
        write_file(path, content)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    click.echo(f"written: {printable(path)}")


def rendered(history: History, kind: str) -> bytes:
    if kind == ".html":
        return html.render(history).encode("utf-8", "replace")
    return svg.render(timeline.draw(history)).encode("utf-8", "replace")


def document(history: History) -> dict[str, object]:
    """The output of `--json`."""
    lists = ("attempts", "samples", "checkpoints", "marks", "lost")
    fields = history._asdict() | {name: [one._asdict() for one in getattr(history, name)] for name in lists}
    del fields["figures"]  # replaced by the three values below
    return {"schema": 1, **fields, "wall": history.wall, "totals": history.totals, "goodput": history.goodput}


def write_file(path: str, content: bytes) -> None:
    """Replace the file atomically, or raise OSError; a special file such as /dev/stdout is written directly."""
    target = os.path.realpath(path)
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        mask = os.umask(0o077)
        os.umask(mask)
        mode = stat.S_IFREG | (0o666 & ~mask)
    if not stat.S_ISREG(mode):
        with open(target, "wb") as stream:
            stream.write(content)
        return
    folder, name = os.path.split(target)
    safe_files.replace(target, content, stat.S_IMODE(mode), f"{folder}/.{name[:40]}.{os.getpid()}")
