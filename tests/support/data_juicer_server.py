"""A server as Data-Juicer's, whose only operator keeps texts that are long enough."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from trinity.user_code.data_juicer import server
from trinity.user_code.data_juicer.bounded_server import BoundedThreadingServer, ServerLimits
from trinity.user_code.data_juicer.server import BadRequest


class LongEnough:
    """In the place of `processing.Session`."""

    def __init__(self, least: int) -> None:
        self._least = least

    @classmethod
    def from_request(cls, request: Mapping[str, Any]) -> "LongEnough":
        match request.get("operators"):
            case [{"text_length_filter": {"min_len": least}}]:
                return cls(least)
        raise BadRequest(f"KeyError: {request.get('operators')}")

    def apply_operators(self, stream: bytes) -> tuple[bytes, dict[str, float]]:
        rows = pa.ipc.open_stream(stream).read_all().to_pylist()
        kept = [
            {**row, "__dj__stats__": {"text_len": len(row["text"])}}
            for row in rows
            if len(row["text"]) >= self._least
        ]
        table = pa.Table.from_pylist(kept) if kept else pa.table({"sample": pa.array([], "int64")})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes(), {"output_count": float(len(kept))}


@contextlib.contextmanager
def served(
    sessions: server.SessionStore, port: int = 0, limits: ServerLimits | None = None
) -> Iterator[str]:
    """Its address, until the end of the block."""
    handler = type("BoundHandler", (server.DataJuicerHandler,), {"sessions": sessions})
    with BoundedThreadingServer(("127.0.0.1", port), handler, limits) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()
