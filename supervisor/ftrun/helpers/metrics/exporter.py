"""The run as Prometheus reads it: looked at when somebody asks, at most once a second."""

import os
import time
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from ftrun.helpers.metrics import catalogue
from ftrun.helpers.metrics.readings import Reading, readings
from ftrun.views.run_snapshot import read_snapshot
from ftrun.views.rundir import NoRunDir
from ftrun.views.snapshot import Snapshot

FRESH: Final = 1.0  # s
GOING: Final = 1.0  # s that an ftrun may still be there after its end of our pipe is closed
NOTHING: Final = Snapshot(run_dir="", alive=False, phase="unknown", attempt=0, reason="first")
Family = CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily


class Exporter(Collector):
    """A collector of prometheus_client, for several threads."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._lock = Lock()
        self._found: list[Reading] = []
        self._looked_at = 0.0

    def collect(self) -> Iterator[Family]:
        return families(self._look())

    def write(self, path: str, ended: bool) -> None:
        """For the textfile collector of node_exporter, with a label `run`, since that takes all files together.
        `ended`: ftrun is about to be gone, which is waited for, a second at most.  OSError."""
        run = os.path.basename(path).removesuffix(".prom")
        write(path, generate_latest(_registry(self._look(0.0, ended), ("run", run))))

    def _look(self, fresh: float = FRESH, ended: bool = False) -> list[Reading]:
        with self._lock:
            now = time.monotonic()
            if self._found and now - self._looked_at < fresh:
                return self._found
            seen = _seen(self._run_dir)
            while ended and seen.alive and time.monotonic() < now + GOING:
                time.sleep(0.02)
                seen = _seen(self._run_dir)
            if ended and seen.alive:
                seen = seen._replace(alive=False, phase="cut off")
            # A counter that could not be read is left out: a zero would be a reset to Prometheus.
            self._found = [one for one in readings(seen) if seen.wall or one.name not in catalogue.COUNTERS]
            self._looked_at = now
            return self._found


def _seen(run_dir: str) -> Snapshot:
    try:
        return read_snapshot(run_dir)
    except NoRunDir:
        return NOTHING


class _Collector(Collector):
    def __init__(self, found: Iterable[Reading], label: tuple[str, str] | None) -> None:
        self._found, self._label = found, label

    def collect(self) -> Iterator[Family]:
        return families(self._found, self._label)


def _registry(found: Iterable[Reading], label: tuple[str, str] | None = None) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(found, label))
    return registry


def families(found: Iterable[Reading], label: tuple[str, str] | None = None) -> Iterator[Family]:
    """In the order of the catalogue; those with no readings are left out."""
    by_name: dict[str, list[Reading]] = {}
    for reading in found:
        by_name.setdefault(reading.name, []).append(reading)
    names, values = ((label[0],), (label[1],)) if label else ((), ())
    for metric in catalogue.METRICS:
        if metric.name in by_name:
            labelled = [(list(reading.labels + values), reading.value) for reading in by_name[metric.name]]
            yield _family(metric, metric.labels + names, labelled)


def _family(metric: catalogue.Metric, labels: tuple[str, ...], found: Iterable[tuple[list[str], float]]) -> Family:
    if metric.kind == "info":
        info = InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, labels=labels)
        for values, _ in found:
            info.add_metric(values, {})
        return info
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=labels)
    for values, value in found:
        family.add_metric(values, value)
    return family


def write(path: str, content: bytes) -> None:
    """All of it or nothing, readable by all: it may be read at any instant.  OSError."""
    folder, name = os.path.split(os.path.abspath(path))
    beside = f"{folder}/.{name}.new"
    try:
        os.unlink(beside)  # of one of us that was killed; it may belong to somebody else
    except FileNotFoundError:
        pass
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as stream:
            stream.write(content)
            os.fchmod(fd, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
