"""Exports the records: `telemetry RUN_DIR OFFSET`, started by PID 1.

It follows the records from the byte OFFSET on, and passes them on to an OpenTelemetry collector (otlp.py) and to
journald (journal.py), as the `Exports` in the file at descriptor 3 say.  A destination that does not answer holds up
nothing: what it does not take is dropped, which `run.log` says.  When stdin has ended, the last records are read and
sent.
"""

import os
from typing import TYPE_CHECKING, Final

from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.helpers.telemetry.journal import Journald
from ftrun.host import installation
from ftrun.messages.codec import EXACT
from ftrun.messages.exports import Exports
from ftrun.messages.helpers import PROBLEMS
from ftrun.records.files.record_files import GrowingFile, record

if TYPE_CHECKING:
    from ftrun.helpers.telemetry.otlp import Otlp as OpenTelemetry

PERIOD: Final = 0.5  # s between two reads of the records
EXPORTS: Final = 3  # descriptor
MOST: Final = 1 << 20  # bytes of it
MISSING: Final = "no OpenTelemetry: its SDK is not installed ({})"


@helper(PROBLEMS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    run_dir, offset = argv[0], int(argv[1])
    exports = EXACT.load(Exports, os.pread(EXPORTS, MOST, 0))
    journald = Journald(run_dir, lines.problem) if exports.journal else None
    otlp: OpenTelemetry | None = None
    if exports.otlp:
        try:
            from ftrun.helpers.telemetry.otlp import Otlp

            otlp = Otlp(run_dir, exports)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "opentelemetry":
                raise
            lines.problem(MISSING.format(installation.command("otel")))
    records = GrowingFile(f"{run_dir}/events.jsonl")
    records.at = offset  # the beginning of a line: PID 1 writes whole ones
    ended = False
    while not ended:
        lines.pause(PERIOD)
        ended = lines.ended  # before the read: a later record is not lost
        for found in filter(None, map(record, records.lines())):
            if journald is not None:
                journald.follow(found)
            if otlp is not None:
                otlp.follow(found)
        if otlp is not None:
            otlp.look()
    if otlp is not None:
        otlp.close()
