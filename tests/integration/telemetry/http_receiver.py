"""An OTLP receiver over HTTP beside the one over gRPC: what comes goes to the same place."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb

from tests.integration.telemetry.receiver import OFTEN, Receiver

PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A request without what it holds."""

    path: str
    headers: dict[str, str]
    """Their names in small letters."""


@dataclass(slots=True, kw_only=True)
class HttpReceiver:
    """Gives what it gets to `seen`; use it as `with http_receiver(seen) as over_http`."""

    seen: Receiver
    address: str = ""
    posted: list[Posted] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        """Variables with which a process sends to this."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            **OFTEN,
            **more,
        }

    def take(self, posted: Posted, body: bytes) -> Message:
        """Its answer."""
        self.posted.append(posted)
        if posted.path.endswith("/traces"):
            self.seen.take_traces(trace_pb.ExportTraceServiceRequest.FromString(body))
            return trace_pb.ExportTraceServiceResponse()
        self.seen.take_metrics(metrics_pb.ExportMetricsServiceRequest.FromString(body))
        return metrics_pb.ExportMetricsServiceResponse()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, receiver: HttpReceiver, *connection: Any) -> None:
        self._receiver = receiver
        super().__init__(*connection)

    def do_POST(self) -> None:
        """Read it all, and answer as a collector does."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers["content-length"]))
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        answer = self._receiver.take(Posted(path=self.path, headers=headers), body)
        content = answer.SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", PROTOBUF)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing of each request."""


@contextmanager
def http_receiver(seen: Receiver) -> Iterator[HttpReceiver]:
    """Receive for as long as the block lasts, on a port of its own."""
    receiver = HttpReceiver(seen=seen)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, receiver)) as server:
        receiver.address = f"127.0.0.1:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            serving.join()
