"""Exposes the run to Prometheus: `python -m ftrun.helpers.metrics RUN_DIR ADDRESS PATH`, started by PID 1.

ADDRESS is HOST:PORT; PATH is a file for node_exporter's textfile collector, written every PERIOD s and when stdin has
ended; either may be empty.  The messages are in messages/exports.py.  If the address cannot be bound, this is retried.
It exits with 0 when stdin ends, when PID 1 no longer reads, or when prometheus-client is not installed; with 1 after an
unexpected exception.
"""

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ftrun.helpers.lines import Lines, run
from ftrun.host import installation
from ftrun.messages.exports import METRICS_EVENTS, Listening

if TYPE_CHECKING:
    from ftrun.helpers.metrics.exporter import Exporter
    from ftrun.helpers.metrics.server import MetricsServer

PERIOD: Final = 15.0  # s
RETRY: Final = 5.0  # s
MISSING: Final = "no metrics: prometheus-client is not installed ({})"


def main(argv: Sequence[str]) -> int:
    return run(partial(_run, argv), METRICS_EVENTS)


def _run(argv: Sequence[str], lines: Lines) -> None:
    run_dir, address, path = argv
    try:
        from ftrun.helpers.metrics.exporter import Exporter
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        lines.problem(MISSING.format(installation.command("metrics")))
        return
    Metrics(Exporter(run_dir), address, path, lines).run()


class Metrics:
    def __init__(self, exporter: "Exporter", address: str, path: str, lines: Lines) -> None:
        self._exporter, self._address, self._path, self._lines = exporter, address, path, lines
        self._server: MetricsServer | None = None

    def run(self) -> None:
        listen = write = 0.0  # when each is due
        while not self._lines.ended:
            now = time.monotonic()
            if self._path and now >= write:
                self._write_file(False)
                write = now + PERIOD
            if self._address and self._server is None and now >= listen:
                self._listen()
                listen = now + RETRY
            due_times = [write] if self._path else []
            due_times += [listen] if self._address and self._server is None else []
            self._lines.requests(max(0.0, min(due_times) - now) if due_times else None)
        if self._path:
            self._write_file(True)

    def _listen(self) -> None:
        from ftrun.helpers.metrics.server import MetricsServer

        host, _, port = self._address.rpartition(":")
        try:
            self._server = MetricsServer(host.strip("[]"), int(port), self._exporter, self._lines.problem)
        except OSError as error:
            reason = str(error.strerror).partition(" (while")[0]  # socket.create_server adds the address
            self._lines.problem(f"--metrics {self._address}: {reason}; ftrun tries again")
            return
        self._lines.send(Listening(self._server.address))

    def _write_file(self, ended: bool) -> None:
        try:
            self._exporter.write(self._path, ended)
        except OSError as error:
            self._lines.problem(f"--metrics-file {self._path}: {error.strerror}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
