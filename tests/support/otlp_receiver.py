"""An OpenTelemetry collector for tests: it receives OTLP over HTTP and keeps spans and logs as plain values."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received:
    """`resources`: the attributes of each request.  Times are ns since the epoch."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[dict[str, Any]] = []
        self.logs: list[dict[str, Any]] = []
        self.resources: list[dict[str, Any]] = []

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(plain(resource.resource.attributes))
                self.spans += [self._span(span) for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/logs":
            for found in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.resources.append(plain(found.resource.attributes))
                self.logs += [self._log(log) for scope in found.scope_logs for log in scope.log_records]

    @staticmethod
    def _span(span: Any) -> dict[str, Any]:
        return {
            "name": span.name,
            "id": span.span_id,
            "parent": span.parent_span_id,
            "trace": span.trace_id.hex(),
            "begin": span.start_time_unix_nano,
            "end": span.end_time_unix_nano,
            "error": span.status.message if span.status.code == 2 else None,
            "attributes": plain(span.attributes),
        }

    @staticmethod
    def _log(log: Any) -> dict[str, Any]:
        return {
            "body": log.body.string_value,
            "severity": log.severity_text,
            "span": log.span_id,
            "time": log.time_unix_nano,
            "attributes": plain(log.attributes),
        }


def plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in attributes}


@contextmanager
def receiving() -> Iterator[Received]:
    received = Received()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.take(self.path, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
