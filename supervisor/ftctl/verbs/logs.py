"""`ftctl logs`: the output of the command, where it is kept."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

import click

from ftctl.common import RUN_DIR, UserError
from ftrun.config.whole_number import WholeNumber
from ftrun.records.files import liveness, reports, rundir, state
from ftrun.records.files.record_files import GrowingFile

PAUSE: Final = 0.2  # s between two reads of a growing file
MOST: Final = 1 << 20  # bytes of a last line


@click.command(
    help="Print the output of the command, which ftrun keeps with --log-dir.  Of several ranks each line is marked "
    "with the number of its local rank.  With -f until the run has ended."
)
@RUN_DIR
@click.option("-n", "--last", type=WholeNumber(0), metavar="N", help="Only the last N lines of each rank.")
@click.option("--rank", type=WholeNumber(0), metavar="R", help="Only this local rank.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new lines.")
def command(run_dir: str | None, last: int | None, rank: int | None, follow: bool) -> None:
    folder = rundir.find(run_dir)
    logs = _logs(folder, rank)
    try:
        for mark, log in logs:
            _write(mark, log.lines() if last is None else deque(log.lines(), last))
        while follow:
            alive = liveness.is_running(folder, state.load(folder).rest.run)
            for mark, log in logs:
                _write(mark, log.lines())
            if not alive:
                break
            time.sleep(PAUSE)
        for mark, log in logs:
            if rest := _rest(log):  # a last line without its end
                _write(mark, deque([rest]))
    except KeyboardInterrupt:
        pass  # the usual way to end -f


def _logs(folder: str, rank: int | None) -> list[tuple[bytes, GrowingFile]]:
    """The files, each with the mark of its lines; UserError if there is none."""
    files = reports.output_files(folder)
    kept = [str(number) for number, _ in files if number is not None]
    if rank is not None and str(rank) not in kept:
        others = f"; it is kept of {', '.join(kept)}" if kept else ""
        raise UserError(f"{folder}: no output of local rank {rank} is kept{others}")
    if not files:
        raise UserError(f"{folder}: the output of the command is not kept; ftrun --log-dir DIR keeps it")
    chosen = [(number, path) for number, path in files if rank in (None, number)]
    several = rank is None and len(kept) > 1
    return [(f"[{n}] ".encode() if several and n is not None else b"", GrowingFile(path)) for n, path in chosen]


def _rest(log: GrowingFile) -> bytes:
    with open(log.path, "rb") as stream:
        stream.seek(log.at)
        return stream.read(MOST)


def _write(mark: bytes, lines: Iterator[bytes] | deque[bytes]) -> None:
    """The bytes of the command, as it wrote them."""
    for line in lines:
        sys.stdout.buffer.write(mark + line.rstrip(b"\n") + b"\n")
    sys.stdout.buffer.flush()
