"""Exposes the run to Prometheus: `metrics RUN_DIR ADDRESS PATH`, started by PID 1.

ADDRESS is HOST:PORT, whose binding is retried; PATH is a file for node_exporter's textfile collector, written every
PERIOD s and when stdin has ended; either may be empty.  The messages are in messages/exports.py.
"""

import math
import time
from typing import TYPE_CHECKING, Final

from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.host import installation
from ftrun.messages.exports import METRICS_EVENTS, Listening

if TYPE_CHECKING:
    from ftrun.helpers.metrics.exporter import Exporter

PERIOD: Final = 15.0  # s
RETRY: Final = 5.0  # s
MISSING: Final = "no metrics: prometheus-client is not installed ({})"


@helper(METRICS_EVENTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    run_dir, address, path = argv
    try:
        from ftrun.helpers.metrics.exporter import Exporter
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        lines.problem(MISSING.format(installation.command("metrics")))
        return
    exporter = Exporter(run_dir)
    listen, write = 0.0 if address else math.inf, 0.0 if path else math.inf  # when each is due
    while not lines.ended:
        now = time.monotonic()
        if now >= write:
            _write_file(exporter, path, False, lines)
            write = now + PERIOD
        if now >= listen:
            listen = math.inf if _listens(exporter, address, lines) else now + RETRY
        due = min(listen, write)
        lines.requests(None if due == math.inf else due - now)
    if path:
        _write_file(exporter, path, True, lines)


def _listens(exporter: "Exporter", address: str, lines: ProtocolLines) -> bool:
    """Start the server, whose threads answer from now on."""
    from ftrun.helpers.metrics.server import MetricsServer

    host, _, port = address.rpartition(":")
    try:
        server = MetricsServer(host.strip("[]"), int(port), exporter, lines.problem)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # socket.create_server adds the address
        lines.problem(f"--metrics {address}: {reason}; ftrun tries again")
        return False
    lines.send(Listening(server.address))
    return True


def _write_file(exporter: "Exporter", path: str, ended: bool, lines: ProtocolLines) -> None:
    try:
        exporter.write(path, ended)
    except OSError as error:
        lines.problem(f"--metrics-file {path}: {error.strerror}")
