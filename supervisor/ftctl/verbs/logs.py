"""`ftctl logs`: the output of the command, where it is kept."""

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

import click

from ftctl.common import RUN_DIR, UserError
from ftrun.config.whole_number import WholeNumber
from ftrun.host.output_pipes import LOG, RANK_LOG
from ftrun.records import liveness, rundir, state
from ftrun.records.record_files import GrowingFile

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
            alive = liveness.is_running(folder, state.load(folder).part("run"))
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
    names = sorted(os.listdir(folder))
    numbers = sorted(int(found[1]) for name in names if (found := re.fullmatch(RANK_LOG.format(r"(\d+)"), name)))
    if rank is not None and rank not in numbers:
        kept = f"; it is kept of {', '.join(map(str, numbers))}" if numbers else ""
        raise UserError(f"{folder}: no output of local rank {rank} is kept{kept}")
    chosen = [rank] if rank is not None else numbers
    logs = [(f"[{n}] ".encode() if len(chosen) > 1 else b"", f"{folder}/{RANK_LOG.format(n)}") for n in chosen]
    logs += [(b"", f"{folder}/{LOG}")] if rank is None and LOG in names else []
    if not logs:
        raise UserError(f"{folder}: the output of the command is not kept; ftrun --log-dir DIR keeps it")
    return [(mark, GrowingFile(path)) for mark, path in logs]


def _rest(log: GrowingFile) -> bytes:
    with open(log.path, "rb") as stream:
        stream.seek(log.at)
        return stream.read(MOST)


def _write(mark: bytes, lines: Iterator[bytes] | deque[bytes]) -> None:
    """The bytes of the command, as it wrote them."""
    for line in lines:
        sys.stdout.buffer.write(mark + line.rstrip(b"\n") + b"\n")
    sys.stdout.buffer.flush()
