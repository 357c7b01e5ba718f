"""Of a stored message's headers, which anybody may have written, only the trace context is read."""

import pytest

from trinity.runtime.nats_client import trace_context_in
from trinity.runtime.telemetry.tracing import SpanContextRef

CONTEXT = f"traceparent: {SpanContextRef(1, 2, True).traceparent}\r\n".encode()


@pytest.mark.usefixtures("spans")
def test_the_context_alone_is_let_through() -> None:
    alone = b"NATS/1.0\r\n" + CONTEXT + b"\r\n"
    assert (
        trace_context_in(b"NATS/1.0\r\nNats-Msg-Id: x\r\n" + CONTEXT + b"a: \xff\r\n\r\n") == alone
    )
    assert trace_context_in(b"NATS/1.0 503 gone\r\n" + CONTEXT + b"\r\n") == alone


@pytest.mark.usefixtures("spans")
@pytest.mark.parametrize(
    "headers",
    [
        None,
        b"",
        b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n",
        b"NATS/1.0\r\n" + CONTEXT.replace(b"00-", b"0\r-") + b"\r\n",
        b"NATS/1.0\r\n" + CONTEXT.replace(b"-01", b"-01-and-more") + b"\r\n",
    ],
)
def test_anything_else_is_no_context(headers: bytes | None) -> None:
    assert trace_context_in(headers) is None


def test_off_no_header_is_read() -> None:
    assert trace_context_in(b"NATS/1.0\r\n" + CONTEXT + b"\r\n") is None
