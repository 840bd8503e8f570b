"""The run as Prometheus reads it: looked at when somebody asks, at most once a second."""

import time
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder

from ftrun.helpers.metrics import catalogue
from ftrun.helpers.metrics.readings import Reading, readings
from ftrun.helpers.metrics.rising import Rising
from ftrun.views.look import look
from ftrun.views.rundir import NoRunDir
from ftrun.views.snapshot import Snapshot

FRESH: Final = 1.0  # s
GOING: Final = 1.0  # s that an ftrun may still be there after its end of our pipe is closed
NOTHING: Final = Snapshot(run_dir="", alive=False, phase="unknown", attempt=0, reason="first")
Family = CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily


class Exporter:
    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self.rising = Rising(run_dir)
        self._found: list[Reading] = []
        self._looked_at = 0.0
        self._pages: dict[str, bytes] = {}

    def page(self, accept: str) -> tuple[bytes, str]:
        """In the form that was asked for, and its content type."""
        self._look()
        encoder, kind = choose_encoder(accept)
        if kind not in self._pages:
            self._pages[kind] = encoder(_registry(self._found))
        return self._pages[kind], kind

    def text(self, run: str, ended: bool) -> bytes:
        """For a file: with a label `run`, since node_exporter takes those of all files together.  `ended`: ftrun is
        about to be gone, which is waited for, a second at most."""
        self._look(0.0, ended)
        return generate_latest(_registry(self._found, ("run", run)))

    def _look(self, fresh: float = FRESH, ended: bool = False) -> None:
        now = time.monotonic()
        if self._found and now - self._looked_at < fresh:
            return
        seen = _seen(self._run_dir)
        while ended and seen.alive and time.monotonic() < now + GOING:
            time.sleep(0.02)
            seen = _seen(self._run_dir)
        if ended and seen.alive:
            seen = seen._replace(alive=False, phase="cut off")
        counted = seen.began if seen.wall else None  # without it no account could be read
        self._found = self.rising.follow(counted, readings(seen))
        self._looked_at = now
        self._pages.clear()


def _seen(run_dir: str) -> Snapshot:
    try:
        return look(run_dir)
    except NoRunDir:
        return NOTHING


class _Collector:
    def __init__(self, found: Iterable[Reading], label: tuple[str, str] | None) -> None:
        self._families = list(families(found, label))

    def collect(self) -> list[Family]:
        return self._families


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
