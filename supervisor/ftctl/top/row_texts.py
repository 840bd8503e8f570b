"""What `ftctl top` shows of the chosen rank on a key: the last report, its present stacks, the last lines of output."""

import os
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ftctl import markdown
from ftctl.top.keys import LOGS, REPORT, STACKS, LongText
from ftrun.core.text import sentences
from ftrun.helpers.evidence import present
from ftrun.records.files import record_files, reports
from ftrun.records.present.snapshot import RankNow

OUTPUT: Final = 1 << 20  # bytes of output that are read
LINES: Final = 1000  # of output
KEYS: Final = (REPORT, STACKS, LOGS)


def read(key: str, run_dir: str, rank: RankNow | None) -> LongText:
    """`rank`: None where there are no ranks.  What cannot be read is a line that says so."""
    try:
        title, lines = {REPORT: _report, STACKS: _stacks, LOGS: _logs}[key](run_dir, rank)
    except (OSError, present.NoStacks) as why:
        title, lines = "nothing can be shown", iter([str(why)])
    return LongText(title, tuple(lines) or ("empty",))


def _report(run_dir: str, rank: RankNow | None) -> tuple[str, Iterator[str]]:
    known = reports.known(run_dir)
    text = reports.text(run_dir, known[-1]) if known else None
    if text is None:
        return "report", iter(["no report was written"])
    return f"report of attempt {known[-1]}", markdown.lines(text)


def _stacks(run_dir: str, rank: RankNow | None) -> tuple[str, Iterator[str]]:
    number = None if rank is None else rank.rank
    return f"present stacks of {sentences.rank(number)}", iter(present.lines(present.observe(run_dir, number), True))


def _logs(run_dir: str, rank: RankNow | None) -> tuple[str, Iterator[str]]:
    own = None if rank is None else rank.local_rank
    for path in (path for number, path in reports.output_files(run_dir) if number in (None, own)):
        if last := [*islice(record_files.backwards(path, OUTPUT), LINES)][::-1]:
            return f"last lines of {os.path.basename(path)}", (line.decode("utf-8", "replace") for line in last)
    return "output", iter(["the output of the command is not kept; ftrun --log-dir DIR keeps it"])
