"""The state of the run for Prometheus: read when a scrape arrives, at most once a second."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ftrun.helpers.metrics import catalogue
from ftrun.helpers.metrics.catalogue import MetricReading, readings
from ftrun.host import safe_files
from ftrun.records.files.rundir import NoRunDir
from ftrun.records.present import group
from ftrun.records.present.run_snapshot import read_snapshot
from ftrun.records.present.snapshot import Snapshot

MAX_AGE: Final = 1.0  # s
EXIT_TIMEOUT: Final = 1.0  # s that ftrun may still exist after it has closed its end of the pipe
EMPTY: Final = Snapshot(run_dir="", alive=False, phase="unknown", attempt=0, reason="first")


class Exporter(Collector):
    """A collector for prometheus_client.  Safe for use by several threads."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._lock = Lock()
        self._readings: list[MetricReading] = []
        self._read_at = 0.0

    def collect(self) -> Iterator[Metric]:
        return Readings(self._current(), {}).collect()

    def write(self, path: str, ended: bool) -> None:
        """Write a file for the textfile collector of node_exporter, with a label `run`, since that merges all files.
        `ended`: ftrun is about to exit, for which this waits, a second at most.  OSError."""
        path = os.path.abspath(path)
        folder, name = os.path.split(path)
        content = generate_latest(Readings(self._current(0.0, ended), {"run": name.removesuffix(".prom")}))
        safe_files.replace(path, content, 0o644, fresh=f"{folder}/.{name}.new", durable=False)

    def _current(self, max_age: float = MAX_AGE, ended: bool = False) -> list[MetricReading]:
        with self._lock:
            now = time.monotonic()
            if self._readings and now - self._read_at < max_age:
                return self._readings
            snapshot = _snapshot(self._run_dir)
            while ended and snapshot.alive and time.monotonic() < now + EXIT_TIMEOUT:
                time.sleep(0.02)
                snapshot = _snapshot(self._run_dir)
            if ended and snapshot.alive:
                snapshot = snapshot._replace(alive=False, phase="cut off")
            # A counter that could not be read is omitted: Prometheus would take a zero for a reset.
            self._readings = [one for one in readings(snapshot) if snapshot.wall or one.name not in catalogue.COUNTERS]
            self._read_at = now
            return self._readings


def _snapshot(run_dir: str) -> Snapshot:
    try:
        shown = read_snapshot(run_dir)
        return group.marked(shown, group.read(shown))
    except NoRunDir:
        return EMPTY


class Readings(Collector):
    """These readings, in the order of the catalogue, each with these labels too; metrics without readings are
    omitted."""

    def __init__(self, found: Iterable[MetricReading], labels: Mapping[str, str]) -> None:
        self._readings, self._labels = found, labels

    def collect(self) -> Iterator[Metric]:
        by_name: dict[str, list[MetricReading]] = {}
        for reading in self._readings:
            by_name.setdefault(reading.name, []).append(reading)
        for metric in catalogue.METRICS:
            if metric.name in by_name:
                family = Metric(metric.name.removesuffix("_total").removesuffix("_info"), metric.help, metric.kind)
                for reading in by_name[metric.name]:
                    own = dict(zip(metric.labels, reading.labels, strict=True))
                    family.add_sample(metric.name, {**own, **self._labels}, reading.value)
                yield family
