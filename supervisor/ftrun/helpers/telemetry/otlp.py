"""Spans and logs for an OpenTelemetry collector, by the SDK of OpenTelemetry.

One trace: the span `run` from the start of this ftrun to its end; below it a span for each attempt, each restart (from
what caused it to the first heartbeat after it) and each recovery; below an attempt its hangs (the silence up to the
verdict) and the sections of its ranks.  Each record but progress is a log, in the span of its attempt.  Where
TRACEPARENT is set, the run is a part of that trace.  The SDK exports in threads of its own, with bounded queues.
"""

import os
import time
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ftrun import __version__
from ftrun.core.text import sentences
from ftrun.helpers.telemetry.journal import INFO, LEFT_OUT, PRIORITIES
from ftrun.messages import records
from ftrun.messages.exports import Exports
from ftrun.records.files import beatfile, state
from ftrun.records.files.record_files import Record, own_fields

TIMEOUT: Final = 4.0  # s for an export, with its retries
RANKS: Final = 64  # whose sections are exported
SEVERITIES: Final = {3: SeverityNumber.ERROR, 4: SeverityNumber.WARN, 5: SeverityNumber.INFO, 6: SeverityNumber.DEBUG}
Span = Any  # trace.Span, whose package may not be installed


class Otlp:
    """`exports.otlp`: the base URL of the collector, as `http://collector:4318`."""

    def __init__(self, run_dir: str, exports: Exports) -> None:
        self._beat_dir = exports.beat_dir
        url, resource = exports.otlp.rstrip("/"), Resource.create(_attributes(run_dir, exports))
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces", timeout=TIMEOUT)))
        self._loggers = LoggerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPLogExporter(f"{url}/v1/logs", timeout=TIMEOUT)
        self._loggers.add_log_record_processor(BatchLogRecordProcessor(exporter))
        self._tracer = self._tracers.get_tracer("ftrun", __version__)
        self._logger = self._loggers.get_logger("ftrun", __version__)
        self._outer = TraceContextTextMapPropagator().extract({"traceparent": os.environ.get("TRACEPARENT", "")})
        self._run: Span | None = None
        self._attempt: Span | None = None
        self._recovery: Span | None = None
        self._restart: tuple[Span, int] | None = None  # the span, and the attempt that the restart ends
        self._spawned = 0, 0  # when, and which attempt
        self._sections: dict[tuple[int, str, float], tuple[Span, int]] = {}  # with when it was last seen, in ns
        self._last = 0  # the time of the last record, in ns

    def follow(self, found: Record) -> None:
        at, attempt, event = _time(found), state.integer(found.get("attempt")) or 0, str(found["event"])
        self._last = at
        if self._run is None:
            self._run = self._tracer.start_span("run", self._outer, start_time=at)
        match event:
            case "started" | "restart":
                self._end_attempt(at)
                reason = str(found.get("reason") or "first")
                fields = {"ftrun.attempt": attempt, "ftrun.reason": reason}
                self._attempt = self._begin(f"attempt {attempt}", at, fields)
            case "hang":
                began = at - int(1e9 * (state.number(found.get("age")) or 0.0))
                span = self._begin("hang", began, _plain(found), self._attempt)
                _failed(span, str(found.get("mechanism") or found.get("why") or "it hung"))
                span.end(at)
                self._cause(event, at, attempt)
            case "fault" | "stopping":
                self._cause(event, at, attempt)
            case "exited":
                if self._attempt is not None:
                    self._attempt.set_attributes({f"ftrun.{name}": value for name, value in _plain(found).items()})
                    if found.get("code") or found.get("signal"):
                        _failed(self._attempt, str(found.get("why") or "it failed"))
                self._cause(event, at, attempt)
            case "spawned":
                self._spawned = at, attempt
            case "first_beat":
                self._end_restart(at, attempt)
            case "recovering":
                self._recovery = self._recovery or self._begin(f"recovery by {found.get('rung')}", at, _plain(found))
            case "recovered" if self._recovery is not None:
                self._recovery.end(at)
                self._recovery = None
            case "ended":
                self._end(at, found)
        self._log(found, event, at)

    def look(self) -> None:
        """The sections that are open now.  One that begins and ends between two looks has no span."""
        if self._attempt is None:
            return
        now, mono = time.time_ns(), time.monotonic()
        ranks = beatfile.read(self._beat_dir, mono, mono, True).ranks[:RANKS]
        for rank in ranks:
            for section in rank.sections:
                key = rank.rank, section.name, section.started
                if key not in self._sections:
                    fields = {"ftrun.rank": rank.rank, "ftrun.automatic": section.automatic}
                    began = now - int(1e9 * (mono - section.started))
                    self._sections[key] = self._begin(f"section {section.name}", began, fields, self._attempt), now
                self._sections[key] = self._sections[key][0], now
        for key, (span, seen) in list(self._sections.items()):
            if seen != now:
                span.end(seen)
                del self._sections[key]

    def close(self) -> None:
        if self._run is not None and self._run.is_recording():  # no record of the end
            self._end(self._last, {})
        self._tracers.shutdown()
        self._loggers.shutdown()

    def _begin(self, name: str, at: int, fields: Mapping[str, Any], parent: Span | None = None) -> Span:
        over = self._run if parent is None else parent
        context = None if over is None else trace.set_span_in_context(over, Context())
        return self._tracer.start_span(name, context, attributes=dict(fields), start_time=at)

    def _cause(self, event: str, at: int, attempt: int) -> None:
        """What may lead to a restart: its span begins here, and is dropped if none follows."""
        self._end_restart(*self._spawned)  # an attempt without heartbeats
        if self._restart is None:
            self._restart = self._begin("restart", at, {"ftrun.cause": event, "ftrun.attempt": attempt}), attempt

    def _end_restart(self, at: int, attempt: int) -> None:
        """The span ends with what happened at this time in a later attempt."""
        if self._restart is not None and attempt > self._restart[1]:
            self._restart[0].end(at)
            self._restart = None

    def _end_attempt(self, at: int) -> None:
        for span, seen in self._sections.values():
            span.end(min(seen, at))
        self._sections.clear()
        if self._recovery is not None:
            _failed(self._recovery, "it did not succeed")
            self._recovery.end(at)
            self._recovery = None
        if self._attempt is not None:
            self._attempt.end(at)
            self._attempt = None

    def _end(self, at: int, found: Record) -> None:
        self._end_attempt(at)
        self._end_restart(*self._spawned)
        self._restart = None  # no start followed: it is not exported
        if self._run is not None:
            self._run.set_attributes({f"ftrun.{name}": value for name, value in _plain(found).items()})
            if found.get("exit_code") != 0:
                _failed(self._run, str(found.get("why") or "ftrun is gone without a verdict"))
            self._run.end(at)

    def _log(self, found: Record, event: str, at: int) -> None:
        if event in LEFT_OUT:
            return
        severity = SEVERITIES[PRIORITIES.get(event, INFO)]
        span = self._attempt if self._attempt is not None else self._run
        self._logger.emit(
            LogRecord(
                timestamp=at,
                observed_timestamp=time.time_ns(),
                context=None if span is None else trace.set_span_in_context(span, Context()),
                severity_number=severity,
                severity_text=severity.name,
                body=sentences.printable(sentences.record(event, own_fields(found))),
                attributes={f"ftrun.{name}": value for name, value in _plain(found).items()} | {"ftrun.event": event},
                event_name=f"ftrun.{event}",
            )
        )


def _attributes(run_dir: str, exports: Exports) -> dict[str, str]:
    own = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or exports.job or "ftrun",
        "service.instance.id": run_dir,
        "host.name": exports.node,
        "ftrun.version": __version__,
        "ftrun.job": exports.job,
        "ftrun.schedule": exports.schedule,
    }
    return {name: value for name, value in own.items() if value}


def _plain(found: Record) -> dict[str, str | int | float | bool]:
    """The fields of a record as attributes; what is no plain value, as text."""
    plain: dict[str, str | int | float | bool] = {}
    for name, value in found.items():
        if value is not None and name not in ("schema", "time", "mono", "event"):
            plain[name] = value if isinstance(value, str | int | float | bool) else sentences.short(repr(value), 1000)
    return plain


def _failed(span: Span, why: str) -> None:
    span.set_status(trace.Status(trace.StatusCode.ERROR, sentences.printable(why)))


def _time(found: Record) -> int:
    """The time of a record, in ns since the epoch."""
    at = records.seconds(found.get("time"))
    return time.time_ns() if at is None else int(at * 1e6) * 1000
